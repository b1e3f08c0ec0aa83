"""Progress of a run on the terminal: a bar where there is one, lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from floatscope_trainer.training import StepRecord

LINE_EVERY_S = 5.0  # often enough to see life, rare enough for a log file


class ProgressView(Protocol):
    """Shows steps as they are trained."""

    def __enter__(self) -> ProgressView: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, record: StepRecord) -> None: ...


class Speed:
    """Steps and tokens per second since the start."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._steps = 0
        self._tokens = 0

    def add(self, record: StepRecord) -> tuple[float, float]:
        """(steps/s, tokens/s) with this step."""
        self._steps += 1
        self._tokens += record.tokens
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        return self._steps / elapsed, self._tokens / elapsed


class BarProgress:
    """A bar with loss, speed and time left."""

    def __init__(self, console: Console, *, name: str, first_step: int, steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(name, total=steps, completed=first_step, loss="-", speed="")
        self._speed = Speed()

    def __enter__(self) -> BarProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, record: StepRecord) -> None:
        """Moves the bar."""
        steps_per_s, tokens_per_s = self._speed.add(record)
        self._progress.update(
            self._task,
            completed=record.step + 1,
            loss=f"{record.loss:.4f}",
            speed=f"{steps_per_s:.1f} steps/s {tokens_per_s:,.0f} tokens/s",
        )


class LineProgress:
    """A line now and then."""

    def __init__(self, console: Console, *, name: str, first_step: int, steps: int) -> None:
        self._console, self._name, self._steps = console, name, steps
        self._speed = Speed()
        self._shown = 0.0

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def show(self, record: StepRecord) -> None:
        """Prints the first step, the last, and one every 5 seconds."""
        steps_per_s, tokens_per_s = self._speed.add(record)
        now = time.perf_counter()
        done = record.step + 1
        if done < self._steps and now - self._shown < LINE_EVERY_S:
            return
        self._shown = now
        left_s = (self._steps - done) / steps_per_s
        self._console.print(
            f"{self._name}  step {done}/{self._steps}  loss {record.loss:.4f}  {steps_per_s:.1f} steps/s"
            f"  {tokens_per_s:,.0f} tokens/s  {left_s:.0f} s left",
            highlight=False,
            soft_wrap=True,
        )


class NoProgress:
    """Nothing."""

    def __enter__(self) -> NoProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def show(self, record: StepRecord) -> None:
        """Shows nothing."""


def make_progress(console: Console, *, name: str, first_step: int, steps: int, quiet: bool) -> ProgressView:
    """The view that suits the console."""
    if quiet:
        return NoProgress()
    view = BarProgress if console.is_terminal else LineProgress
    return view(console, name=name, first_step=first_step, steps=steps)
