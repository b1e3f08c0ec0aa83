"""``Monitor.log`` for loops that are used to a logger: by step, in parts, nested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import recording


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("time", "step_time_s")}


def test_a_loop_that_only_logs_records_every_step(tmp_path: Path) -> None:
    """A higher number ends the step before; several calls with one number are one step."""
    with recording(tmp_path) as found:
        for step in (5, 6, 9):
            found.monitor.log({"loss": step / 10}, step=step)
            found.monitor.log({"lr": torch.tensor(0.5)}, step=step)
    assert [numbers(row) for row in found.rows] == [
        {"step": 5, "loss": 0.5, "lr": 0.5},
        {"step": 6, "loss": 0.6, "lr": 0.5},
        {"step": 9, "loss": 0.9, "lr": 0.5},
    ]


def test_a_loop_that_steps_is_not_stepped_by_its_log(tmp_path: Path) -> None:
    """What is logged ahead under another number stays with the step that ``step`` ends."""
    with recording(tmp_path) as found:
        found.monitor.step(0, loss=1.0)
        found.monitor.log({"a": 1.0}, step=1)
        found.monitor.log({"b": 2.0}, step=2)
        found.monitor.step(1, loss=2.0)
    assert [numbers(row) for row in found.rows] == [
        {"step": 0, "loss": 1.0},
        {"step": 1, "a": 1.0, "b": 2.0, "loss": 2.0},
    ]


def test_dicts_inside_are_joined_by_a_slash(tmp_path: Path) -> None:
    """Also in ``step``; a dict without end is refused, once."""
    endless: dict[str, Any] = {"x": 1.0}
    endless["again"] = endless
    with recording(tmp_path) as found:
        found.monitor.log({"train": {"loss": 1.0, "by_head": {"0": 2.0}}})
        found.monitor.step(eval={"loss": 3.0}, endless=endless)
    (row,) = found.rows
    assert row["train/loss"] == 1.0
    assert row["train/by_head/0"] == 2.0
    assert row["eval/loss"] == 3.0
    assert sum(name.endswith("x") for name in row) == 8


def test_what_is_no_number_is_refused_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Texts, lists and pictures of a logger are left out with one sentence each."""
    with recording(tmp_path) as found:
        for step in range(3):
            found.monitor.log({"note": "hello", "curve": [1, 2], "loss": 1.0}, step=step)
    assert [numbers(row) for row in found.rows] == [{"step": step, "loss": 1.0} for step in range(3)]
    for name in ("note", "curve"):
        assert sum(f": {name} is a" in record.getMessage() for record in caplog.records) == 1


def test_what_was_wrapped_is_put_back_once_at_the_end(tmp_path: Path) -> None:
    """The last first, whichever way the run ends; one that fails does not keep the others."""
    calls: list[str] = []
    with recording(tmp_path, strict=False) as found:
        found.monitor.at_end(lambda: calls.append("first"))
        found.monitor.at_end(lambda: calls.append(str(1 // 0)))
        found.monitor.at_end(lambda: calls.append("last"))
        found.monitor.step(loss=1.0)
    found.monitor.finish()
    assert calls == ["last", "first"]
    found.monitor.at_end(lambda: calls.append("after the end"))
    assert calls[-1] == "after the end"


@pytest.mark.parametrize("given", ["nonsense", None, [1], 5])
def test_what_is_no_dict_is_refused_in_one_line(given: Any, tmp_path: Path, caplog: Any) -> None:
    """It says what is expected and what came, once; the step has what else is logged of it."""
    with recording(tmp_path) as found:
        for _ in range(2):
            found.monitor.log(given)
        found.monitor.log({"a": 1.0})
        found.monitor.step(loss=1.0)
    assert [numbers(row) for row in found.rows] == [{"step": 0, "a": 1.0, "loss": 1.0}]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert f"log() takes a dict of numbers, not a {type(given).__name__}: nothing is recorded" in said[0]
