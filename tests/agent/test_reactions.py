"""What a loop does about findings: real loops, judged by the local diagnosis and by a real server."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import SecretStr

import floatscope
from floatscope.config import from_env
from floatscope.findings import MOST_KNOWN, FindingBoard
from floatscope.guard import Guard
from floatscope.protocol.judgement import BriefFinding, Judgement
from floatscope.reactions import Reactions
from floatscope_server.settings import Settings
from tests.server.live import TOKEN, in_process

ONSET = 60
MOST_STEPS = 3_000  # half a minute: the diagnosis shares a busy machine
SETTLED = 10
Watch = Callable[..., floatscope.Monitor]


@pytest.fixture(params=["local", "server"])
def watch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watch]:
    """Opens monitors that are judged in this process, or by a real server over HTTP."""
    options: dict[str, Any] = {"run": "loop", "gpu": False, "strict": True, "clean_after": SETTLED}
    options |= {"stats_every": 1, "flush_every_s": 0.0, "recorder_steps": 0}
    if request.param == "local":
        yield lambda **more: floatscope.watch(
            **{**options, "mode": "local", "log_path": tmp_path / "run.jsonl", **more}
        )
        return
    (tmp_path / "data").mkdir()
    settings = Settings(data_dir=tmp_path / "data", token=SecretStr(TOKEN), sqlite_synchronous="NORMAL")
    with in_process(settings) as client:
        url = f"http://127.0.0.1:{client.port}"
        yield lambda **more: floatscope.watch(
            **{**options, "mode": "server", "url": url, "token": TOKEN, **more}
        )


def values(step: int, *, fault_at: float = math.inf) -> dict[str, Any]:
    noise = np.random.default_rng(step).normal(0, 0.01)
    return {"loss": math.nan if step >= fault_at else 3 - 0.001 * step + noise, "grad_norm": 1 + noise}


def wait_for(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def train(
    monitor: floatscope.Monitor,
    *,
    first: int = 0,
    fault_at: float = math.inf,
    until: Callable[[int], bool],
) -> int:
    """Steps of 10 ms until ``until`` says so of the step done; returns it."""
    for step in range(first, first + MOST_STEPS):
        monitor.step(step, **values(step, fault_at=fault_at))
        if until(step):
            return step
        time.sleep(0.01)
    raise AssertionError(f"{MOST_STEPS} steps and it did not come to an end")


def test_a_faulty_run_stops_itself(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """should_stop turns true soon after the fault, not before, and stays so; the finding is said once."""
    monitor = watch()
    stopped = train(monitor, fault_at=ONSET, until=lambda step: monitor.should_stop)
    assert stopped >= ONSET
    assert monitor.findings[0].onset_step == ONSET
    monitor.step(**values(stopped + 1, fault_at=ONSET))
    assert monitor.should_stop
    monitor.finish("failed", "a finding asked to stop")
    assert monitor.should_stop
    said = [record.getMessage() for record in caplog.records if "CRITICAL" in record.getMessage()]
    assert len(said) == 1
    assert f"since step {ONSET}" in said[0]
    assert "What to do: " in said[0]


def test_a_healthy_run_is_not_stopped(watch: Watch) -> None:
    monitor = watch()
    train(monitor, until=lambda step: monitor.is_clean(100) is True)
    assert not monitor.should_stop
    assert monitor.findings == ()
    monitor.finish()


def test_checkpoints_before_the_fault_are_tagged_clean_and_none_after(watch: Watch) -> None:
    """A checkpoint every 5 steps, tagged as soon as is_clean says so."""
    monitor = watch(stop_on="never")
    waiting: list[int] = []
    clean: list[int] = []

    def tag(step: int) -> bool:
        if step % 5 == 4:
            waiting.append(step)
        for kept in [kept for kept in waiting if monitor.is_clean(kept)]:
            waiting.remove(kept)
            clean.append(kept)
        return step > ONSET + 40 and bool(monitor.findings)

    train(monitor, fault_at=ONSET, until=tag)
    assert clean == [step for step in range(4, ONSET, 5) if step < ONSET - SETTLED] or clean == list(
        range(4, ONSET, 5)
    )
    assert monitor.is_clean(ONSET - 1) is True
    assert [monitor.is_clean(step) for step in (ONSET, ONSET + 1, ONSET + 30)] == [False] * 3
    assert monitor.is_clean() is False
    assert monitor.is_clean(0) is True, "a step judged long ago"
    assert not monitor.should_stop
    monitor.finish()


def test_a_loop_that_rolls_back_goes_on_and_is_clean_again(watch: Watch) -> None:
    """Back to before the fault: should_stop is false again, the steps trained anew are judged and clean, and
    nothing about the steps that are gone comes late.
    """
    told: list[BriefFinding] = []
    monitor = watch(on_finding=told.append)
    peak = train(monitor, fault_at=ONSET, until=lambda step: monitor.should_stop)
    heard = len(told)
    back = ONSET - 15
    monitor.step(back, **values(back))
    assert not monitor.should_stop
    assert monitor.is_clean(back) in (None, True)
    last = train(monitor, first=back + 1, until=lambda step: step > peak and monitor.is_clean(peak) is True)
    assert not monitor.should_stop
    assert [f for f in told[heard:] if f.is_alarm] == []
    assert monitor.is_clean(ONSET) is True
    assert all(finding.rolled_back for finding in monitor.findings if finding.severity == "critical")
    stopped = train(monitor, first=last + 1, fault_at=last + 20, until=lambda step: monitor.should_stop)
    assert stopped >= last + 20
    assert monitor.is_clean(last) is True
    monitor.finish()


def test_a_loop_that_goes_back_to_after_the_fault_is_not_clean(watch: Watch) -> None:
    monitor = watch()
    train(monitor, fault_at=ONSET, until=lambda step: step > ONSET + 10 and monitor.should_stop)
    train(
        monitor,
        first=ONSET + 5,
        until=lambda step: step > ONSET + 25 and monitor.is_clean(ONSET - 1) is not None,
    )
    assert monitor.is_clean(ONSET + 6) is False
    assert monitor.is_clean(ONSET - 1) is True
    monitor.finish()


def test_a_resumed_run_is_not_stopped_by_what_stopped_it(watch: Watch) -> None:
    """Another process of the run, from a checkpoint before the fault: it goes on until a new fault comes."""
    monitor = watch(run_id="resumed")
    peak = train(monitor, fault_at=ONSET, until=lambda step: monitor.should_stop)
    monitor.finish("failed", "stopped")
    told: list[BriefFinding] = []
    monitor = watch(run_id="resumed", on_finding=told.append)
    last = train(monitor, first=ONSET - 10, until=lambda step: step > peak and monitor.is_clean(peak) is True)
    assert not monitor.should_stop
    assert [f for f in told if f.is_alarm] == []
    train(monitor, first=last + 1, fault_at=last + 5, until=lambda step: monitor.should_stop)
    monitor.finish()


def test_what_on_finding_raises_stays_inside(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_finding: BriefFinding) -> None:
        raise RuntimeError("a mistake in the callback")

    monitor = watch(on_finding=fail, strict=False)
    train(monitor, fault_at=ONSET, until=lambda step: monitor.should_stop)
    monitor.finish()
    said = [record.getMessage() for record in caplog.records if "on_finding failed" in record.getMessage()]
    assert len(said) == 1
    assert "a mistake in the callback" in said[0]


def test_on_finding_may_use_the_monitor(watch: Watch) -> None:
    """It may ask, log and finish; it cannot end a step inside the one that called it; after finish it is
    never called again.
    """
    seen: list[tuple[Any, ...]] = []

    def react(finding: BriefFinding) -> None:
        monitor.step(10_000, loss=1.0)
        monitor.batch([1, 2])
        monitor.log({"noticed": 1.0})
        seen.append((monitor.should_stop, monitor.is_clean(finding.onset_step), monitor.findings[0].id))
        monitor.finish("failed", "the callback has seen enough")
        monitor.finish()

    monitor = watch(on_finding=react)
    train(monitor, fault_at=ONSET, until=lambda step: bool(seen))
    assert len(seen) == 1
    assert seen[0][0] is True
    assert seen[0][1] is False
    for step in range(200, 220):
        monitor.step(step, **values(step, fault_at=0))
    time.sleep(0.3)
    assert len(seen) == 1


def test_a_slow_on_finding_loses_no_finding(watch: Watch) -> None:
    """While it takes its time the diagnosis goes on; each change is told once, in order."""
    told: list[tuple[str, str]] = []

    def sleep(finding: BriefFinding) -> None:
        time.sleep(0.3)
        told.append((finding.id, finding.state))

    monitor = watch(on_finding=sleep)
    train(monitor, fault_at=ONSET, until=lambda step: ("critical", "confirmed") in _states(monitor, told))
    assert len(told) == len(set(told))
    monitor.finish()


def _states(monitor: floatscope.Monitor, told: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Severity and state of what was told, as far as it still counts."""
    severity = {found.id: found.severity for found in monitor.findings}
    return {(severity[name], state) for name, state in told if name in severity}


def test_a_fresh_finding_is_looked_at_closely(tmp_path: Path) -> None:
    """With statistics every 1,000 steps every step after a fault is measured, and none after a rollback."""
    log = tmp_path / "run.jsonl"
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    monitor = floatscope.watch(
        model, run="loop", gpu=False, strict=True, stats_every=1000, flush_every_s=0.0, log_path=log
    )

    def train_step(step: int, **scalars: Any) -> None:
        model(torch.ones(2, 4))
        monitor.step(step, **scalars)

    for step in range(40):
        train_step(step, grad_norm=math.inf if step >= 30 else 1.0, loss=20.0 if step >= 30 else 3.0)
    wait_for(lambda: any(found.is_alarm for found in monitor.findings))
    for step in range(40, 60):
        train_step(step, loss=20.0, grad_norm=1.0)
    train_step(20, loss=3.0, grad_norm=1.0)
    wait_for(lambda: not any(found.counts for found in monitor.findings))
    for step in range(21, 40):
        train_step(step, loss=3.0, grad_norm=1.0)
    monitor.finish()
    rows = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    first, again = rows[:60], rows[60:]
    close = [row["step"] for row in first if "tensors" in row]
    assert close[0] == 0
    assert set(range(42, 60)) <= set(close)
    assert not {row["step"] for row in again if "tensors" in row} & set(range(26, 40))


def finding(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "id": name, "family": "kernel", "cause": "op_kernel_fault", "severity": "critical", "state": "raised",
        "summary": "NaN", "confidence": 0.9, "onset_step": 5, "onset_window": [5, 5], **changes,
    }  # fmt: skip


def judged(step: int, *found: dict[str, Any], segments: tuple[int, ...] = (0,)) -> Judgement:
    starts = [{"segment": n, "first_step": first} for n, first in enumerate(segments)]
    source = {"judged_step": step, "segments": starts}
    return Judgement.of_verdict({"status": "critical", "source": source, "findings": list(found)})


def reactions(board: FindingBoard, **settings: Any) -> Reactions:
    config, _ = from_env({"run": "r", **settings}, {})
    return Reactions(config, board, guard=Guard(strict=True))


@pytest.mark.parametrize(
    ("settings", "changes", "stops"),
    [
        ({}, {}, True),
        ({}, {"confidence": 0.7}, False),
        ({"stop_confidence": 0.5}, {"confidence": 0.7}, True),
        ({}, {"confidence": None}, True),
        ({}, {"cause": "undetermined", "confidence": 0.2}, True),
        ({}, {"severity": "warning"}, False),
        ({"stop_on": "warning"}, {"severity": "warning"}, True),
        ({"stop_on": "warning"}, {"severity": "info"}, False),
        ({}, {"state": "recovered", "resolved_step": 6}, False),
        ({"stop_on": "never"}, {}, False),
    ],
)
def test_which_findings_ask_to_stop(settings: dict[str, Any], changes: dict[str, Any], stops: bool) -> None:
    board = FindingBoard()
    found = reactions(board, **settings)
    board.post(judged(9, finding(**changes)))
    found.react()
    assert found.should_stop is stops


def test_answers_about_steps_that_are_gone_are_no_news() -> None:
    """The loop is back at step 3 before the answers to steps 5 to 9 have come."""
    board = FindingBoard()
    found = reactions(board)
    board.post(judged(4))
    found.go_back(3, peak=9)
    board.post(judged(9, finding()))
    found.react()
    assert not found.should_stop
    assert board.is_clean(2) is True
    assert board.is_clean(3) is None, "these steps are not judged yet"
    board.post(judged(4, finding(), segments=(0, 3)))
    found.react()
    assert not found.should_stop
    assert [board.is_clean(step) for step in (2, 3, 4, 5)] == [True, True, True, None]
    board.post(
        judged(12, finding(), finding("b", onset_step=11, onset_window=[11, 11], segment=1), segments=(0, 3))
    )
    found.react()
    assert found.should_stop
    assert [board.is_clean(step) for step in (5, 10, 11)] == [True, True, False]


def test_a_board_does_not_wait_for_steps_that_were_lost() -> None:
    """The rows around a rollback were dropped, so no new segment shows; later steps are judged anyway."""
    board = FindingBoard()
    board.post(judged(9))
    board.go_back(3, peak=9)
    assert board.is_clean(5) is None
    board.post(judged(9))
    assert board.is_clean(5) is None
    board.post(judged(15))
    assert board.is_clean(5) is True


def test_a_fault_that_is_over_taints_its_own_steps_only() -> None:
    board = FindingBoard()
    board.post(judged(20, finding(state="recovered", resolved_step=8)))
    assert [board.is_clean(step) for step in (4, 5, 7, 8, 20)] == [True, False, False, True, True]


def test_where_the_onset_is_a_window_its_beginning_counts() -> None:
    """With statistics every 10 steps a fault seen at step 20 may have begun at step 11."""
    board = FindingBoard()
    board.post(judged(25, finding(onset_step=20, onset_window=[11, 20])))
    assert [board.is_clean(step) for step in (10, 11, 20)] == [True, False, False]


def test_memory_does_not_grow_with_the_run() -> None:
    """A hundred thousand judgements and ten thousand findings later any step can still be asked about."""
    board = FindingBoard()
    for step in range(20_000):
        name = str(step // 2)
        board.post(judged(step, finding(name, state="recovered", onset_step=step, onset_window=[step, step])))
    assert board.is_clean(0) is True
    assert len(board._seen) <= MOST_KNOWN
    assert len(board.take_new()) <= 256


def test_more_alarms_than_an_answer_holds_are_not_forgotten() -> None:
    """The earliest of 40 alarms may not be among those told, but the last clean step knows of it."""
    board = FindingBoard()
    many = [finding(str(n), onset_step=100 - n, onset_window=[100 - n, 100 - n]) for n in range(40)]
    board.post(judged(120, *many))
    assert [board.is_clean(step) for step in (60, 61, 70)] == [True, False, False]
