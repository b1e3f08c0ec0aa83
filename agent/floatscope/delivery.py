"""Delivery to a server: exactly once, whatever the server and the network do in between.

The server takes batches of a rank in order of their seq, answers a repeat with 200 and tells what it expects
when it disagrees. So one batch is under way at a time, it keeps its seq and its bytes until it is
acknowledged, and anything may be sent again at any time. Rows that have no seq yet may be dropped when memory
runs out, which makes no gap.

This module decides what to send next and what an answer means. It does no waiting of its own: ``work`` makes
at most one request and says how long to wait before the next. A spool on disk would take the place of the
backlog and the history.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from floatscope.answers import Verdict, detail, expected_seq, read_answer, retry_after_s, whole
from floatscope.backlog import Backlog
from floatscope.client import Answer, Transport, TransportError
from floatscope.guard import Guard
from floatscope.parcels import Body, History, Parcel, encode
from floatscope.protocol.batch import Batch
from floatscope.protocol.names import MAX_STEPS
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps
from floatscope.rows import Columns, Row, table_of

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0
SAY_AFTER_FAILURES = 3  # a server that restarts is back before; nobody needs to hear of it
BATCH_BYTES = 8 * 2**20  # unpacked; a thirtieth of what the server takes, so that a batch is soon judged
_JSON = {"Content-Type": "application/json"}


class Delivery:
    """Sends rows of one rank to a server. An outlet of the sender (see ``sender.Outlet``).

    info: the newest description of the run; a new object means it changed.
    on_settings: called with the settings of each answer.
    """

    def __init__(
        self,
        *,
        run_id: str,
        rank: int,
        transport: Transport,
        info: Callable[[], RunInfo],
        backlog: Backlog,
        guard: Guard,
        flush_every_s: float,
        batch_steps: int,
        compress: bool,
        on_settings: Callable[[Mapping[str, Any]], None],
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.is_done = False
        self.is_stopped = False
        self._is_refused = False
        self._run_id = run_id
        self._run_path = f"/api/v1/runs/{quote(run_id, safe='')}"
        self._rank = rank
        self._transport = transport
        self._info = info
        self._backlog = backlog
        self._guard = guard
        self._flush_every_s = flush_every_s
        self._batch_steps = batch_steps
        self._compress = compress
        self._on_settings = on_settings
        self._clock = clock
        self._rng = rng or random.Random()
        self._columns = Columns()
        self._outbox: deque[Parcel] = deque()  # only the first ones carry a seq
        self._history = History()
        self._known_tables: set[str] = set()
        self._sent_info: RunInfo | None = None
        self._was_registered = False
        self._is_resumed = False
        self._next_seq = 0
        self._ending: tuple[str, str | None] | None = None
        self._not_before = 0.0
        self._failures = 0

    @property
    def undelivered(self) -> int:
        """Steps taken over that the server has not acknowledged."""
        return len(self._backlog) + sum(len(parcel.batch) for parcel in self._outbox)

    def leftover(self) -> list[Batch]:
        """Those steps, oldest first; takes them out. Only once the sender's thread has ended."""
        batches = [parcel.batch for parcel in self._outbox if parcel.batch.lost is None]
        self._outbox.clear()
        columns = Columns()
        while len(self._backlog):
            batches.append(columns.batch(self._backlog.take(MAX_STEPS)))
        return batches

    def accept(self, rows: Sequence[Row]) -> None:
        """Takes rows over; the oldest are dropped and counted when memory runs out."""
        if not self._is_refused:
            self._backlog.add(rows, self._clock())

    def finish(self, status: str, reason: str | None) -> None:
        """Says how the run ended; it is sent once all rows are there. A pause after failures is cut short."""
        self._ending = (status, reason)
        self._not_before = 0.0

    def abort(self) -> None:
        """Ends a request under way; nothing is sent after that."""
        self.is_stopped = True
        self._transport.abort()

    def work(self) -> float | None:
        """Makes at most one request. Returns seconds until there may be more to do, None for nothing."""
        if self.is_stopped:
            self._transport.close()
            self.is_done = self._ending is not None
            return None
        if self.is_done:
            return None
        now = self._clock()
        if now < self._not_before:
            return self._not_before - now
        try:
            wait = self._next(now)
        except TransportError as error:
            self._retry_later(f"no answer from the server ({error})")
            wait = 0.0
        return wait if wait is None else max(wait, self._not_before - self._clock(), 0.0)

    def _next(self, now: float) -> float | None:
        info = self._info()
        if info is not self._sent_info:
            self._register(info)
            return 0.0
        if not self._outbox and len(self._backlog):
            wait = self._backlog.wait_s(now, flush_every_s=self._flush_every_s, steps=self._batch_steps)
            if wait > 0 and self._ending is None:
                return wait
            self._pack()
        if self._outbox:
            self._put(self._outbox[0])
            return 0.0
        if self._ending is not None:
            self._finish(*self._ending)
            return 0.0
        return None

    def _pack(self) -> None:
        most = max(1, min(self._batch_steps, BATCH_BYTES // max(self._columns.row_bytes, 1)))
        rows = self._backlog.take(most)
        if self._is_resumed:
            rows[0] = rows[0].with_default("resumed", 1.0)
            self._is_resumed = False
        if self._backlog.dropped:
            rows[0] = rows[0].with_default("agent_dropped_steps", float(self._backlog.dropped))
        batch = self._columns.batch(rows)
        self._outbox.append(Parcel(batch, table_of(batch, self._info().tensors)))

    def _register(self, info: RunInfo) -> None:
        body = dumps({"run_id": self._run_id, **info.to_json()}).encode()
        answer = self._transport.request("POST", "/api/v1/runs", body, _JSON)
        verdict = read_answer(answer)
        if verdict is Verdict.OK and answer.body is not None:
            expected = answer.body.get("expected_seq")
            if not self._was_registered and isinstance(expected, dict):
                self._next_seq = whole(expected.get(str(self._rank))) or 0
                self._is_resumed = self._next_seq > 0
            self._was_registered = True
            self._sent_info = info
            self._succeeded(answer)
        elif verdict in (Verdict.REFUSED, Verdict.TOO_LARGE) and self._was_registered:
            self._sent_info = info  # this much the server will never take, but it knows the run
            self._guard.say_once(
                "description", f"the server refuses the run's description: {detail(answer)}. The steps go on."
            )
        else:
            self._react(verdict if verdict is Verdict.STOP else Verdict.RETRY, answer, None)

    def _put(self, parcel: Parcel) -> None:
        if parcel.seq is None:
            parcel.seq = self._next_seq
        if parcel.body is None:
            parcel.body = self._encode(parcel, with_table=parcel.table_hash not in self._known_tables)
        path = f"{self._run_path}/ranks/{self._rank}/batches/{parcel.seq}"
        answer = self._transport.request("PUT", path, parcel.body.data, parcel.body.headers)
        verdict = read_answer(answer)
        if verdict is Verdict.OK and (expected_seq(answer) or 0) <= parcel.seq:
            verdict = Verdict.RETRY  # a page of a proxy or of another service: no acknowledgement of ours
        self._react(verdict, answer, parcel)

    def _encode(self, parcel: Parcel, *, with_table: bool) -> Body:
        return encode(parcel, rank=self._rank, with_table=with_table, compress=self._compress)

    def _react(self, verdict: Verdict, answer: Answer, parcel: Parcel | None) -> None:
        expected = expected_seq(answer)
        if verdict is Verdict.STOP:
            self._stop(answer)
        elif parcel is None or parcel.seq is None or verdict is Verdict.RETRY:
            self._retry_later(f"the server answered {answer.status} {detail(answer)}", retry_after_s(answer))
        elif verdict is Verdict.OK:
            self._delivered(parcel, parcel.seq, answer)
        elif verdict is Verdict.UNKNOWN_RUN:
            self._sent_info = None
            self._retry_later("the server does not know the run", quiet=True)
        elif verdict is Verdict.NEED_TENSORS:
            self._send_table(parcel)
        elif verdict in (Verdict.TOO_LARGE, Verdict.REFUSED):
            self._divide(parcel, parcel.seq, answer)
        elif expected is None or expected == parcel.seq:
            self._retry_later(f"the server answered {answer.status} {detail(answer)}")
        elif expected < parcel.seq and verdict is Verdict.GAP:
            self._rewind(parcel, expected)
        else:
            self._renumber(parcel, max(expected, parcel.seq + 1))

    def _delivered(self, parcel: Parcel, seq: int, answer: Answer) -> None:
        self._outbox.popleft()
        self._known_tables.add(parcel.table_hash)
        self._history.add(parcel)
        self._next_seq = max(seq + 1, expected_seq(answer) or 0)
        self._succeeded(answer)

    def _send_table(self, parcel: Parcel) -> None:
        """The server lacks the tensor table, so the same steps go out once more with it."""
        self._known_tables.discard(parcel.table_hash)
        if parcel.other_body is not None:
            self._retry_later("the server asks for a tensor table that it was sent")
            return
        parcel.other_body, parcel.body = parcel.body, self._encode(parcel, with_table=True)

    def _rewind(self, parcel: Parcel, expected: int) -> None:
        """The server lost what it had acknowledged (an older backup): send what is kept, name the rest."""
        assert parcel.seq is not None
        kept = self._history.take_from(expected)
        first = kept[0] if kept else parcel
        assert first.seq is not None
        if first.seq > expected:
            before = max(first.first_step - 1, 0)
            steps = self._history.steps_between(expected, first.seq) or (before, before)
            for later in (*kept, *self._outbox):
                later.seq = None
            kept.insert(0, Parcel.hole(*steps, seq=expected))
            self._guard.say_once(
                "rewound",
                f"the server went back to batch {expected}; it has lost steps {steps[0]} to {steps[1]}.",
            )
        self._outbox.extendleft(reversed(kept))

    def _renumber(self, parcel: Parcel, free: int) -> None:
        """Somebody else has used this seq with other bytes: the same steps go out under the next free one."""
        if parcel.other_body is not None:  # unless it was ourselves, in the encoding that was tried first
            parcel.body, parcel.other_body = parcel.other_body, None
            return
        self._guard.say_once(
            "conflict",
            "another process sends under the same run and rank; its steps and ours are kept side by side. "
            "Give each process its own rank or run_id.",
        )
        for later in self._outbox:
            later.seq = None
        self._next_seq = free
        self._retry_later("the seq is taken", quiet=True)

    def _divide(self, parcel: Parcel, seq: int, answer: Answer) -> None:
        """The server refuses the content: halve it until the step it dislikes stands alone; give that up."""
        self._outbox.popleft()
        for later in self._outbox:
            later.seq = None
        self._next_seq = seq
        if len(parcel.batch) > 1:
            self._outbox.extendleft(reversed(parcel.halves()))
            return
        self._guard.say_once(
            "refused",
            f"the server refuses step {parcel.first_step}: {detail(answer)}. You lose the steps it refuses.",
        )
        if parcel.batch.lost is None:
            self._outbox.appendleft(Parcel.hole(parcel.first_step, parcel.last_step, seq=None))

    def _finish(self, status: str, reason: str | None) -> None:
        if (
            status == "finished" and self._rank != 0
        ):  # the others may still be training; rank 0 speaks for all
            self._rest()
            return
        body = dumps({"status": status, "reason": reason}).encode()
        answer = self._transport.request("POST", f"{self._run_path}/finish", body, _JSON)
        verdict = read_answer(answer)
        if verdict in (Verdict.OK, Verdict.REFUSED) or answer.status == 204:
            self._rest()
        elif verdict is Verdict.STOP:
            self._stop(answer)
        else:
            self._sent_info = None if verdict is Verdict.UNKNOWN_RUN else self._sent_info
            self._react(Verdict.RETRY, answer, None)

    def _rest(self) -> None:
        self.is_done = True
        self._transport.close()

    def _stop(self, answer: Answer) -> None:
        self.is_stopped = self._is_refused = True
        self._guard.say_once(
            "token",
            f"the server refuses the token ({answer.status}): set FLOATSCOPE_TOKEN to a valid one "
            "(a server keeps its own in <data_dir>/token) and start again. "
            f"Training goes on; you lose the record from here on ({self.undelivered} steps were not sent).",
        )
        self._backlog.clear()
        self._outbox.clear()

    def _succeeded(self, answer: Answer) -> None:
        if self._failures >= SAY_AFTER_FAILURES:
            self._guard.say(f"the server answers again; {self.undelivered} steps are on their way.")
        self._failures = 0
        self._not_before = 0.0
        settings = (answer.body or {}).get("settings")
        if isinstance(settings, dict):
            self._on_settings(settings)

    def _retry_later(self, why: str, after_s: float | None = None, *, quiet: bool = False) -> None:
        """Exponential backoff with jitter, so that the ranks of a job do not all come back in one second."""
        self._failures += 1
        delay = min(FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 10), LONGEST_RETRY_S)
        self._not_before = self._clock() + max(delay * self._rng.uniform(0.5, 1.0), after_s or 0.0)
        if self._failures == SAY_AFTER_FAILURES and not quiet:
            self._guard.say_once(
                "unreachable",
                f"{why}. It is tried again; up to {self._backlog.most_rows:,} steps are kept in memory "
                "meanwhile. Training goes on.",
            )
