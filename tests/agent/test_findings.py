"""What the diagnosis says reaches the training loop: once per change, and only as far as it was judged."""

from __future__ import annotations

from typing import Any

import pytest

from floatscope.findings import FindingBoard
from floatscope.look import GLANCE, SAMPLE
from floatscope.protocol.judgement import MOST_FINDINGS, BriefFinding, Judgement
from floatscope.schedule import MOST_SUSPECTS, Schedule


def finding(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a",
        "family": "scale_calibration_blowup",
        "cause": "stale_scale_saturation",
        "severity": "critical",
        "state": "raised",
        "summary": "the scale is stale",
        "confidence": 0.9,
        "onset_step": 5,
        **changes,
    }


def judged(step: int, *findings: dict[str, Any]) -> Judgement:
    verdict = {"status": "critical" if findings else "healthy", "findings": list(findings)}
    return Judgement.of_verdict(verdict, judged_step=step)


def test_a_change_is_told_once() -> None:
    board = FindingBoard()
    board.post(judged(6, finding()))
    board.post(judged(7, finding()))
    assert [found.id for found in board.take_new()] == ["a"]
    board.post(judged(8, finding(state="worsened")))
    assert [found.state for found in board.take_new()] == ["worsened"]
    assert board.take_new() == []


def test_a_step_is_clean_only_when_it_was_judged() -> None:
    board = FindingBoard()
    assert board.is_clean(0) is None
    board.post(judged(6, finding()))
    assert [board.is_clean(step) for step in (4, 5, 6, 7)] == [True, False, False, False]
    board.post(judged(9, finding(state="recovered")))
    assert [board.is_clean(step) for step in (5, 9, 10)] == [True, True, None]


def test_what_comes_from_outside_is_checked() -> None:
    bad = [None, 3, {}, finding(id=3), finding(severity="loud"), "x"]
    many = [finding(id=str(n), severity="info") for n in range(40)]
    found = Judgement.from_json({"status": "watch", "judged_step": -1, "findings": [*bad, *many, finding()]})
    assert found is not None
    assert found.judged_step is None
    assert len(found.findings) == MOST_FINDINGS
    assert found.findings[0].severity == "critical", "the worst first"
    assert Judgement.from_json(found.to_json()) == found
    bad_values: list[Any] = [None, [], "x", {"status": "fine"}]
    for value in bad_values:
        assert Judgement.from_json(value) is None
    odd = BriefFinding.from_json(finding(confidence=float("nan"), onset_step=True, layer=7))
    assert odd is not None
    assert (odd.confidence, odd.onset_step, odd.layer) == (None, None, None)


@pytest.mark.parametrize("layers", [[], None, "x", ["x"] * (MOST_SUSPECTS + 1)])
def test_a_wish_without_layers_means_all_of_them(layers: Any) -> None:
    schedule = Schedule(10)
    schedule.ask({"stats_every": 1, "until_step": 5, "layers": layers})
    assert schedule.look(3) == SAMPLE
    assert schedule.look(6) == GLANCE


def test_suspects_are_looked_at_beside_the_usual_cadence() -> None:
    schedule = Schedule(10)
    schedule.ask({"stats_every": 2, "until_step": 12, "layers": ["a", 3, "b"]})
    close = schedule.look(4)
    assert not close.is_sampled
    assert [close.wants(layer) for layer in ("a", "b", "c")] == [True, True, False]
    assert schedule.look(10).is_sampled
    assert schedule.look(10).suspects == {"a", "b"}
    assert schedule.look(5) == GLANCE
    assert schedule.look(14) == GLANCE
