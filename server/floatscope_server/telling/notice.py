"""What a message tells: facts, not words. ``notify`` makes a text of it for each kind of channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope_server.store.runs import RunRecord

SUBJECTS = 20  # alerts that one message tells of; the others are counted
RAISED, WORSENED, RECOVERED = "raised", "worsened", "recovered"
PASSED = "passed"  # began and was over before anybody was told of it
REPEATED = "repeated"
ESCALATED = "escalated"
SUMMARY = "summary"  # what quiet hours held back


@dataclass(frozen=True)
class Subject:
    """One alert that a message tells of.

    state: the alert's. since: Unix seconds from which it counts as firing. raises: how often it began since
    the channel last heard that it did; above 1 it comes and goes.
    """

    alert_id: str
    event: str
    severity: str
    finding: Mapping[str, Any]
    run: RunRecord
    state: str
    since: float | None = None
    raises: int = 1


@dataclass(frozen=True)
class Notice:
    """One message to one channel.

    event: SUMMARY, or that of the first subject. subjects: worst and oldest first, all of one run unless it
    is a summary; what recovered is never together with what began. more: alerts that are left out.
    repeat_number: 0 unless it is a repeat. next_repeat: when it is told again unless somebody acknowledges
    it. reason: why it is told now, as a clause. loss: (step, value) of the first subject's run; onset_time:
    of its onset step.
    """

    event: str
    subjects: tuple[Subject, ...]
    now: float
    more: int = 0
    repeat_number: int = 0
    next_repeat: float | None = None
    reason: str | None = None
    loss: Sequence[tuple[int, float | None]] = ()
    onset_time: float | None = None

    @property
    def lead(self) -> Subject:
        """The alert that the message is about first of all."""
        return self.subjects[0]
