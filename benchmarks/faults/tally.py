"""What a fault run counted, and which promises did not hold."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

SHOWN = 20  # broken promises that are printed in full


class Tally:
    """Counts by name, kept by many threads, and the promises that were broken."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.broken: list[str] = []

    def add(self, name: str, count: int = 1) -> None:
        with self._guard:
            self._counts[name] += count

    def most(self, name: str, value: int) -> None:
        """Keeps the largest value."""
        with self._guard:
            self._counts[name] = max(self._counts[name], value)

    def holds(self, promise: bool, text: str) -> bool:
        """Notes a promise that was broken; returns whether it held."""
        if not promise:
            with self._guard:
                self.broken.append(text)
        return promise

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    @property
    def counts(self) -> Mapping[str, int]:
        return dict(sorted(self._counts.items()))

    def lines(self) -> list[str]:
        """What is printed: one count a line, then what did not hold."""
        width = max((len(name) for name in self._counts), default=0)
        out = [f"  {name:<{width}}  {count:>12,}" for name, count in self.counts.items()]
        out += [f"  BROKEN: {text}" for text in self.broken[:SHOWN]]
        if len(self.broken) > SHOWN:
            out.append(f"  BROKEN: and {len(self.broken) - SHOWN} more")
        out.append("  every promise held" if not self.broken else f"  {len(self.broken)} promises broken")
        return out
