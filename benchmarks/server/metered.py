"""``floatscope serve`` that notes where its CPU time goes.

    python -m benchmarks.server.metered FILE --port 8321 --data-dir data

A clock of the thread is read around a few calls for each batch, which costs microseconds. What was found is
written to FILE when the server stops.
"""

from __future__ import annotations

import functools
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from floatscope_server import body, cli, compaction, diagnosis, ingest, outcome
from floatscope_server.store import batches


class Meter:
    """CPU seconds by part, and when the compactor was at work (seconds since the epoch)."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._spent: dict[str, float] = {}
        self._compacting: list[tuple[float, float]] = []
        self._began: float | None = None

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Counts the CPU time of a function; of the compactor also from when to when."""
        called: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(called)
        def metered(*args: Any, **named: Any) -> Any:
            start, cpu = time.time(), time.thread_time()
            try:
                return called(*args, **named)
            finally:
                self._add(part, time.thread_time() - cpu, start)

        setattr(owner, name, metered)

    def _add(self, part: str, spent: float, start: float) -> None:
        with self._guard:
            if self._began is None:
                self._began = time.process_time() - spent
            self._spent[part] = self._spent.get(part, 0.0) + spent
            if part == "compaction":
                self._compacting.append((start, time.time()))

    def save(self, path: Path) -> None:
        total = 0.0 if self._began is None else time.process_time() - self._began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found = {"total": total, **self._spent}
        path.write_text(json.dumps({"cpu_s": found, "compacting": self._compacting, "peak_mb": peak}))


def main() -> int:
    meter = Meter()
    meter.wrap(body, "unpack", "digest")
    meter.wrap(ingest.Ingest, "put", "put")
    meter.wrap(ingest.Ingest, "_decode", "decode")
    meter.wrap(batches, "packed", "compress")
    meter.wrap(diagnosis.Diagnosis, "feed", "diagnosis")
    meter.wrap(outcome.Outcome, "store", "outcome")
    meter.wrap(compaction.Compactor, "_rewrite", "compaction")
    code = cli.main(sys.argv[2:])
    meter.save(Path(sys.argv[1]))
    return code


if __name__ == "__main__":
    sys.exit(main())
