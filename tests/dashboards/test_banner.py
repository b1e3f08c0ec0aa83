"""Every state of the verdict banner, from the verdict and the run's status."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from floatscope_dashboards.banner import RECOVERED_FOR_STEPS, Banner
from floatscope_dashboards.banner import banner as banner_in
from floatscope_dashboards.findings import IN_ENGLISH
from floatscope_dashboards.say import catalogues
from floatscope_dashboards.views import RunView
from floatscope_dashboards.warm_up import WARM_UP_STEPS
from tests.dashboards.sample import NOW, finding, info, run_view, verdict


def banner(view: RunView) -> Banner:
    return banner_in(view, IN_ENGLISH)


def quiet(**more: Any) -> dict[str, Any]:
    return {"health": "healthy", "onset_step": None, "headline": "No fault found.", **more}


def test_critical_says_since_when_where_and_what_to_do() -> None:
    found = banner(run_view())
    assert (found.state, found.tone, found.icon, found.big) == ("critical", "v-crit", "crit", "93\u202f%")
    assert found.title.startswith("Activations of blocks.8.mlp.fc2 clip")
    assert found.facts is not None
    assert found.facts.since == "Step 300"
    assert found.facts.since_notes == (
        "Seen 1 step later.",
        "119 steps trained since.",
        "Last clean step 299: use a checkpoint from there or before.",
    )
    assert found.facts.where == "blocks.8.mlp.fc2/input"
    assert "14 of 144 tensors affected." in found.facts.where_notes
    assert found.facts.actions == (
        "Roll back to a checkpoint at or before step 299.",
        "Use current scaling for the inputs of *.mlp.fc2.",
    )
    assert [item.framework for item in found.facts.settings] == [
        "Transformer Engine",
        "Megatron-LM",
        "torchao",
    ]
    assert found.facts.settings[0].text == "Float8CurrentScaling()"


def test_torchao_setting_comes_first_for_a_torchao_recipe() -> None:
    found = banner(run_view(info=info(recipe={"name": "ao_tensorwise"})))
    assert found.facts is not None
    assert found.facts.settings[0].framework == "torchao"


def test_warning_has_its_own_colour_and_shape() -> None:
    found = banner(run_view(verdict(finding(severity="warning")), health="warning"))
    assert (found.state, found.tone, found.icon, found.word) == ("warning", "v-warn", "warn", "Warning")


def test_below_60_percent_two_candidates_and_a_test_but_no_instruction() -> None:
    found = banner(run_view(verdict(finding(confidence=0.48))))
    assert found.state == "uncertain"
    assert [item.confidence_pct for item in found.candidates] == [48, 4]
    assert found.decisive.startswith("Replay from step 299")
    assert found.facts is not None
    assert found.facts.actions == ()
    assert found.facts.settings == ()


def test_the_confidence_says_what_it_rests_on_and_what_to_log_next() -> None:
    wish = {"signal": "underflow_pct", "text": "log underflow_pct of layers.0-3/grad_output at every step"}
    found = banner(
        run_view(verdict(finding(confidence_basis="calibrated on emulation", log_next=[wish, {}])))
    )
    assert found.big_note == "confidence, 4 observations agree; calibrated on emulation"
    assert found.log_next == (wish["text"],)
    assert banner(run_view(verdict(finding()))).big_note == "confidence, 4 observations agree"


def test_undetermined_shows_its_two_best_alternatives() -> None:
    two = [
        {"cause": "quantization_drift", "confidence": 0.41, "against": "no baseline"},
        {"cause": "accumulation_precision", "confidence": 0.52, "against": ""},
        {"cause": "plateau", "confidence": 0.05, "against": ""},
    ]
    found = banner(run_view(verdict(finding(cause="undetermined", confidence=0.3, alternatives=two))))
    assert [item.title for item in found.candidates] == ["Sums lose precision", "Drift from rounding"]
    assert found.big == "52\u202f%"


def test_several_findings_worst_first_others_folded() -> None:
    found = banner(
        run_view(
            verdict(
                finding(id="w", severity="warning", confidence=0.99, summary="Throttled."),
                finding(id="c", severity="critical", confidence=0.7, summary="Overflow."),
                finding(id="r", severity="critical", state="replaced", summary="Gone."),
                finding(id="i", severity="info", summary="A spike came back."),
            )
        )
    )
    assert found.title == "Overflow, and 1 other finding"
    assert [item.key for item in found.folded] == ["w", "i"]


def test_recovered_until_enough_clean_steps_then_healthy() -> None:
    back = verdict(finding(state="recovered", resolved_step=380), status="healthy")
    found = banner(run_view(back, **quiet()))
    assert (found.state, found.tone, found.big) == ("recovered", "v-ok", "39")
    later = banner(run_view(back, **quiet(last_step=380 + RECOVERED_FOR_STEPS, baseline="b")))
    assert later.state == "healthy"


def test_a_run_whose_last_loss_is_nan_has_not_recovered() -> None:
    back = verdict(finding(state="recovered", resolved_step=301), status="healthy")
    assert banner(run_view(back, **quiet(last_loss=float("nan")))).state == "critical"


def test_stalled_without_finding_is_greyed_and_dated() -> None:
    silent = quiet(status="stalled", last_seen=NOW - timedelta(minutes=14))
    found = banner(run_view(verdict(), **silent))
    assert (found.state, found.tone) == ("stale", "v-idle")
    assert found.title == "No data for 14 min, so this verdict may be out of date"
    assert "11:22 UTC" in found.why
    assert "The last verdict was: Healthy." in found.why


def test_stalled_with_finding_keeps_the_finding_and_says_it_may_be_old() -> None:
    found = banner(run_view(status="stalled", last_seen=NOW - timedelta(minutes=14)))
    assert found.state == "critical"
    assert found.notes == ("No data for 14 min, so this verdict may be out of date.",)


@pytest.mark.parametrize("status", ["crashed", "failed"])
def test_an_end_without_finding_says_that_no_numerical_cause_was_found(status: str) -> None:
    found = banner(run_view(verdict(), info=info(reason="CUDA error."), **quiet(status=status)))
    assert (found.state, found.icon) == ("ended", "no")
    assert found.title == f"The run {status} at step 419, and no numerical cause was found"
    assert "Reason given: CUDA error." in found.why


def test_a_crash_with_finding_leads_with_the_finding() -> None:
    found = banner(run_view(info=info(reason="CUDA error"), status="crashed"))
    assert found.state == "critical"
    assert found.notes == ("The run crashed at step 419. Reason given: CUDA error",)


def test_healthy_is_one_quiet_line() -> None:
    found = banner(run_view(verdict(), **quiet(baseline="b")))
    assert (found.state, found.slim, found.title) == ("healthy", True, "No finding in 420 steps")
    assert "144 FP8 tensors in range." in found.why
    assert "2 checks could not look" in found.why


def test_finished_clean() -> None:
    found = banner(run_view(verdict(), **quiet(status="finished", baseline="b")))
    assert found.title == "Finished clean: no finding in 420 steps"


def test_remarks_only_need_no_action() -> None:
    found = banner(run_view(verdict(finding(severity="info")), **quiet(health="watch")))
    assert (found.state, found.tone) == ("watch", "v-info")
    assert len(found.folded) == 1


def test_warming_up_counts_steps() -> None:
    found = banner(run_view(verdict(steps=WARM_UP_STEPS // 2), **quiet()))
    assert (found.state, found.progress_pct) == ("warming_up", 50)


def test_waiting_for_the_first_step() -> None:
    found = banner(run_view(verdict(steps=0), **quiet(first_step=None, last_step=None)))
    assert found.state == "waiting"


def test_a_run_without_fp8_tensors_says_what_is_judged() -> None:
    tensors = {"a/input": {"format": "bf16"}, "a/weight": {"format": "bf16"}}
    plain = banner(run_view(verdict(), info=info(recipe={"name": "bf16"}, tensors=tensors), **quiet()))
    assert (plain.state, plain.title) == ("no_fp8", "This run has no FP8 tensors, so only the loss is judged")
    assert "2 tensors and the loss are judged" in plain.why
    assert "baseline" not in plain.why
    announced = banner(run_view(verdict(), info=info(tensors=tensors), **quiet()))
    assert "fp8_delayed_scaling was announced" in announced.why
    nothing = banner(run_view(verdict(), info=info(tensors={}), **quiet()))
    assert "No tensor statistics were sent" in nothing.why


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"findings": None, "source": None, "not_checked": "x"},
        {"findings": [None, 3, {}], "source": {"steps": "many"}},
        {
            "findings": [
                {
                    "severity": "critical",
                    "confidence": "NaN",
                    "onset_window": [1],
                    "remedy": 4,
                    "evidence": [5],
                }
            ]
        },
    ],
)
def test_a_verdict_of_another_version_still_makes_a_banner(broken: dict[str, Any]) -> None:
    assert banner(run_view(broken, **quiet())).title


def test_in_another_language_the_heading_is_composed_and_the_engines_sentence_stands_below() -> None:
    chinese = catalogues()["zh-CN"]
    found = banner_in(run_view(), chinese)
    assert "blocks.8.mlp.fc2/input" in found.title
    assert "300" in found.title
    assert "Activations of" not in found.title
    assert found.why.startswith("Activations of blocks.8.mlp.fc2 clip")
