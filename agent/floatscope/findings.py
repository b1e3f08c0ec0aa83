"""What the diagnosis has said so far, between the thread that hears it and the loop that reacts.

A server's answers and the local diagnosis post; the training loop takes new findings and asks whether a step
is clean. Posting replaces one reference, so nobody waits.
"""

from __future__ import annotations

import threading
from collections import deque

from floatscope.protocol.judgement import BriefFinding, Judgement

MOST_WAITING = 256  # changes of findings the loop has not taken yet; beyond, the oldest are forgotten


class FindingBoard:
    """The newest judgement, and what changed since the loop last looked."""

    def __init__(self) -> None:
        self.latest: Judgement | None = None
        self._seen: dict[str, tuple[str, str, str]] = {}
        self._new: deque[BriefFinding] = deque(maxlen=MOST_WAITING)
        self._lock = threading.Lock()  # between those who post; the loop only pops

    def post(self, judgement: Judgement) -> None:
        """Takes a newer judgement; one that has judged less than the last is passed over."""
        with self._lock:
            before = self.latest
            if before is not None and (judgement.judged_step or 0) < (before.judged_step or 0):
                return
            for finding in judgement.findings:
                mark = (finding.cause, finding.severity, finding.state)
                if self._seen.get(finding.id) != mark:
                    self._seen[finding.id] = mark
                    self._new.append(finding)
            self.latest = judgement

    def take_new(self) -> list[BriefFinding]:
        """Findings that are new, or changed their cause, severity or state, since the last call."""
        found: list[BriefFinding] = []
        while self._new:
            found.append(self._new.popleft())
        return found

    def is_clean(self, step: int) -> bool | None:
        """False where an alarm began at or before this step; True if it was judged clean; else None."""
        latest = self.latest
        if latest is None:
            return None
        for finding in latest.findings:
            if finding.is_alarm and (finding.onset_step is None or finding.onset_step <= step):
                return False
        return True if latest.judged_step is not None and latest.judged_step >= step else None
