"""The comparison's page in each of its states, from documents of the real engine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from floatscope_dashboards.compare_page import choose_page, compare_page
from floatscope_dashboards.compare_view import (
    AskedLimits,
    Choice,
    ChooseView,
    ComparedRun,
    CompareView,
    EvalPair,
    PairNote,
    PresetChoice,
    Suggestion,
)
from floatscope_dashboards.compare_words import ends_beside, nats
from floatscope_dashboards.difference_figure import difference_frame
from floatscope_dashboards.go_limits import limit_fields, limit_summary
from floatscope_dashboards.go_words import GateLine, decision, eval_lines, gate_lines, quality_words
from floatscope_dashboards.page import Shell
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.theme import resolve
from floatscope_diagnostics.compare.document import document
from floatscope_diagnostics.compare.go import decide
from floatscope_diagnostics.compare.health import Health, Warned
from floatscope_diagnostics.compare.judge import Settings, compare
from floatscope_diagnostics.compare.limits import Limits, with_presets
from floatscope_diagnostics.verdict import plain_object
from tests.dashboards.sample import HOSTILE, NOW
from tests.dashboards.showing import Shown
from tests.diagnostics.compare.logs import Rows, pair_of, rows_of, side

HEALTHY = Health("healthy")
LOSS_ALONE = with_presets((), {"min_saving_pct": -900.0})
"""Limits that any speed keeps."""


@pytest.fixture(scope="module")
def shown() -> Shown:
    return Shown()


def run(name: str, **more: Any) -> ComparedRun:
    given = ComparedRun(name, name, "p", "FP8 delayed scaling", "finished", "healthy", 0, 399)
    return replace(given, **more)


def view(
    rows: tuple[Rows, Rows] | None,
    *,
    limits: Limits = LOSS_ALONE,
    health: Health | None = HEALTHY,
    **more: Any,
) -> CompareView:
    found = None
    if rows is not None:
        own, other = (side(some, label=label) for some, label in zip(rows, ("fp8", "bf16"), strict=True))
        compared = compare(own, other, Settings())
        go = decide(compared, limits, health=(health, HEALTHY))
        found = document(compared) | {"go": plain_object(go.to_json())}
    made = CompareView(
        run=run("fp8", open_findings=0),
        base=run("bf16", open_findings=0),
        document=found,
        why_not="" if found else "Run 'bf16' logs no loss.",
        notes=(),
        rows=(400, 400),
        margin=0.01,
        first=None,
        last=None,
        corrected=(),
        now=NOW,
    )
    return replace(made, **more)


def apart(by: float, steps: int = 400, noise: float = 0.01, *, faster: float = 1.25) -> tuple[Rows, Rows]:
    """A pair whose losses differ by this and whose run takes ``1 / faster`` of the time."""
    own, base = pair_of(np.full(steps, by), noise=noise)
    times = np.random.default_rng(3).normal(1.0, 0.01, steps)
    return (
        [{**row, "step_time_s": float(t)} for row, t in zip(own, times, strict=True)],
        [{**row, "step_time_s": faster * float(t)} for row, t in zip(base, times, strict=True)],
    )


STATES = (
    (
        apart(0.0),
        "Go",
        "Go: fp8 keeps to your limits against bf16 and is 1.25\u00d7 as fast",
        "Go, for these",
    ),
    (
        apart(0.1),
        "No go",
        "No go: the loss of fp8 is above that of bf16 by 0.10\u202fnats",
        "No-go, for these",
    ),
    (apart(-0.1), "Go", "Go: fp8 keeps to your limits", "Go, for these"),
    (apart(0.006, 300, 0.15), "Not yet", "Not yet: about ", "Not yet: these"),
    (apart(0.0, 1), "Not yet", "Not yet", "step"),
)


@pytest.mark.parametrize(("rows", "word", "title", "why"), STATES)
def test_the_decision_in_words(
    rows: tuple[Rows, Rows], word: str, title: str, why: str, shown: Shown
) -> None:
    found = decision(view(rows), shown.say)
    assert (found.word, title in found.title, why in found.why) == (word, True, True), found
    html = shown.page(compare_page(view(rows), shown.say), now=NOW)
    assert 'id="difference"' in html
    assert f"{found.word}: </span>" in html


def gate(found: CompareView, name: str, shown: Shown) -> GateLine:
    return next(line for line in gate_lines(found, shown.say) if line.name == name)


def test_every_gate_has_its_state_its_number_and_its_limit(shown: Shown) -> None:
    found = view(apart(0.0), limits=with_presets(["throughput-30"], {"margin_nats": 0.05}))
    lines = gate_lines(found, shown.say)
    assert [line.name for line in lines] == [
        "loss", "drift", "held_out", "evals", "stability", "fp8_health", "speed", "cost",
    ]  # fmt: skip
    loss, speed = gate(found, "loss", shown), gate(found, "speed", shown)
    assert (loss.word, loss.kind) == ("Passes", "ok")
    assert loss.value.endswith("\u202fnats")
    assert loss.note.endswith("limit 0.05\u202fnats")
    assert (speed.word, speed.value) == ("Fails", "1.25\u00d7")
    assert "limit 1.30\u00d7" in speed.note
    assert gate(found, "evals", shown).word == "Not checked"
    said = decision(found, shown.say)
    assert said.title == "No go: fp8 is not as fast as you ask for"
    assert speed.sentence in said.why
    html = shown.page(compare_page(found, shown.say), now=NOW)
    assert html.count("<dt><span") == len(lines)
    assert "Held against: a loss at most 0.05\u202fnats higher" in html


def test_growth_that_is_not_excluded_has_no_tick(shown: Shown) -> None:
    found = view(apart(0.0))
    drift = gate(found, "drift", shown)
    assert (drift.kind, drift.word) == ("dots", "Not decided yet")
    assert drift.note.startswith("carried on: ")
    assert decision(found, shown.say).word == "Go"
    unjudged = decision(view(apart(0.0), health=None), shown.say)
    assert unjudged.title == "Not yet: what the decision needs was not measured"


def test_a_number_of_steps_is_the_title_only_where_steps_decide_all(shown: Shown) -> None:
    noisy = apart(0.006, 300, 0.15)
    assert "more steps would decide" in decision(view(noisy), shown.say).title
    unjudged = decision(view(noisy, health=None), shown.say)
    assert unjudged.title == "Not yet: Loss difference is not decided"
    assert any("For the loss: about " in text for text in unjudged.remarks)


def test_times_of_an_emulation_have_no_change(shown: Shown) -> None:
    speeds = {"step_time_s": 0.5, "skipped_steps": 3.0}
    base = run("bf16", speeds={"step_time_s": 0.4})
    found = view(apart(0.0), run=run("fp8", speeds=speeds), base=base)
    assert found.document is not None
    refused = [{"code": "emulated", "sentence": "RUN emulates its FP8 casts.", "blocks": False}]
    emulated = replace(found, document={**found.document, "go": {**found.document["go"], "refused": refused}})
    html = shown.page(compare_page(found, shown.say), now=NOW)
    assert "+25\u202f%" in html
    html = shown.page(compare_page(emulated, shown.say), now=NOW)
    assert "+25\u202f%" not in html
    assert "its times are those of the emulation" in html


def test_a_pair_that_cannot_be_decided_shows_no_gate_that_was_not_looked_at(shown: Shown) -> None:
    found = view(apart(0.0))
    assert found.document is not None
    gates = [
        {"name": "loss", "state": "not_checked", "sentence": ""},
        {"name": "fp8_health", "state": "pass", "sentence": "No finding.", "value": 0.0},
    ]
    go = {**found.document["go"], "decidable": False, "gates": gates}
    refused = replace(found, document={**found.document, "go": go})
    assert [line.label for line in gate_lines(refused, shown.say)] == ["FP8 health"]
    assert "Your limits" in shown.page(compare_page(found, shown.say), now=NOW)
    html = shown.page(compare_page(refused, shown.say), now=NOW)
    assert "Not checked" not in html
    assert "Your limits" not in html


def test_a_critical_finding_is_no_go_whatever_the_loss_says(shown: Shown) -> None:
    found = view(apart(0.0), health=Health("critical", ("Scale too old, values clip",)))
    assert decision(found, shown.say).title == "No go: fp8 has critical findings"
    assert gate(found, "fp8_health", shown).word == "Fails"
    unjudged = view(apart(0.0), health=None)
    assert decision(unjudged, shown.say).word == "Not yet"
    assert gate(unjudged, "fp8_health", shown).word == "Not checked"


def test_an_open_warning_of_the_precision_is_not_yet(shown: Shown) -> None:
    clips = Warned("stale_scale_saturation", "fc1/input clips", "Use current scaling")
    found = view(apart(0.0), health=Health("warning", warnings=("fc1/input clips",), of_precision=(clips,)))
    said = decision(found, shown.say)
    assert said.title == "Not yet: fp8 still has a fault of its number formats"
    assert "fc1/input clips" in said.why
    assert any("Use current scaling" in text for text in said.remarks)
    assert gate(found, "fp8_health", shown).word == "Not decided yet"
    html = Shown(language="zh-CN").page(compare_page(found, Shown(language="zh-CN").say), now=NOW)
    assert "数值格式仍有未消除的故障" in html


def test_open_findings_are_said_beside_a_go(shown: Shown) -> None:
    found = decision(view(apart(0.0), run=run("fp8", open_findings=2)), shown.say)
    assert found.word == "Go"
    assert found.remarks[0].startswith("The loss does not show it, but fp8 has 2 findings")


def test_a_loss_that_is_lost_is_said(shown: Shown) -> None:
    own, base = apart(0.0)
    broken = [{**row, "loss": math.nan if row["step"] >= 200 else row["loss"]} for row in own]
    found = decision(view((broken, base)), shown.say)
    assert found.title == "No go: the loss of fp8 is not finite"
    once = [{**row, "loss": math.nan if row["step"] == 7 else row["loss"]} for row in own]
    said = decision(view((once, base)), shown.say).remarks
    assert "The loss of fp8 was not finite on 1 step, first at 7; such steps are left out." in said


def test_the_interval_is_told_from_a_limit_that_it_reaches_across() -> None:
    assert ends_beside(0.01973, 0.0262, 0.02) == ("+0.0197", "+0.0262")
    assert ends_beside(0.02, 0.0262, 0.02) == ("+0.020", "+0.026")
    assert ends_beside(-0.0201, 0.001, 0.02) == ("\u22120.0201", "+0.00100")
    assert ends_beside(0.004, 0.007, 0.02) == ("+0.0040", "+0.0070")


def test_what_keeps_a_pair_from_being_decided_is_said_once(shown: Shown) -> None:
    notes = (
        PairNote("other_batch", "batch_size", "8", "16"),
        PairNote("other_project", "", "p", "q"),
    )
    said = decision(view(apart(0.0), notes=notes), shown.say).remarks
    assert [text.split()[0] for text in said[-2:]] == ["batch_size", "The"]
    other = np.random.default_rng(9).normal(2.0, 0.3, 400)
    unlike = view((apart(0.0)[0], rows_of(other.tolist())))
    told = decision(unlike, shown.say)
    assert told.title == "fp8 and bf16 cannot be decided as they are"
    assert (told.word, told.big) == ("Cannot be decided", "")
    assert "did not see the same batches" in told.why
    assert not any("Not paired" in text for text in told.remarks)
    chinese = Shown(language="zh-CN").say
    assert any("did not see" not in text for text in decision(unlike, chinese).remarks)
    shorter = view((apart(0.0)[0], apart(0.0)[1][:300]), base=run("bf16", last_step=299))
    assert any("299" in text for text in decision(shorter, shown.say).remarks)


def test_limits_are_fields_that_say_what_is_used(shown: Shown) -> None:
    asked = AskedLimits({"min_speedup": "1.2"}, (PresetChoice("cost-25", "at least 25 % less cost"),))
    found = replace(view(apart(0.0), limits=with_presets((), {"min_speedup": 1.2})), limits=asked)
    fields = {item.name: item for item in limit_fields(found, shown.say)}
    assert (fields["min_speedup"].value, fields["margin"].value) == ("1.2", "")
    assert 0 < float(fields["margin"].used) <= 0.01
    page = compare_page(found, shown.say)
    assert page.data is not None
    assert page.data["limits"] == {"min_speedup": "1.2"}
    html = shown.page(page, now=NOW)
    assert 'name="min_speedup"' in html
    assert "min_speedup=1.2" in html  # of the report and of the other way round
    assert "at least 1.2\u00d7 the throughput" in limit_summary(found, shown.say)


def test_what_a_loss_difference_costs_and_evaluations_side_by_side(shown: Shown) -> None:
    found = view(apart(0.004), evals=(EvalPair("eval_accuracy", 390, 0.51, 0.52),))
    html = shown.page(compare_page(found, shown.say), now=NOW)
    assert "eval_<wbr>accuracy" in html
    assert found.document is not None
    go = dict(found.document["go"])
    go["quality"] = {
        "extra_tokens_pct": 4.05,
        "extra_tokens_low_pct": 1.0,
        "extra_tokens_high_pct": 7.0,
        "net_speedup": 1.2,
        "net_low": 1.1,
        "net_high": 1.25,
    }
    row = {"name": "mmlu", "run": 61.0, "baseline": 62.0, "difference": -1.0, "low": -2.5, "high": 0.4}
    go["evals"] = [{**row, "n": 1000, "state": "undecided"}]
    told = replace(found, document={**found.document, "go": go})
    assert quality_words(told, shown.say) == (
        "To make up for its loss difference the run needs 4.0\u202f% more tokens (1.0 to 7.0). At equal "
        "loss it is 1.20\u00d7 as fast (1.10 to 1.25)."
    )
    (line,) = eval_lines(told, shown.say)
    assert (line.difference, line.interval, line.word) == (
        "\u22121.00",
        "\u22122.50 to +0.40",
        "Not decided yet",
    )
    assert "mmlu" in shown.page(compare_page(told, shown.say), now=NOW)


def test_settings_differ_and_names_stay_names(shown: Shown) -> None:
    own = run(
        HOSTILE, config={"lr": "0.1", HOSTILE: HOSTILE}, speeds={"step_time_s": 0.5, "skipped_steps": 3.0}
    )
    base = run("bf16", config={"lr": "0.1"}, speeds={"step_time_s": 0.4})
    html = shown.page(compare_page(view(apart(0.0), run=own, base=base), shown.say), now=NOW)
    assert "<script>window" not in html
    assert "<img" not in html
    assert "1 of 2 settings" in html
    assert "1 setting is equal" in html
    assert "+25\u202f%" in html


def test_a_tensor_that_parts_leads_to_its_page(shown: Shown) -> None:
    own, base = apart(0.0, 100)
    tensors = {"a.fc1/input": {"amax": 2.0}, "a.fc2/input": {"amax": 2.0}}
    broken = {**tensors, "a.fc2/input": {"amax": 64.0}}
    rows = (
        [{**row, "tensors": broken if row["step"] >= 50 else tensors} for row in own],
        [{**row, "tensors": tensors} for row in base],
    )
    found = view(rows)
    html = shown.page(compare_page(found, shown.say), now=NOW)
    assert 'href="/runs/fp8/tensors/a.fc2%2Finput?at=50"' in html
    waiting = compare_page(replace(found, rows=None), shown.say)
    assert waiting.data is not None
    assert waiting.data["tensors_wait"] is True
    assert "they are looked at now" in shown.page(waiting, now=NOW)
    part = shown.page(compare_page(replace(found, rows=(10, 100)), shown.say), now=NOW)
    assert "Of 100 steps with statistics 10 were read" in part


def test_nothing_to_compare_is_a_page_that_says_why(shown: Shown) -> None:
    html = shown.page(compare_page(view(None), shown.say), now=NOW)
    assert "These two runs cannot be compared" in html
    assert "Run &#39;bf16&#39; logs no loss." in html
    assert 'href="/compare?run=fp8"' in html
    assert 'id="difference"' not in html


def test_only_who_may_write_sets_a_baseline() -> None:
    pages = Pages()
    say = pages.say("en")
    page = compare_page(view(apart(0.0)), say)
    reader = pages.show(page, Shell(say, "0", NOW, may=frozenset({"read"})))
    writer = pages.show(page, Shell(say, "0", NOW, may=frozenset({"read", "write"})))
    assert 'id="set-baseline"' not in reader
    assert "Your token may only read." in reader
    assert 'id="set-baseline"' in writer
    own = compare_page(view(apart(0.0), run=run("fp8", baseline="bf16")), say)
    assert "Is its baseline" in pages.show(own, Shell(say, "0", NOW, may=frozenset({"write"})))


def choices(**more: Any) -> ChooseView:
    item = Choice("fp8", HOSTILE, "p", "", 9, "healthy", "running")
    base = replace(item, run_id="bf16", name="bf16")
    made = ChooseView((item, base), (Suggestion(item, base),), 2, "", "", "", (), False, (), NOW)
    return replace(made, **more)


def test_choosing_two_runs(shown: Shown) -> None:
    html = shown.page(choose_page(choices(), shown.say), now=NOW)
    assert 'href="/compare?run=fp8&amp;baseline=bf16"' in html
    assert "<script>window" not in html
    picked = shown.page(choose_page(choices(run_id="fp8", query="x"), shown.say), now=NOW)
    assert 'name="run" value="fp8" aria-label' in picked
    assert picked.count(" checked") == 1
    assert 'type="hidden" name="run" value="fp8"' in picked
    told = choices(missing=("gone",), same=True, corrected=("margin=abc",))
    html = shown.page(choose_page(told, shown.say), now=NOW)
    assert "There is no run gone; it may have been deleted." in html
    assert "A run differs from itself by nothing" in html
    assert "margin=abc in the address cannot be used" in html
    nothing = shown.page(choose_page(choices(choices=(), total=0), shown.say), now=NOW)
    assert "There is no run yet" in nothing
    none = shown.page(choose_page(choices(choices=(), query="zz"), shown.say), now=NOW)
    assert "No run matches." in none


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_frame_is_a_valid_figure_and_names_stay_names(theme: str, shown: Shown) -> None:
    frame = difference_frame(HOSTILE, "bf16", shown.say)
    figure = go.Figure(resolve(frame, theme))
    assert len(figure.data) == 8
    assert "<script" not in str(figure.layout.annotations)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0018, "+0.0018"), (-0.12345, "\u22120.12"), (0.0, "0"), (3.2e-5, "+0.000032"), (12.0, "+12.00")],
)
def test_differences_keep_two_digits(value: float, text: str) -> None:
    assert nats(value) == text
