"""The one place in the agent that swallows exceptions.

The training loop is somebody else's. Whatever fails in here is counted, logged once in a sentence that says
what the user loses, and switched off after a few repeats; nothing is raised into the loop. With
``strict=True`` (tests) everything is raised.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from types import TracebackType

from floatscope.jsonable import printable

FAILURE_LIMIT = 20  # of one area before it is switched off: rides out a hiccup, stays few in a log

logger = logging.getLogger("floatscope")


class Area:
    """One thing the agent does, as a context manager that keeps its failures inside.

    ``tripped`` becomes true after ``limit`` failures, or at once when a device has no memory left: each try
    would have its allocator give back what it keeps, and the training wait. Whoever does the work looks at it
    first.  on_trip: called once when that happens.
    """

    __slots__ = ("_guard", "failures", "limit", "loses", "name", "on_trip", "tripped")

    def __init__(self, guard: Guard, name: str, *, loses: str, limit: int) -> None:
        self._guard = guard
        self.name = name
        self.loses = loses
        self.limit = limit
        self.failures = 0
        self.tripped = False
        self.on_trip: Callable[[], None] | None = None

    def __enter__(self) -> Area:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception) or self._guard.strict:
            return False
        self.failures += 1
        is_out_of_memory = type(error).__name__ == "OutOfMemoryError"  # torch's, which is not imported here
        if self.failures == 1:
            off = "it is switched off for this run, and " if is_out_of_memory else ""
            self._guard.say(
                f"{self.name} failed ({_one_line(error)}). Training goes on; {off}you lose {self.loses}.",
                error=error,
            )
        if (is_out_of_memory or self.failures >= self.limit) and not self.tripped:
            self.tripped = True
            if self.failures > 1 or not is_out_of_memory:
                self._guard.say(f"{self.name} failed {self.failures} times and is switched off for this run.")
            self._left()
        return True

    def _left(self) -> None:
        """Whoever has to clear up when the area is switched off."""
        if self.on_trip is not None:
            clear_up, self.on_trip = self.on_trip, None
            with contextlib.suppress(Exception):
                clear_up()


class Guard:
    """Makes areas, counts their failures and says each thing once.

    strict: raise instead of swallowing (tests).  limit: failures before an area is switched off.
    speaks: False for all ranks of a job but the first; what they have to say is logged as debug.
    """

    def __init__(self, *, strict: bool = False, limit: int = FAILURE_LIMIT, speaks: bool = True) -> None:
        self.strict = strict
        self._speaks = speaks
        self._limit = limit
        self._areas: dict[str, Area] = {}
        self._said: set[str] = set()

    def area(self, name: str, *, loses: str) -> Area:
        """The area of that name, made on first use.

        loses: what the user goes without while it fails.
        """
        area = self._areas.get(name)
        if area is None:
            area = self._areas[name] = Area(self, name, loses=loses, limit=self._limit)
        return area

    @property
    def failures(self) -> dict[str, int]:
        """Swallowed failures by area, only where there were any."""
        return {name: area.failures for name, area in self._areas.items() if area.failures}

    def say(self, text: str, *, error: BaseException | None = None, level: int = logging.WARNING) -> None:
        """Logs a line; a logging handler that fails does not reach the caller either."""
        with contextlib.suppress(Exception):
            logger.log(level if self._speaks else logging.DEBUG, "floatscope: %s", printable(text))
            if error is not None:
                logger.debug("floatscope: traceback of the above", exc_info=error)

    def say_once(self, key: str, text: str, *, level: int = logging.WARNING) -> None:
        """Logs a line the first time this key comes."""
        if key not in self._said:
            self._said.add(key)
            self.say(text, level=level)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
