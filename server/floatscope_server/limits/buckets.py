"""Token buckets: so many requests a second on average, with room for a burst."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

KEYS = 10_000  # clients remembered; one that is forgotten starts with a full bucket
BURST_S = 2.0  # a bucket holds what flows in during this time, and at least one request


class Buckets:
    """One bucket for each client. per_s: requests a second that each may make on average."""

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._most = max(per_s * BURST_S, 1.0)
        self._clock = clock
        self._guard = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> float:
        """0 if the client may go on; else the seconds until it may."""
        now = self._clock()
        with self._guard:
            left, seen = self._left.get(client, (self._most, now))
            left = min(left + max(now - seen, 0.0) * self._per_s, self._most)
            wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self._per_s
            self._left[client] = (left if wait_s else left - 1.0, now)
            self._left.move_to_end(client)
            while len(self._left) > KEYS:
                self._left.popitem(last=False)
        return wait_s
