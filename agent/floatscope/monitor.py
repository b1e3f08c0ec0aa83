"""The monitor of one rank of one run: what a training loop talks to.

Nothing here waits, raises or calls ``.item()`` on a device. A step becomes a row; the row goes to the
sender's thread once the device has answered, which may be a few steps later.
"""

from __future__ import annotations

import math
import numbers
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from floatscope.capture import Captures
from floatscope.catalog import Catalog
from floatscope.config import MonitorConfig
from floatscope.crash import CrashWatch, reason_of, status_of
from floatscope.findings import FindingBoard
from floatscope.guard import Guard
from floatscope.jsonable import describe
from floatscope.probes import Pending, ProbeSet, WithoutTorch
from floatscope.protocol.judgement import BriefFinding
from floatscope.protocol.names import MAX_STEP
from floatscope.reactions import Reactions
from floatscope.recorder import FlightRecorder
from floatscope.rows import Row
from floatscope.scalars import ScalarIntake, whole_number
from floatscope.schedule import Schedule
from floatscope.sender import Sender

LATE_ROWS = 64  # rows whose device readings are still under way; beyond, the oldest goes without them
LAST_SEND_S = 1.5  # longest wait for the last rows to be delivered on SIGTERM
LAST_READ_S = 2.0  # longest wait at the end of a run for readings of a device that may be dead


class Monitor:
    """Records a run. Make one with ``floatscope.watch``.

    run_id: identity of the run on the server.  settings: what the server last asked for.  data_id: what the
    loop calls the last batch.
    As a context manager it finishes the run, as crashed if the block raised.
    """

    def __init__(
        self,
        config: MonitorConfig,
        *,
        run_id: str,
        guard: Guard,
        catalog: Catalog,
        probes: ProbeSet,
        sender: Sender | None,
        schedule: Schedule,
        settings: dict[str, Any],
        board: FindingBoard,
        farewell: Callable[[], str | None],
        left_behind: Callable[[], str | None],
        recorder: FlightRecorder | None = None,
        captures: Captures | None = None,
    ) -> None:
        self.run_id = run_id
        self.rank = config.rank
        self.settings = settings
        self._config = config
        self._guard = guard
        self._catalog = catalog
        self._probes = probes
        self._sender = sender
        self._schedule = schedule
        self._board = board
        self._captures = captures
        self._reactions = Reactions(config, board, captures=captures, guard=guard)
        self._farewell = farewell
        self._left_behind = left_behind
        self._recorder = recorder
        self.data_id: int | str | None = None
        self._intake = ScalarIntake(guard)
        self._stepping = guard.area("recording a step", loses="the record of some steps")
        self._stepping.on_trip = probes.remove  # nobody collects any more what they measure
        self._logging = guard.area("log()", loses="the values given to it")
        self._finishing = guard.area("finishing", loses="the last steps and how the run ended")
        self._pid = os.getpid()
        self._is_open = sender is not None
        self._next_step = 0
        self._is_stepped = False  # whether the loop has called step()
        self._logged_step: int | None = None  # what log() has called the step under way, until then
        self._undo: list[Callable[[], None]] = []
        self._row: Row | None = None
        self._pending: deque[tuple[Row, Pending]] = deque()
        self._step_ended_at: float | None = None
        self._crash = CrashWatch(self._end, on_error=self._failed, on_signal=self._terminated)
        if self._is_open:
            with guard.area("watching for the end of the process", loses="how the run ended"):
                self._crash.install()
            with self._stepping:
                self._probes.begin(schedule.look(0))

    def batch(self, batch: Any, *, step: int | None = None, data_id: int | str | None = None) -> None:
        """Looks at a batch before the forward pass: token ids, labels, non-finite inputs.

        batch: a tensor, or tensors in dicts, lists and tuples. What is found belongs to the step that follows
        and is sent even if the forward pass crashes. step: number of that step, if it is not the next one.
        data_id: what finds the batch again, a number (also a scalar of the step) or text of up to 1 kB.
        """
        if not self._is_mine() or self._stepping.tripped or self._is_called_back("batch"):
            return
        with self._stepping:
            row = self._open_row(self._step_number(step))
            if self._step_ended_at is not None and "data_time_s" not in row.scalars:
                row.scalars["data_time_s"] = time.perf_counter() - self._step_ended_at
            self._note_batch(row, data_id)
            if self._captures is not None:
                self._captures.hold(batch, step=row.step, data_id=self.data_id)
            self._probes.batch(batch)

    def step(self, step: int | None = None, **scalars: Any) -> None:
        """Ends a step, after the optimizer's. Scalars are numbers or one-element tensors; None is missing.

        step: its number; by default one more than the last, from 0. A resumed run passes it.
        """
        if not self._is_mine() or self._stepping.tripped or self._is_called_back("step"):
            return
        with self._stepping:
            self._is_stepped = True
            self._end_step(self._step_number(step), scalars)

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Adds scalars to the step under way, the one that the next call of ``step`` ends.

        values: numbers or one-element tensors; dicts inside become ``outer/inner``. step: number of the step.
        A loop that never calls ``step`` ends one by naming a higher number here.
        """
        if not self._is_mine() or self._stepping.tripped or self._logging.tripped:
            return
        with self._logging:
            if not isinstance(values, Mapping):
                kind = type(values).__name__
                self._guard.say_once(
                    "log", f"log() takes a dict of numbers, not a {kind}: nothing is recorded."
                )
                return
            number = self._step_number(step)
            if step is not None and not self._is_stepped:
                if self._logged_step is not None and number > self._logged_step:
                    self._end_step(self._logged_step, {})
                self._logged_step = number
            if number < self._next_step:
                self._guard.say_once(
                    "late log", "log() came after the step it names had ended; its values go to the next one."
                )
                number = self._next_step
            row = self._open_row(number)
            self._intake.take(values, row.scalars, self._probes.read_later)

    @property
    def findings(self) -> tuple[BriefFinding, ...]:
        """What the diagnosis says now, the worst first; empty before it has spoken."""
        return () if self._board.latest is None else self._board.latest.findings

    @property
    def should_stop(self) -> bool:
        """Whether a finding asks to stop (settings ``stop_on`` and ``stop_confidence``).

        Stays true until the loop goes back: until ``step`` is called with a step at or before the last.
        Ranks hear of findings at different times: decide on one rank and tell the others.
        """
        return self._reactions.should_stop

    def is_clean(self, step: int | None = None) -> bool | None:
        """Whether a checkpoint after ``step`` (by default the last one) is safe to go back to.

        True: no warning or critical finding began at or before it, and the run is judged up to
        ``clean_after`` (or ``stats_every``, if that is more) steps beyond it, since a fault is proven a while
        after it began. False: one did. None: not judged that far yet, which counts as false in an ``if``.
        """
        settled = max(self._config.clean_after, self._config.stats_every)
        return self._board.is_clean(self._next_step - 1 if step is None else step, settled=settled)

    def capture(self, reason: str = "asked for", *, step: int | None = None) -> Path | None:
        """Saves the batch of a step and the random states before it, so that the step can be run again.

        step: by default the last one ``batch`` was called for; earlier ones are held for a while. Returns the
        folder, which a thread is writing; None where the step is not held.
        """
        path = None
        with self._stepping:
            if self._captures is not None and self._is_mine():
                path = self._captures.save(describe(reason), None if step is None else whole_number(step))
        return path

    def at_end(self, undo: Callable[[], None]) -> None:
        """Has ``undo`` called once when the run ends, or now if nothing is recorded.

        It puts back what was wrapped to call this monitor.
        """
        if self._is_mine():
            self._undo.append(undo)
            return
        with self._finishing:
            undo()

    def finish(self, status: str = "finished", reason: str | None = None) -> None:
        """Ends the run: sends what is left, waiting a bounded time, and puts everything back as it was.

        status: finished, failed or crashed.
        """
        if status not in ("finished", "failed", "crashed"):
            self._guard.say(
                f"finish(status={status!r}): expected finished, failed or crashed; failed is taken."
            )
            reason = reason or f"status {status}"
            status = "failed"
        error = sys.exc_info()[1]  # of the except block that finishes the run, if it is one
        if status != "finished" and error is not None:
            self._failed(error)
        self._end(status, None if reason is None else describe(reason))

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._end("finished", None)
        else:
            self._failed(error)
            self._end(status_of(error), reason_of(error))

    def _failed(self, error: BaseException) -> None:
        with self._finishing:
            if self._recorder is not None and self._is_mine():
                self._recorder.failed(error)

    def _is_called_back(self, name: str) -> bool:
        """Whether on_finding calls this: it runs inside a step, and no other can begin or end there."""
        if self._reactions.is_calling:
            self._guard.say_once(f"on_finding {name}", f"on_finding called {name}(), which is passed over.")
        return self._reactions.is_calling

    def _is_mine(self) -> bool:
        """False once finished, and in a forked child: it has no thread and must not speak for its parent."""
        return self._is_open and os.getpid() == self._pid

    def _step_number(self, step: object) -> int:
        if step is None:
            return self._next_step
        if type(step) is not int:
            step = whole_number(step)
        if 0 <= step <= MAX_STEP:
            return step
        self._guard.say_once(
            "step", "step has to be a whole number from 0 up; one more than the last is used instead."
        )
        return self._next_step

    def _open_row(self, step: int) -> Row:
        """The row of the step under way."""
        if self._row is None:
            self._row = Row(step, time.time())
        self._row.step = step
        return self._row

    def _note_batch(self, row: Row, data_id: object) -> None:
        """Says which batch the step has begun with."""
        if isinstance(data_id, numbers.Integral):
            data_id = int(data_id)
            if abs(data_id) <= MAX_STEP:  # a larger one, a hash perhaps, is no number for a curve
                row.scalars["data_id"] = float(data_id)
        elif data_id is not None and not isinstance(data_id, str):
            self._guard.say_once("data_id", "data_id has to be a whole number or text; it is not recorded.")
            data_id = None
        self.data_id = data_id
        if self._recorder is not None:
            self._recorder.began(row.step, data_id)

    def _end_step(self, step: int, scalars: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        row = self._open_row(step)
        self._row = None
        row.time = time.time()
        self._crash.trains_here()
        if self._step_ended_at is not None:
            row.scalars["step_time_s"] = now - self._step_ended_at
        self._intake.take(scalars, row.scalars, self._probes.read_later)
        if self._recorder is not None:
            self._recorder.ended(step, row.scalars, at=row.time)
        if not math.isfinite(row.scalars.get("loss", 0.0)):
            self._schedule.look_closer(step)
        if step < self._next_step and self._step_ended_at is not None:
            self._reactions.go_back(step, peak=self._next_step - 1)
            self._schedule.go_back(step)
        self._hand_over(row)
        self._next_step = step + 1
        self._reactions.react()
        if not self._is_open:  # on_finding may end the run
            return
        self._probes.begin(self._schedule.look(step + 1))
        self._step_ended_at = time.perf_counter()

    def _hand_over(self, row: Row) -> None:
        """Collects what the probes found and passes on the rows whose readings have arrived, in order."""
        assert self._sender is not None
        self._pending.append((row, self._probes.collect(row)))
        while self._pending and (self._pending[0][1].is_ready() or len(self._pending) > LATE_ROWS):
            first, pending = self._pending.popleft()
            pending.deliver(first)
            self._sender.put(first)

    def _end(self, status: str, reason: str | None) -> None:
        if not self._is_mine():
            return
        self._is_open = False
        self._reactions.end()
        with self._finishing:
            self._crash.remove()
        with self._finishing:
            self._send_rest(is_crash=status == "crashed")
        for undo in reversed(self._undo):
            with self._finishing:
                undo()
        self._undo.clear()
        with self._finishing:
            self._probes.remove()
        self._stepping.on_trip = None
        self._probes = WithoutTorch(None)  # a finished monitor keeps neither model nor optimizer alive
        with self._finishing:
            self._close_sender(status, reason)
        with self._finishing:
            if self._recorder is not None:
                self._recorder.remove()
        with self._finishing:
            if self._captures is not None:
                self._captures.close(self._board.take_new(), crash=reason if status == "crashed" else None)

    def _send_rest(self, *, is_crash: bool) -> None:
        """The row of a step that never ended carries what its batch and its forward pass showed."""
        assert self._sender is not None
        if self._row is not None or (is_crash and self._probes.has_readings()):
            row = self._open_row(self._row.step if self._row is not None else self._next_step)
            row.time = time.time()
            self._pending.append((row, self._probes.collect(row)))
        deadline = time.monotonic() + LAST_READ_S
        for row, pending in self._pending:
            while not pending.is_ready() and time.monotonic() < deadline:
                time.sleep(0.001)
            pending.deliver(row)
            self._sender.put(row)
        self._pending.clear()

    def _terminated(self, status: str, reason: str | None) -> None:
        """Ends the record, not the probes: the training thread stands in a handler, the process ends."""
        if not self._is_mine() or self._sender is None:
            return
        self._is_open = False
        with self._finishing:
            if self._recorder is not None:
                self._recorder.signalled(reason or "a signal")
        with self._finishing:
            for row, pending in list(self._pending):
                if pending.is_ready():
                    pending.deliver(row)
                self._sender.put(row)
        with self._finishing:
            self._close_sender(status, reason, timeout_s=min(LAST_SEND_S, self._config.close_timeout_s))

    def _close_sender(self, status: str, reason: str | None, *, timeout_s: float | None = None) -> None:
        assert self._sender is not None
        if timeout_s is None:
            timeout_s = self._config.close_timeout_s
        if not self._sender.close(status, reason, timeout_s=timeout_s):
            left = self._left_behind()
            if left is not None:
                self._guard.say(left)
        line = self._farewell()
        if line is not None:
            sys.stderr.write(line + "\n")
