"""Whether a server answers, and how long it is waited for."""

from __future__ import annotations

import random

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0
SILENT_S = 3.0  # of a request, for a server that has never answered
AWAY_S = 10.0  # for one that has


class Patience:
    """What is known of the server of one rank. now: seconds of the clock that the owner uses.

    failures: in a row.  last_failure: what the last of them was.  not_before: when the next request is due.
    """

    def __init__(self, rng: random.Random) -> None:
        self.failures = 0
        self.last_failure: str | None = None
        self.not_before = 0.0
        self._rng = rng
        self._has_answered = False
        self._asked_at: float | None = None
        self._failing_since = 0.0

    def asked(self, now: float) -> None:
        """A request has gone out."""
        self._asked_at = now

    def answered(self, *, is_ours: bool) -> None:
        """The request has come to an end.  is_ours: with an answer that is a floatscope server's."""
        self._asked_at = None
        self._has_answered = self._has_answered or is_ours

    def succeeded(self) -> None:
        """The server did what it was asked."""
        self.failures = 0
        self.last_failure = None
        self.not_before = 0.0

    def failed(self, why: str, now: float, after_s: float | None) -> None:
        """Exponential backoff with jitter, so that the ranks of a job do not all come back in one second.

        after_s: what the server asked for.
        """
        if not self.failures:
            self._failing_since = now
        self.failures += 1
        self.last_failure = why
        delay = min(FIRST_RETRY_S * 2.0 ** min(self.failures - 1, 10), LONGEST_RETRY_S)
        self.not_before = now + max(delay * self._rng.uniform(0.5, 1.0), after_s or 0.0)

    def hangs_for(self, now: float) -> float | None:
        """Seconds that a request has been under way, if that is suspiciously long."""
        waited = 0.0 if self._asked_at is None else now - self._asked_at
        return waited if waited >= (AWAY_S if self._has_answered else SILENT_S) else None

    def is_away(self, now: float) -> bool:
        """Whether the server has answered nothing in the whole run, or not for a while."""
        if self.hangs_for(now) is not None:
            return True
        return self.failures > 0 and (not self._has_answered or now - self._failing_since >= AWAY_S)
