"""What the decision says: all that is open, nothing twice, nothing that contradicts what stands beside it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from floatscope_diagnostics.compare.drift import drift_of
from floatscope_diagnostics.compare.go import decide
from floatscope_diagnostics.compare.go_page import go_page
from floatscope_diagnostics.compare.judge import Settings, compare
from floatscope_diagnostics.compare.limits import with_presets
from floatscope_diagnostics.compare.loss_gates import drift_gate
from floatscope_diagnostics.compare.report import report
from floatscope_diagnostics.compare.settled import Settled
from floatscope_diagnostics.reports.terminal import style_of
from tests.diagnostics.compare.logs import autoregressive
from tests.diagnostics.compare.pairs import SPEED, USUAL, WELL, falling, pair, rows, side


def printed(text: str) -> str:
    """Without the breaks of the lines."""
    return " ".join(text.split())


def test_so_many_steps_are_named_only_where_they_decide_all_that_is_open() -> None:
    noisy = pair(0.0, n=400, noise=0.15)
    known = decide(noisy, SPEED, health=WELL)
    assert known.more_steps == known.gate("loss").more_steps
    unjudged = decide(noisy, SPEED, health=(None, None))
    assert (unjudged.verdict, unjudged.more_steps) == ("not_yet", None)
    assert unjudged.next_step.startswith("Diagnose the run's log")
    more = unjudged.gate("loss").more_steps
    assert f"For the loss: about {more:,} more steps of both runs" in unjudged.next_step


def test_what_keeps_nothing_open_is_not_what_to_do_next() -> None:
    made = decide(pair(eval_loss=[None if k % 40 else 2.4 for k in range(800)]), USUAL)
    assert made.next_step.startswith("Diagnose")


def test_growth_that_is_not_excluded_has_no_tick_and_keeps_nothing_open() -> None:
    go = decide(pair(), USUAL, health=WELL)
    drift = go.gate("drift")
    assert drift.limit is not None
    assert drift.high is not None
    assert drift.high > drift.limit
    assert (go.verdict, drift.state, drift.blocks) == ("go", "undecided", False)
    assert "a slow one is not excluded" in drift.sentence
    assert go.sentence.endswith("A gap that grows slowly is not excluded.")
    short = decide(pair(), with_presets((), {"planned_steps": 801}), health=WELL)
    assert short.gate("drift").state == "pass"
    assert "nor one past the margin at the planned end" in short.gate("drift").sentence
    assert "not excluded" not in short.sentence


def test_a_line_past_the_margin_is_left_open() -> None:
    """Its slope is above 0 for certain, its second half is not above the first for certain."""
    part = Settled(
        np.arange(450),
        np.linspace(0.0, 0.0015, 450) + 0.004 * autoregressive(450, 0.0, 8),
        0,
        449,
        None,
        False,
        1,
    )
    found = drift_of(part, 0.006, planned_last_step=None)
    assert found is not None
    assert (found.grows, found.may_grow) == (False, True)
    gate = drift_gate(found, 0.006, None)
    assert (gate.state, gate.blocks) == ("undecided", True)
    assert "its halves do not for certain" in gate.sentence
    near = drift_of(part, 0.006, planned_last_step=500)
    assert near is not None
    assert not near.may_grow


def test_a_reason_is_printed_once() -> None:
    base = side(rows(falling(400, 5), seconds=1.0), label="one")
    c = compare(base, base, Settings())
    go = decide(c, USUAL, health=WELL)
    why = "a run cannot be held against itself"
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        text = report(c, style_of(nowhere, {}), go)
    assert printed(text).count(why) == 1
    assert go_page(c, go).count(why) == 1


def test_both_margins_are_explained_where_they_stand() -> None:
    c = pair()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        style = style_of(nowhere, {})
    text = printed(report(c, style, decide(c, USUAL, health=WELL)))
    assert (
        "by chance (0.02 nats), over all steps or the last part; the decision above is held against" in text
    )
    assert "90 % interval of steps 80 to 799" in text
    same = decide(c, with_presets((), {"margin_nats": 0.02}), health=WELL)
    assert "the decision above has the same margin and counts from step 80 on" in printed(
        report(c, style, same)
    )


@pytest.mark.parametrize(("start", "end", "word"), [(0.1, -0.1, "below"), (-0.1, 0.1, "above")])
def test_a_difference_that_turned_is_said(start: float, end: float, word: str) -> None:
    c = pair(np.concatenate([np.full(500, start), np.full(500, end)]), n=1000)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        style = style_of(nowhere, {})
    said = f"it has turned since: on the judged steps RUN is {word} BASELINE"
    assert said in printed(report(c, style))
    assert "it has turned" not in printed(report(pair(end, n=300), style))
