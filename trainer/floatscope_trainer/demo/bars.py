"""A bar for each run of the demo, or lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

ENDINGS = {0: "done", 1: "ended early"}


class RunBars:
    """Shows runs while they train."""

    def __init__(self, console: Console, *, names: Sequence[str], steps: int) -> None:
        self._console, self._steps = console, steps
        self._began: dict[str, tuple[float, int]] = {}
        self._last: dict[str, tuple[int, float]] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:>7}  {task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        width = max(map(len, names))
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(f"{name:<{width}}", total=steps, loss="-", note="waiting")
            for name in names
        }

    def __enter__(self) -> RunBars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self, run: str) -> None:
        """A worker has the run."""
        self._progress.update(self._tasks[run], note="starting")

    def step(self, run: str, *, step: int, loss: float) -> None:
        """A step was trained."""
        began, first = self._began.setdefault(run, (time.monotonic(), step))
        elapsed = time.monotonic() - began
        note = "starting"
        if step > first and elapsed > 0:
            speed = (step - first) / elapsed
            note = f"{speed:.1f} steps/s, {(self._steps - step - 1) / speed:.0f} s left"
        self._last[run] = (step, loss)
        self._progress.update(self._tasks[run], completed=step + 1, loss=f"{loss:.4f}", note=note)

    def end(self, run: str, *, code: int) -> None:
        """The run is over; its bar stays where it is."""
        ending = ENDINGS.get(code, f"exit {code}")
        self._progress.update(self._tasks[run], note=ending)
        if self._console.is_terminal:
            return
        reached = "no step"
        if run in self._last:
            step, loss = self._last[run]
            reached = f"step {step + 1}/{self._steps}, loss {loss:.4f}"
        self._console.print(f"{run}: {ending}, {reached}", highlight=False)
