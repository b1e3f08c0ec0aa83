"""What the diagnosis has said so far, between the thread that hears it and the loop that reacts.

A server's answers and the local diagnosis post, each in the order in which steps were judged; the training
loop takes new findings and asks whether a step is clean. What the loop touches is one reference or a deque,
so it waits for nobody.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from floatscope.guard import Guard
from floatscope.protocol.judgement import BriefFinding, Judgement

MOST_WAITING = 256  # changes of findings the loop has not taken yet; beyond, the oldest are forgotten
MOST_KNOWN = 4096  # findings whose last state is remembered, a few kB each thousand


@dataclass(frozen=True)
class _Rewind:
    """The loop went back. step: where it goes on.  peak: its last step before.  segment: of the newest
    judgement then.
    """

    step: int
    peak: int
    segment: int

    def is_over(self, judgement: Judgement) -> bool:
        """Whether the judgement knows of the steps since. If rows were lost it shows by its step only."""
        return judgement.segment > self.segment or (judgement.judged_step or 0) > self.peak


class FindingBoard:
    """The newest judgement, and what changed since the loop last looked."""

    def __init__(self) -> None:
        self.latest: Judgement | None = None
        self._rewind: _Rewind | None = None
        self._seen: dict[str, tuple[str, str, str]] = {}
        self._new: deque[tuple[Judgement, BriefFinding]] = deque(maxlen=MOST_WAITING)
        self._lock = threading.Lock()  # between those who post

    def post(self, judgement: Judgement) -> list[BriefFinding]:
        """Takes a newer judgement; returns the findings that are new or have changed.

        New ones of an earlier segment, which a resumed run brings along, and of steps that the loop has
        gone back over are not news.
        """
        with self._lock:
            news = []
            for finding in judgement.findings:
                mark = (finding.cause, finding.severity, finding.state)
                known = self._seen.pop(finding.id, None)
                self._seen[finding.id] = mark
                if known != mark and (known is not None or finding.segment >= judgement.segment):
                    news.append(finding)
            while len(self._seen) > MOST_KNOWN:
                del self._seen[next(iter(self._seen))]
            if not self._is_current(judgement):
                news = []
            self.latest = judgement
            self._new.extend((judgement, finding) for finding in news)
            return news

    def take_new(self) -> list[BriefFinding]:
        """Findings that are new, or changed their cause, severity or state, since the last call."""
        found: list[BriefFinding] = []
        while self._new:
            judgement, finding = self._new.popleft()
            if self._is_current(judgement):
                found.append(finding)
        return found

    def go_back(self, step: int, *, peak: int) -> None:
        """The loop goes on at ``step`` after ``peak``, as from an older checkpoint.

        Until those steps are judged they are neither clean nor not, and what is still said of the steps
        before is no news.
        """
        latest = self.latest
        self._rewind = _Rewind(step, peak, 0 if latest is None else latest.segment)
        self._new.clear()

    def is_clean(self, step: int, *, settled: int = 0) -> bool | None:
        """False where a fault may have begun at or before this step; True if it and ``settled`` steps more
        were judged without one; else None.
        """
        latest, rewind = self.latest, self._rewind
        if latest is None:
            return None
        if rewind is not None and step >= rewind.step and not rewind.is_over(latest):
            carries_fault = rewind.step > 0 and latest.is_clean(rewind.step - 1) is False
            return False if carries_fault else None
        return latest.is_clean(step, settled=settled)

    def _is_current(self, judgement: Judgement) -> bool:
        rewind = self._rewind
        return rewind is None or rewind.is_over(judgement)


class Herald:
    """Says new alarms as they come, one line each, once a finding; also one that is over already."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._told: dict[str, None] = {}

    def tell(self, findings: list[BriefFinding]) -> None:
        """Says those that are a warning or worse and were not said before."""
        for finding in findings:
            if finding.counts and finding.id not in self._told:
                self._told[finding.id] = None
                level = logging.ERROR if finding.severity == "critical" else logging.WARNING
                self._guard.say(line_of(finding), level=level)
        while len(self._told) > MOST_KNOWN:
            del self._told[next(iter(self._told))]


def line_of(finding: BriefFinding) -> str:
    """One finding as one line: how bad, since when, where, what, and what to do."""
    since = "" if finding.onset_step is None else f" since step {finding.onset_step:,}"
    if finding.state == "recovered" and finding.onset_step is not None:
        until = "" if finding.resolved_step is None else f", over at step {finding.resolved_step:,}"
        since = f" at step {finding.onset_step:,}{until}"
    where = "" if finding.layer is None else f" in {finding.layer}"
    what = f"{finding.severity.upper()}{since}{where} ({finding.cause.replace('_', ' ')}): {finding.summary}"
    line = what if finding.remedy is None else f"{what} What to do: {finding.remedy}"
    return " ".join(line.split())
