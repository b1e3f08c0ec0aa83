"""What every rule promises beyond its own cases: reach, order, advice that can be followed, honest doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from floatscope_diagnostics.calibration import fitted
from floatscope_diagnostics.growth import attention_output
from floatscope_diagnostics.rule import FAMILY_OF
from floatscope_diagnostics.rule_docs import pages
from floatscope_diagnostics.rule_texts import HEADINGS
from tests.diagnostics.case import Case, alarms, diagnose
from tests.diagnostics.cases.scale_state_fault import FAULT as FROZEN_AT
from tests.diagnostics.test_rules import all_cases

FRAMEWORKS = ("transformer_engine", "torchao", "megatron", "deepspeed")
KINDS = {
    "invalid_input": {"nonfinite_values", "out_of_range_values", "id_out_of_range", "empty_targets"},
    "scale_state_fault": {
        "frozen", "nonfinite_scale", "lost_at_resume", "reduction_group", "recompute", "degenerate_amax",
        "stale_fp8_copy",
    },
}  # fmt: skip
FP8_WORDS = ("te.autocast", "fp8", "Float8", "MXFP8", "amax history", "amax_history")
PLAIN_STATS = (
    "amax",
    "rms",
    "nan_count",
    "inf_count",
    "grad_norm",
    "update_ratio",
    "unchanged_pct",
    "zero_pct",
)
ANY_PRECISION = {"FS422", "FS501"}  # optimizer states and ranks have formats of their own
SCALE_CAUSES = {"stale_scale_saturation", "amax_history_poisoning", "scale_state_fault", "quantization_drift"}


@cache
def judged() -> tuple[tuple[str, Case, dict[str, Any]], ...]:
    return tuple((name, case, diagnose(case)) for name, case in all_cases())


def findings() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, _, verdict in judged():
        for finding in alarms(verdict):
            yield name, finding


def test_every_cause_is_found_in_some_case() -> None:
    assert {f["cause"] for _, f in findings()} == set(FAMILY_OF)


@pytest.mark.parametrize("cause", sorted(KINDS))
def test_every_kind_is_found_in_some_case(cause: str) -> None:
    assert KINDS[cause] <= {f["kind"] for _, f in findings() if f["cause"] == cause}


def test_a_finding_that_names_a_tensor_says_in_which_order_it_is_the_first() -> None:
    for name, f in findings():
        if f["tensor"] is None:
            continue
        assert f["order"] in ("forward", "backward"), (name, f["rule"])
        if f["tensor"].endswith(("/grad_output", "/grad_input", "/grad_weight")):
            assert f["order"] == "backward", (name, f["rule"])


def test_advice_names_a_setting_for_every_framework_or_says_that_there_is_none() -> None:
    for name, f in findings():
        if f["cause"] != "undetermined":
            settings = {**f["remedy"]["settings"]}
            settings.setdefault("torchao", settings.get("pytorch", ""))  # where nothing is cast
            assert all(settings.get(framework) for framework in FRAMEWORKS), (name, f["rule"], settings)


def test_an_open_answer_names_two_hypotheses_and_the_test_between_them() -> None:
    for name, f in findings():
        if f["cause"] == "undetermined":
            assert len(f["alternatives"]) == 2, (name, f["rule"])
            assert f["decisive_test"]
        assert f["cause"] not in [a["cause"] for a in f["alternatives"]]


def test_evidence_and_summary_are_there_and_end_like_sentences() -> None:
    for name, f in findings():
        assert f["evidence"], (name, f["rule"])
        assert f["summary"].endswith("."), (name, f["summary"])
        assert f["decisive_test"].endswith("."), (name, f["decisive_test"])


def test_a_run_without_fp8_gets_no_advice_about_fp8() -> None:
    for name, case in all_cases():
        if {w.cause for w in case.want} & SCALE_CAUSES:
            continue
        for f in alarms(diagnose(in_bf16(case))):
            if f["rule"] in ANY_PRECISION:
                continue
            text = f["remedy"]["text"] + " ".join(f["remedy"]["settings"].values()) + f["decisive_test"]
            assert not [w for w in FP8_WORDS if w in text], (name, f["rule"], text)


def in_bf16(case: Case) -> Case:
    """The same numbers from a run in BF16: no scale, and nothing that only a scaled cast has."""
    info = {**case.info, "recipe": {"name": "bf16"}}
    info["tensors"] = {n: {**t, "format": "bf16"} for n, t in dict(case.info.get("tensors", {})).items()}
    rows = [dict(row) for row in case.rows]
    for row in rows:
        if "tensors" in row:
            row["tensors"] = {
                n: {k: v for k, v in stats.items() if k in PLAIN_STATS} for n, stats in row["tensors"].items()
            }
    return replace(case, info=info, rows=rows)


@pytest.mark.parametrize("only", [("loss", "grad_norm"), ("loss",)], ids="+".join)
def test_from_loss_and_gradient_norm_alone_nothing_is_concluded_that_needs_more(
    only: tuple[str, ...],
) -> None:
    certain = {"dead_logits", "masked_nonfinite", "invalid_input"}  # seen in these numbers, or in the crash
    for name, case in all_cases():
        rows = [{k: v for k, v in row.items() if k in ("step", "rank", *only)} for row in case.rows]
        info = {
            k: v for k, v in case.info.items() if k in ("name", "vocab_size", "ranks", "status", "reason")
        }
        bare = replace(case, info=info, rows=rows)
        for f in alarms(diagnose(bare)) + alarms(diagnose(bare, calibration=fitted())):
            assert f["cause"] in certain | {"undetermined"}, (name, f["rule"], f["cause"])
            assert f["tensor"] is None


@pytest.mark.parametrize("stride", [4])
def test_where_steps_are_skipped_in_the_log_only_logged_steps_are_named(stride: int) -> None:
    for name, case in all_cases():
        rows = [row for row in case.rows if row["step"] % stride == 0]
        verdict = diagnose(replace(case, rows=rows))
        logged = {row["step"] for row in rows} | {None}
        assert verdict["last_clean_step"] in logged, name
        for f in alarms(verdict):
            if f["kind"] != "id_out_of_range":  # a step that dies is never logged
                assert f["onset_step"] in logged, (name, f["rule"])
                assert f["detected_step"] in logged, (name, f["rule"])


def test_every_page_has_every_heading() -> None:
    for file, text in pages().items():
        if file.startswith("FS"):
            assert [h for h in HEADINGS if f"## {h}" not in text] == [], file


def test_every_page_has_the_settings_and_the_test_that_its_findings_carry() -> None:
    texts = pages()
    for name, f in findings():
        words = [w for w in f["remedy"]["settings"].values() if f["rule"] != "FS901"]
        if f["cause"] != "undetermined" and "{" not in f["decisive_test"]:
            words.append(f["decisive_test"] if f["rule"] != "FS302" else "")
        page = " ".join(texts[f"{f['rule']}.md"].split())
        assert not [w for w in words if w not in page], (name, f["rule"])


def test_advice_about_a_wrong_scale_is_about_its_kind() -> None:
    settings = {f["kind"]: f["remedy"]["settings"] for _, f in findings() if f["rule"] == "FS203"}
    assert {k for k, s in settings.items() if "amax_reduction_group" in s["transformer_engine"]} == {
        "reduction_group"
    }
    assert {k for k, s in settings.items() if "load _extra_state" in s["transformer_engine"]} == {
        "lost_at_resume"
    }


@pytest.mark.parametrize(
    ("tensor", "made"),
    [
        ("h.1.attn.c_proj/input", True), ("layers.0.self_attention.linear_proj/input", True),
        ("blocks.0.attn.qkv/input", False), ("layers.0.attention.wq/input", False),
        ("blocks.0.mlp.fc2/input", False), ("h.1.attn.c_proj/weight", False),
    ],
)  # fmt: skip
def test_what_attention_made_is_the_input_of_its_projection(tensor: str, made: bool) -> None:
    assert attention_output(tensor) is made


def test_a_scale_that_is_none_is_shown_as_it_is() -> None:
    for name, f in findings():
        if f["kind"] in ("nonfinite_scale", "degenerate_amax") and f["evidence"][0]["signal"] == "scale":
            assert f["evidence"][0]["value"] in ("NaN", "Infinity", 0.0), name
            assert " is infinite " in f["summary"] or " is NaN " in f["summary"] or " not pos" in f["summary"]


def test_of_several_poisoned_tensors_the_worst_share_is_not_said_of_the_first() -> None:
    poisoned = [f for _, f in findings() if f["rule"] == "FS202" and "poisoned the amax" in f["summary"]]
    assert poisoned
    for f in poisoned:
        if f["affected_tensors"] > 1 and " more," in f["summary"]:
            assert "of its values" not in f["summary"]
        else:
            assert "up to" not in f["summary"].partition(" for up to")[0]


def test_the_search_for_a_loss_scale_is_called_normal_and_raises_no_alarm() -> None:
    verdict = next(v for name, _, v in judged() if name.endswith("the search at the start is normal"))
    assert verdict["status"] in ("healthy", "watch")
    notes = [f for f in verdict["findings"] if f["severity"] == "info"]
    assert any("normal" in f["summary"] for f in notes), notes


def test_overflow_below_a_loss_scale_of_one_is_called_what_it_is() -> None:
    verdict = next(v for name, _, v in judged() if name.endswith("the scale halves at every step"))
    assert "NaN or Inf in the backward, not the range" in alarms(verdict)[0]["summary"]


def test_a_rate_that_stays_too_high_is_not_over() -> None:
    verdict = next(v for name, _, v in judged() if name == "lr_divergence: rate x20")
    assert alarms(verdict)[0]["resolved_step"] is None


def test_a_count_of_bad_values_is_that_of_the_tensor_named() -> None:
    for name, case, verdict in judged():
        for f in alarms(verdict):
            for e in f["evidence"]:
                if e["signal"] != "nan_count + inf_count" or e["tensor"] is None or e["value"] is None:
                    continue
                row = next(r for r in case.rows if r["step"] == e["step"])
                stats = row["tensors"][e["tensor"]]
                assert e["value"] == stats.get("nan_count", 0.0) + stats.get("inf_count", 0.0), name


def without(case: Case, *stats: str) -> Case:
    """The case with some statistics not logged."""
    rows = [dict(row) for row in case.rows]
    for row in rows:
        if "tensors" in row:
            row["tensors"] = {
                n: {k: v for k, v in t.items() if k not in stats} for n, t in row["tensors"].items()
            }
    return replace(case, rows=rows)


def test_scales_and_amaxes_are_enough_where_shares_and_noise_are_not_logged() -> None:
    for name, case in all_cases():
        if name.partition(":")[0] in (
            "stale_scale_saturation",
            "amax_history_poisoning",
            "scale_state_fault",
        ):
            known = {w.cause for w in case.want if w.kind != "stale_fp8_copy"}  # seen in sqnr_db only
            found = {
                f["cause"]
                for f in alarms(diagnose(without(case, "overflow_pct", "underflow_pct", "sqnr_db")))
            }
            assert found <= known | {"undetermined"}, (name, found)
            assert bool(found) == bool(known), (name, found)


def test_a_loss_that_is_nan_is_enough_where_bad_values_are_not_counted() -> None:
    for name, case in all_cases():
        if not any(isinstance(r.get("loss"), float) and r["loss"] != r["loss"] for r in case.rows):
            continue
        onsets = [f["onset_step"] for f in alarms(diagnose(without(case, "nan_count", "inf_count")))]
        first = min(w.onset[1] for w in case.want)
        assert onsets, name
        assert min(onsets) <= first + 1, (name, onsets)


def test_the_evidence_of_a_frozen_scale_says_which_side_it_is_on() -> None:
    (case,) = (c for n, c in all_cases() if n.endswith("too low, then too high"))
    (found,) = alarms(diagnose(case))
    low, high = (e for e in found["evidence"] if e["signal"] == "scale against the shadow scale, log2")
    assert low["value"] < 0.0 < high["value"]
    assert low["step"] < high["step"]
    assert found["onset_window"][0] <= FROZEN_AT + 1 <= found["onset_step"] < high["step"]
    assert f"since step {found['onset_step']}" in found["summary"]
