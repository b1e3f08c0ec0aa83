"""The preflight that goes with a run: what the agent sees of its machine from inside the training process.

Everything here happens on the agent's own threads. What may take its time (distributions on a slow disk) has
a thread to itself that nobody waits for; what fails is left out of the run's description.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from floatscope.catalog import Catalog
from floatscope.guard import Guard
from floatscope.preflight.facts import Facts
from floatscope.preflight.fitting import fitting
from floatscope.rows import Row

PATIENCE_S = 5.0
"""Without a step for so long, what is known of the recipe by then is taken."""
LAST_WAIT_S = 0.3
"""Longest wait for the facts when a run ends before they are there."""
MOST_ANSWERS = 3
"""How often the answer is made anew because the probes learned more of the recipe."""

Gather = Callable[[], Facts]
Examine = Callable[[Facts, Mapping[str, Any]], Mapping[str, Any]]
"""Facts and the run's recipe -> the document ``floatscope.preflight/1``. Pure, and takes milliseconds."""


class SentPreflight:
    """An outlet of the sender that adds ``preflight`` to the run's description, once the first step is there
    and with it what the probes know of the recipe.
    """

    def __init__(self, catalog: Catalog, *, gather: Gather, examine: Examine, guard: Guard) -> None:
        self.is_done = False
        self._catalog = catalog
        self._gather = gather
        self._examine = examine
        self._area = guard.area("preflight", loses="what it would have said of this machine")
        self._facts: Facts | None = None
        self._thread: threading.Thread | None = None
        self._began_at = 0.0
        self._has_step = False
        self._answers = 0
        self._told_of: Mapping[str, Any] | None = None

    def accept(self, rows: Sequence[Row]) -> None:
        """A first step is all it waits for."""
        self._has_step = True

    def work(self) -> float | None:
        """Looks whether there is something new to say."""
        if self.is_done or self._area.tripped:
            return None
        if self._thread is None:
            self._began_at = time.monotonic()
            self._thread = threading.Thread(target=self._look, name="floatscope-preflight", daemon=True)
            self._thread.start()
        if self._has_step or time.monotonic() - self._began_at > PATIENCE_S:
            self._tell()
        return None

    def finish(self, status: str, reason: str | None) -> None:
        """Comes before the last word of the outlets that deliver: a short run has its preflight too."""
        if self._thread is not None:
            self._thread.join(LAST_WAIT_S)
            self._tell()
        self.is_done = True

    def abort(self) -> None:
        """Nothing is waited for."""

    def _look(self) -> None:
        with self._area:
            self._facts = self._gather()

    def _tell(self) -> None:
        recipe = self._catalog.info().recipe
        if self._facts is None or self._answers >= MOST_ANSWERS or recipe == self._told_of:
            return
        self._told_of = recipe
        self._answers += 1
        with self._area:
            found = fitting(self._examine(self._facts, recipe))
            if found is not None:
                self._catalog.describe(preflight=found)


def preflight_outlet(catalog: Catalog, *, uses_nvml: bool, guard: Guard) -> SentPreflight | None:
    """The outlet of a run whose user handed over no preflight; None if it cannot be made.

    uses_nvml: False where the user switched NVML off; it is not touched then.
    """
    with guard.area("preflight", loses="what it would have said of this machine"):
        # Here and not at the top, so that a process that watches no run does not load the tables; and on the
        # caller's thread, since a fork while another thread imports can leave the child with a locked import.
        from floatscope.preflight.light import examine_here, gather_here

        return SentPreflight(catalog, gather=gather_here(uses_nvml), examine=examine_here, guard=guard)
    return None
