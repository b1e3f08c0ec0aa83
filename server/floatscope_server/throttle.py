"""Slows down who guesses tokens, in bounded memory, without locking out anybody else.

Counted are wrong tokens, each once per address: a program that keeps sending the same wrong token learns
nothing by it. After a few, an address must wait longer and longer between tries. When very many addresses
guess at once, each has one try before it waits. So the first try from an address is always looked at.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

FREE_TRIES = 10
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
FORGET_S = 900.0
MOST_ADDRESSES = 10_000
MOST_REMEMBERED = 8  # wrong tokens of one address
TOTAL_TRIES = 300  # wrong tokens a minute from all addresses before each has only one free try
TOTAL_WINDOW_S = 60.0


@dataclass
class _Tries:
    count: int = 0
    last: float = 0.0
    wrong: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_REMEMBERED))


class Throttle:
    """Counts wrong tokens by address. Safe to use from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._recent: deque[float] = deque(maxlen=TOTAL_TRIES)

    def knows_wrong(self, address: str, digest: str) -> bool:
        """Whether this address was told already that this token is wrong."""
        with self._lock:
            tries = self._tries.get(address)
            return tries is not None and digest in tries.wrong

    def wait_s(self, address: str) -> float:
        """Seconds until a try from this address is looked at again; 0 for now."""
        now = self._clock()
        with self._lock:
            tries = self._tries.get(address)
            if tries is None:
                return 0.0
            beyond = tries.count - (1 if self._is_storm(now) else FREE_TRIES)
            if beyond < 0 or now - tries.last > FORGET_S:
                return 0.0
            wait = min(FIRST_WAIT_S * 2.0 ** min(beyond, 30), LONGEST_WAIT_S)
            return max(0.0, tries.last + wait - now)

    def failed(self, address: str, digest: str) -> int:
        """Counts a wrong token and returns how many this address has sent."""
        now = self._clock()
        with self._lock:
            tries = self._tries.pop(address, None)
            if tries is None or now - tries.last > FORGET_S:
                tries = _Tries()
            tries.count += 1
            tries.last = now
            tries.wrong.append(digest)
            self._tries[address] = tries
            while len(self._tries) > MOST_ADDRESSES:
                self._tries.popitem(last=False)
            self._recent.append(now)
            return tries.count

    def trust(self, address: str) -> None:
        """The token of the environment came from here: others at this address cannot lock it out."""
        with self._lock:
            self._trusted[address] = None
            self._trusted.move_to_end(address)
            while len(self._trusted) > MOST_ADDRESSES:
                self._trusted.popitem(last=False)

    def is_trusted(self, address: str) -> bool:
        with self._lock:
            return address in self._trusted

    def _is_storm(self, now: float) -> bool:
        return len(self._recent) == TOTAL_TRIES and now - self._recent[0] < TOTAL_WINDOW_S
