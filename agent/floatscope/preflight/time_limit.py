"""Runs something that may hang or raise, and says what became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """``value`` of a call that came back, else None and in ``error`` why not."""

    value: T | None
    error: str = ""


def within(seconds: float, work: Callable[[], T]) -> Outcome[T]:
    """The outcome of ``work`` on a thread of its own, waited for no longer than ``seconds``.

    Work that hangs is left behind on a daemon thread, which ends with the process. Raises nothing of
    ``work``'s.
    """
    done: list[Outcome[T]] = []

    def run() -> None:
        try:
            done.append(Outcome(work()))
        except Exception as error:
            done.append(Outcome(None, said(error)))

    thread = threading.Thread(target=run, name="floatscope-preflight", daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    return done[0] if done else Outcome(None, f"no answer within {seconds:.0f} s")


def said(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
