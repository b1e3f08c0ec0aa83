"""Diagnosis without a server: a thread of its own judges the steps and keeps the verdict on disk.

It shares the trainer's cores and Python's lock, so it works in short turns with long pauses between them, and
where Linux lets one thread be nice it is. It and ``cli.py`` are the only files that reach the diagnostics
package, by name and late: it is first imported in this thread, after the first step, when the workers of a
data loader have been forked already.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from floatscope.guard import Guard
from floatscope.logged_before import LoggedBefore
from floatscope.protocol.batch import Batch
from floatscope.protocol.closer_look import CloserLook
from floatscope.protocol.judgement import Judgement, findings_of
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps
from floatscope.rows import Columns, Row

TURN_S = 1.0  # shortest time from one turn to the next: a finding is heard of that soon
LONGEST_TURN_S = 15.0
SHARE_OF_A_CORE = 0.05  # that a turn's pause is made for
WRITE_EVERY_S = 2.0
PIECE_STEPS = 16  # judged at a time; between them others get their turn
MOST_ROWS = 8192  # waiting to be judged; beyond, the newest are not
MOST_BYTES = 64 * 2**20  # of waiting rows; beyond, the newest wait without their tensors
NICENESS = 10
FINISH_POLL_S = 0.02
LAST_WHOLE_S = (
    2.0  # judging at the end of a run; what is left then is judged without its tensors, ten times as fast
)
SILENT_S = 1.0  # wait at the end of a run that is not explained


class LiveEngine(Protocol):
    """What is needed of ``floatscope_diagnostics.engine.Engine``."""

    def feed(self, batch: Batch, rank: int = ...) -> None: ...
    def update_run(self, run: RunInfo) -> None: ...
    def verdict(self, *, live: bool = ...) -> Any: ...


Engines = Callable[[RunInfo], LiveEngine]
"""Makes the engine of a run. Raises ImportError if the diagnosis is not installed."""


def installed_engine(run: RunInfo) -> LiveEngine:
    """The engine of the diagnostics package. Raises ImportError without it or what it needs."""
    engine: LiveEngine = importlib.import_module("floatscope_diagnostics.engine").Engine(run)
    return engine


class LocalDiagnosis:
    """Judges the rows of one rank as they come. An outlet of the sender (see ``sender.Outlet``).

    log: the run's log; steps that an earlier process of the run left in it are judged first.  path: where the
    verdict goes, ``floatscope.verdict/1``.  hear: called with each judgement, in this object's thread.
    ask: called with the closer look it asks for, as a server would in its answers.
    What it could not judge in time is counted and stands in the verdict's notes.
    """

    def __init__(
        self,
        path: Path,
        *,
        log: Path,
        run_id: str,
        rank: int,
        info: Callable[[], RunInfo],
        guard: Guard,
        hear: Callable[[Judgement], None],
        ask: Callable[[Mapping[str, Any]], None] = lambda settings: None,
        engines: Engines = installed_engine,
        turn_s: float = TURN_S,
    ) -> None:
        self.path = path
        self.is_done = False
        self.verdict: Mapping[str, Any] | None = None
        self.thinned = 0
        self.skipped = 0
        self._log = log
        self._run_id = run_id
        self._rank = rank
        self._info = info
        self._guard = guard
        self._hear = hear
        self._ask = ask
        self._closer_look = CloserLook()
        self._engines = engines
        self._turn_s = turn_s
        self._before: LoggedBefore | None = None
        self._columns = Columns()
        self._engine: LiveEngine | None = None
        self._known: RunInfo | None = None
        self._inbox: deque[Row] = deque()
        self._inbox_bytes = 0
        self._inbox_lock = threading.Lock()  # between the sender's thread and ours; the loop takes neither
        self._unjudged = 0  # steps still waiting when the time was up
        self._hurried = 0  # the last steps that were judged without their tensors to end soon
        self._last_turn: float | None = None  # when judging went on after the run had ended
        self._ended_at = 0.0
        self._is_told = False
        self._written_at = float("-inf")
        self._is_written = False
        self._is_off = False
        self._ending: tuple[str, str | None] | None = None
        self._is_aborted = False
        self._wake = threading.Event()
        self._area = guard.area("local diagnosis", loses="the verdict while the run is under way")
        self._thread = threading.Thread(
            target=self._run, name=f"floatscope-diagnosis:{rank}:{run_id}", daemon=True
        )

    def accept(self, rows: Sequence[Row]) -> None:
        """Takes rows over, without their tensors or not at all where the thread lags too far behind."""
        if self._is_off:
            return
        if self._before is None:  # before the log gets its first row from us
            self._before = LoggedBefore()
            with self._area:
                self._before = LoggedBefore.of(self._log, run_id=self._run_id)
                self._thread.start()
            self._is_off = self._area.failures > 0
        with self._inbox_lock:
            for row in rows:
                if row.blocks and self._inbox_bytes + row.nbytes > MOST_BYTES:
                    row = replace(row, blocks=[], histograms=[])  # others hold the row itself
                    self.thinned += 1
                if len(self._inbox) >= MOST_ROWS:
                    self.skipped += 1
                    continue
                self._inbox.append(row)
                self._inbox_bytes += row.nbytes

    def work(self) -> float | None:
        """Returns seconds until it may be done, None while the run goes on."""
        if self._ending is None:
            return None
        self.is_done = not self._thread.is_alive()
        if not self.is_done and not self._is_told and time.monotonic() - self._ended_at >= SILENT_S:
            self._is_told = True
            if self._rank == 0:
                sys.stderr.write("floatscope: judging the last steps ...\n")
        return FINISH_POLL_S

    def finish(self, status: str, reason: str | None) -> None:
        """Says how the run ended; the thread judges what is left and writes the last verdict."""
        self._ended_at = time.monotonic()
        self._ending = (status, reason)
        self._wake.set()

    def abort(self) -> None:
        """Time is up: the thread writes what it has found so far and ends."""
        self._is_aborted = True
        self._wake.set()

    def farewell(self) -> str | None:
        """Lines for the end of the run, or None without a verdict."""
        if self.verdict is None:
            return None
        is_whole = not self._thread.is_alive() and not self._unjudged
        late = "" if is_whole else " (The last steps were not judged in time.)"
        if is_whole and self._hurried:
            late = f" (The last {self._hurried:,} steps were judged without their tensors, to end soon.)"
        lines = [f"{self.verdict['summary']}{_gone(self.verdict)}{late}"]
        if self._is_written:
            lines.append(f"the verdict is in {self.path}")
        if self._log.is_file():
            lines.append(f"the whole report: floatscope diagnose {self._log}")
        return "\n".join(f"floatscope: {line}" for line in lines)

    def _run(self) -> None:
        try:
            _be_nice()
            with self._area:
                self._turns()
                return
            self._give_up()
        finally:
            self._is_off = True
            self._take()

    def _turns(self) -> None:
        pause = 0.0  # the first turn imports and judges at once, so that later ones are short
        while True:
            self._wake.wait(pause)
            is_ending = self._ending is not None or self._is_aborted  # looked at before the inbox
            used = time.thread_time()
            if not self._turn(is_last=is_ending) or is_ending:
                return
            cost = time.thread_time() - used
            pause = min(max(self._turn_s, cost / SHARE_OF_A_CORE), LONGEST_TURN_S)

    def _turn(self, *, is_last: bool) -> bool:
        """Judges what is there. Returns False if there is no diagnosis to go on with."""
        rows = self._take()
        if not self._ready():
            return False
        for at in range(0, len(rows), PIECE_STEPS):
            if self._is_aborted:
                self._unjudged += len(rows) - at
                break
            piece = rows[at : at + PIECE_STEPS]
            self._feed(self._hurry(piece) if self._is_late() else piece)
            time.sleep(0.0)
        if rows or is_last:
            self._judge(is_last=is_last)
        return True

    def _is_late(self) -> bool:
        """Whether the run has ended and its end waits for us too long."""
        if self._ending is None:
            return False
        now = time.monotonic()
        self._last_turn = now if self._last_turn is None else self._last_turn
        return now - self._last_turn > LAST_WHOLE_S

    def _hurry(self, rows: Sequence[Row]) -> list[Row]:
        self._hurried += len(rows)
        return [replace(row, blocks=[], histograms=[]) for row in rows]

    def _take(self) -> list[Row]:
        with self._inbox_lock:
            rows = list(self._inbox)
            self._inbox.clear()
            self._inbox_bytes = 0
        return rows

    def _ready(self) -> bool:
        """Makes the engine, which first judges what the log held before."""
        if self._engine is not None:
            self._tell_run()
            return True
        self._known = self._info()
        try:
            self._engine = self._engines(self._known)
        except ImportError as error:
            self._guard.say(
                f"the run is logged but not diagnosed while it goes on, since {error.name or error} is not "
                f"installed here: pip install 'floatscope[diagnostics]'; floatscope diagnose {self._log} "
                "judges the log anywhere."
            )
            return False
        assert self._before is not None
        for batch in self._before.batches(rank=self._rank):
            if self._is_aborted:
                self._before.note(f"its earlier steps from {int(batch.step[0]):,} on were not judged in time")
                break
            used = time.thread_time()
            self._engine.feed(batch, rank=self._rank)
            time.sleep(time.thread_time() - used if self._ending is None else 0.0)
        return True

    def _tell_run(self) -> None:
        info = self._info()
        if info is not self._known and self._engine is not None:
            self._known = info
            self._engine.update_run(info)

    def _feed(self, rows: Sequence[Row]) -> None:
        """Judges rows, those of one segment at a time."""
        assert self._engine is not None
        first = 0
        for at in range(1, len(rows) + 1):
            if at == len(rows) or rows[at].step <= rows[at - 1].step:
                part = list(rows[first:at])
                if self._before is not None and self._before.is_continued:
                    part[0] = part[0].with_default("resumed", 1.0)  # as the log has it
                    self._before.is_continued = False
                self._engine.feed(self._columns.batch(part), rank=self._rank)
                first = at

    def _judge(self, *, is_last: bool) -> None:
        assert self._engine is not None
        if is_last and self._ending is not None:
            status, reason = self._ending
            self._engine.update_run(RunInfo(status=status, reason=reason))
        verdict = self._engine.verdict(live=not is_last).to_json()
        source = verdict["source"]
        notes = [*source["notes"], *self._notes()]
        self.verdict = {**verdict, "source": {**source, "path": str(self._log), "notes": notes}}
        if is_last or time.monotonic() - self._written_at >= WRITE_EVERY_S:
            self._write(self.verdict)
        last, known = source["last_step"], self._known
        if last is not None and known is not None:
            self._ask(self._closer_look.settings(self.verdict, last_step=last, run=0, tensors=known.tensors))
        self._hear(Judgement.of_verdict(self.verdict))

    def _give_up(self) -> None:
        """After a fault of ours: what the file says is not the last word."""
        verdict, self.verdict = self.verdict, None
        if verdict is not None:
            source = verdict["source"]
            note = (
                f"the diagnosis in the trainer failed after step {source['last_step']}; "
                f"floatscope diagnose {self._log} judges all that was logged"
            )
            self._write({**verdict, "source": {**source, "notes": [*source["notes"], note]}})

    def _notes(self) -> list[str]:
        lag = "the diagnosis in the trainer could not keep up"
        notes = [] if self._before is None else list(self._before.notes)
        if self.thinned:
            notes.append(f"{lag}: {self.thinned:,} steps were judged without their tensors")
        if self.skipped:
            notes.append(f"{lag}: {self.skipped:,} steps were not judged")
        if self._hurried:
            notes.append(f"the last {self._hurried:,} steps were judged without their tensors, to end soon")
        if self._unjudged:
            notes.append(f"the last {self._unjudged:,} steps were not judged before the time was up")
        if notes:
            notes.append(f"floatscope diagnose {self._log} judges all that was logged")
        return notes

    def _write(self, verdict: Mapping[str, Any]) -> None:
        """Replaces the file in one go, so that whoever reads it sees a whole verdict."""
        self._written_at = time.monotonic()
        if self._log.exists() and not self._log.is_file():  # a device; whoever names one wants no files
            return
        new = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(dumps(verdict).encode() + b"\n")
            os.replace(new, self.path)
            self._is_written = True
        except OSError as error:
            self._is_written = False
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            if self._log.is_file():  # else the log has said so
                self._guard.say_once(
                    "verdict file",
                    f"cannot write the verdict {self.path} ({error.strerror or error}). Training goes on; "
                    "findings are still said here, you lose the file.",
                )


def _gone(verdict: Mapping[str, Any]) -> str:
    """A sentence where the run has gone back over what the verdict's summary begins with."""
    summary = str(verdict["summary"])
    found = [f for f in findings_of(verdict) if f.severity != "info" and f.state != "replaced"]
    if not any(f.rolled_back and summary.startswith(f.summary) for f in found):
        return ""
    all_of_it = "before all of it" if len(found) > 1 and all(f.rolled_back for f in found) else "before that"
    return f" The run has gone back to {all_of_it} and trained those steps again."


def verdict_path_of(log: Path) -> Path:
    """The verdict's place beside a log: rank0.jsonl has rank0.verdict.json."""
    return log.with_name(f"{log.stem}.verdict.json")


def _be_nice() -> None:
    """Lets this thread stand back; on Linux a thread has a niceness of its own, elsewhere it has not."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
