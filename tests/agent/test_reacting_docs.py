"""The loops that docs/reacting.md shows run as they stand, on a healthy run and on one that breaks."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import floatscope

PAGE = Path(__file__).parents[2] / "docs" / "reacting.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
STEPS = 400
BREAKS_AT = 60


class World:
    """What the page takes for granted: a loader, a training step that breaks for good, checkpoints."""

    def __init__(self, tmp_path: Path, *, breaks: bool) -> None:
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.monitors: list[floatscope.Monitor] = []
        self.trained: list[int] = []
        self.saved: list[int] = []
        self.tagged: list[int] = []
        self.loaded: list[int] = []
        self._log = tmp_path / "run.jsonl"
        self._breaks = breaks

    def watch(self, *args: Any, **settings: Any) -> floatscope.Monitor:
        """``floatscope.watch`` with quick answers."""
        quick = {"log_path": self._log, "flush_every_s": 0.0, "gpu": False, "stats_every": 10}
        self.monitors.append(floatscope.watch(*args, **{**quick, **settings}))
        return self.monitors[-1]

    def train_step(self, step: int) -> float:
        time.sleep(0.01)
        self.trained.append(step)
        return math.nan if self._breaks and step >= BREAKS_AT else 3.0 - 0.001 * step + 0.01 * (step % 3)

    def load_checkpoint(self, step: int) -> int:
        self.loaded.append(step)
        return step

    def mend(self) -> None:
        self._breaks = False

    def names(self) -> dict[str, Any]:
        agent = type("floatscope", (), {"watch": staticmethod(self.watch)})
        return {
            "floatscope": agent, "torch": torch, "model": self.model, "optimizer": self.optimizer,
            "loader": range(STEPS), "batch_of": lambda step: step, "train_step": self.train_step,
            "save_checkpoint": self.saved.append, "tag_clean": self.tagged.append,
            "load_checkpoint": self.load_checkpoint, "skip_data": self.mend,
        }  # fmt: skip


def snippet(heading: str) -> str:
    """The code below a heading."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1]
    return text.split("```python\n", 1)[1].split("```", 1)[0]


def run(tmp_path: Path, heading: str, *, breaks: bool = True) -> World:
    world = World(tmp_path, breaks=breaks)
    exec(compile(snippet(heading), heading, "exec"), world.names())
    for monitor in world.monitors:
        monitor.finish()
    return world


def test_every_snippet_is_run_here() -> None:
    assert len(SNIPPETS) == 5


@pytest.mark.parametrize("heading", ["Stop", "Several ranks"])
def test_the_loop_stops_itself(tmp_path: Path, heading: str) -> None:
    world = run(tmp_path, heading)
    assert BREAKS_AT <= world.trained[-1] < STEPS - 1


def test_a_healthy_loop_runs_to_its_end(tmp_path: Path) -> None:
    assert run(tmp_path, "Stop", breaks=False).trained == list(range(STEPS))


def test_only_clean_checkpoints_are_tagged(tmp_path: Path) -> None:
    world = run(tmp_path, "Tag the checkpoints that are clean")
    assert world.tagged
    assert max(world.tagged) < BREAKS_AT
    assert max(world.saved) < STEPS - 10, "a run that is known to be broken saves none"


def test_the_loop_goes_back_and_on(tmp_path: Path) -> None:
    world = run(tmp_path, "Go back")
    assert len(world.loaded) == 1
    assert world.loaded[0] < BREAKS_AT
    assert world.trained[-1] == 199


def test_the_callback_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "A callback")
    assert f"critical since step {BREAKS_AT}" in capsys.readouterr().out
