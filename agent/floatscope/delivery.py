"""Delivery to a server: exactly once, whatever the server and the network do in between.

The server takes batches of a rank in order of their seq, answers a repeat with 200 and tells what it expects
when it disagrees. So one batch is under way at a time, it keeps its seq and its bytes until it is
acknowledged, and anything may be sent again at any time, also by a later process, which finds both in the
spool. Steps that have no seq yet may be dropped when there is no room, which makes no gap.

This module decides what to send next and what an answer means. It waits for nothing: ``work`` hands at most
one request to the courier, or takes in what became of the last one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from floatscope.answers import News, Verdict, detail, expected_seq, read_answer, retry_after_s, said, whole
from floatscope.client import Answer, TransportError
from floatscope.courier import Courier, Request
from floatscope.guard import Guard
from floatscope.outbox import Outbox
from floatscope.parcels import History, Parcel
from floatscope.patience import Patience
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps
from floatscope.rows import Row

GIVE_UP_S = 1.0  # after the end of the run, for a server that does not answer
SAY_AFTER_FAILURES = 3  # a server that restarts is back before; nobody needs to hear of it
_JSON = {"Content-Type": "application/json"}


class Delivery:
    """Sends the rows of one rank to a server. An outlet of the sender (see ``sender.Outlet``).

    info: the newest description of the run; a new object means it changed.  gives_up: whether the end of the
    run is not held up by a server that does not answer, where everything lies on disk.
    """

    def __init__(
        self,
        *,
        run_id: str,
        rank: int,
        courier: Courier,
        info: Callable[[], RunInfo],
        outbox: Outbox,
        guard: Guard,
        news: News | None = None,
        gives_up: bool = False,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.is_done = False
        self.is_stopped = False
        self.is_shared = False  # another process has sent under this run and rank
        self.ending: tuple[str, str | None] | None = None
        self._is_refused = False
        self._run_id = run_id
        self._run_path = f"/api/v1/runs/{quote(run_id, safe='')}"
        self._rank = rank
        self._courier = courier
        self._info = info
        self._outbox = outbox
        self._guard = guard
        self._news = news or News()
        self._clock = clock
        self._gives_up = gives_up
        self.patience = Patience(rng or random.Random())
        self._ended_at = 0.0
        self._is_trouble_told = self._is_left_told = False
        self._then: Callable[[Answer], None] | None = None  # what to do with the answer that is awaited
        self._history = History()
        self._known_tables: set[str] = set()
        self._sent_info: RunInfo | None = None
        self._was_registered = False
        self._next_seq = 0

    @property
    def undelivered(self) -> int:
        """Steps taken over that the server has not acknowledged."""
        return self._outbox.undelivered

    def accept(self, rows: Sequence[Row]) -> None:
        """Takes rows over; the oldest are thinned, then dropped, and counted when there is no room."""
        if not self._is_refused or self._outbox.spool is not None:
            self._outbox.accept(rows, self._clock())

    def goes_on(self, next_seq: int) -> None:
        """The server knows the run and expects this seq: opening it again would set it running."""
        self._was_registered, self._sent_info = True, self._info()
        self._next_seq = next_seq

    def finish(self, status: str, reason: str | None) -> None:
        """Says how the run ended; it is sent once all rows are there. A pause after failures is cut short."""
        self.ending = (status, reason)
        self._ended_at = self._clock()
        self.patience.not_before = 0.0

    def abort(self) -> None:
        """Ends a request under way; nothing is sent after that."""
        self.is_stopped = True
        if self._then is not None and self.patience.last_failure is None:
            self.patience.last_failure = "the server had not answered yet"
        self._courier.abort()

    def work(self) -> float | None:
        """Keeps what is due, and sends or takes in at most one request.

        Returns seconds until there may be more to do; None for not before an answer or new rows are there.
        """
        if self.is_done:
            return None
        now = self._clock()
        self._outbox.keep(now, ending=self.ending)
        if self.is_stopped:
            if self.ending is not None:
                self._rest(is_all_said=False)
            return None
        if self._then is None:
            due = self.patience.not_before
            wait = due - now if now < due else self._next(now)
            if self._then is None:
                return None if self._gave_up(now) else wait
        self._listen(self._then)
        if self._then is None:
            return max(self.patience.not_before - self._clock(), 0.0)
        self._watch(now)
        return None

    def left_behind(self) -> str | None:
        """What became of steps that were not delivered, once. Only when nothing is sent any more."""
        kept, lost, path = self._outbox.left
        why = "" if self.patience.last_failure is None else f" ({self.patience.last_failure})"
        parts = []
        if kept and path is not None:
            where = f"{kept:,} steps could not be delivered{why} and are kept in {path}"
            parts.append(f"{where}; to deliver them: floatscope resend {path.parent.parent}")
            why = ""
        if lost:
            parts.append(f"{lost:,} steps could neither be delivered nor kept{why} and are lost")
        is_told, self._is_left_told = self._is_left_told, True
        return None if is_told else "; ".join(parts) or None

    def _watch(self, now: float) -> None:
        """Looks how long a request has been under way."""
        waited = self.patience.hangs_for(now)
        if waited is not None:
            self.patience.last_failure = f"the server has not answered for {waited:.0f} s"
            self._tell_trouble(self.patience.last_failure)
        self._gave_up(now)

    def _gave_up(self, now: float) -> bool:
        """Ends the wait for a server that does not answer: what it has not taken lies on disk."""
        is_over = self.ending is not None and now - self._ended_at >= GIVE_UP_S
        if not (self._gives_up and is_over and self.patience.is_away(now)) or self._outbox.in_memory:
            return False
        if not self.is_done:
            self.abort()
            self._rest(is_all_said=False)
            left = self.left_behind()
            if left is not None:
                self._guard.say(left)
        return True

    def _next(self, now: float) -> float | None:
        """Asks what is next. Returns seconds to wait where there is nothing to ask yet."""
        info = self._info()
        if info is not self._sent_info:
            self._register(info)
            return None
        wait = self._outbox.due_in(now)
        if wait is not None and (wait == 0 or self.ending is not None):
            parcel = self._outbox.front(self._next_seq, self._known_tables)
            if parcel is not None:
                self._put(parcel)
            return 0.0
        if wait is None and self.ending is not None:
            self._finish(*self.ending)
        return wait

    def _ask(self, request: Request, then: Callable[[Answer], None]) -> None:
        self._courier.send(request)
        self._then = then
        self.patience.asked(self._clock())

    def _listen(self, then: Callable[[Answer], None]) -> None:
        outcome = self._courier.outcome()
        if outcome is None:
            return
        self._then = None
        self.patience.answered(
            is_ours=isinstance(outcome, Answer) and (outcome.body is not None or outcome.status == 429)
        )
        if isinstance(outcome, TransportError):
            if not self.is_stopped:
                self._retry_later(f"no answer from the server ({outcome})")
        else:
            then(outcome)

    def _register(self, info: RunInfo) -> None:
        body = dumps({"run_id": self._run_id, **info.to_json()}).encode()
        request = Request("POST", "/api/v1/runs", body, _JSON)
        self._ask(request, lambda answer: self._registered(info, answer))

    def _registered(self, info: RunInfo, answer: Answer) -> None:
        verdict = read_answer(answer)
        if verdict is Verdict.OK and answer.body is not None:
            expected = answer.body.get("expected_seq")
            if not self._was_registered and isinstance(expected, dict):
                self._next_seq = whole(expected.get(str(self._rank))) or 0
                self._outbox.is_resumed = self._outbox.is_resumed or self._next_seq > 0
            url = answer.body.get("url")
            if not self._was_registered and isinstance(url, str):
                self._news.url(url)
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
        assert parcel.body is not None
        path = f"{self._run_path}/ranks/{self._rank}/batches/{parcel.seq}"
        request = Request("PUT", path, parcel.body.data, parcel.body.headers)
        self._ask(request, lambda answer: self._was_put(parcel, answer))

    def _was_put(self, parcel: Parcel, answer: Answer) -> None:
        assert parcel.seq is not None
        verdict = read_answer(answer)
        if verdict is Verdict.OK and (expected_seq(answer) or 0) <= parcel.seq:
            verdict = Verdict.RETRY  # a page of a proxy or of another service: no acknowledgement of ours
        self._react(verdict, answer, parcel)

    def _react(self, verdict: Verdict, answer: Answer, parcel: Parcel | None) -> None:
        expected = expected_seq(answer)
        if verdict is Verdict.STOP:
            self._stop(answer)
        elif parcel is None or parcel.seq is None or verdict is Verdict.RETRY:
            self._retry_later(f"the server answered {said(answer)}", retry_after_s(answer))
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
            self._retry_later(f"the server answered {said(answer)}")
        elif expected < parcel.seq and verdict is Verdict.GAP:
            self._rewind(parcel, expected)
        else:
            self._renumber(parcel, max(expected, parcel.seq + 1))

    def _delivered(self, parcel: Parcel, seq: int, answer: Answer) -> None:
        self._outbox.delivered()
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
        parcel.other_body, parcel.body = parcel.body, self._outbox.encode_with_table(parcel)

    def _rewind(self, parcel: Parcel, expected: int) -> None:
        """The server lost what it had acknowledged (an older backup): send what is kept, name the rest."""
        assert parcel.seq is not None
        kept = self._history.take_from(expected)
        first = kept[0] if kept else parcel
        assert first.seq is not None
        if first.seq > expected:
            before = max(first.first_step - 1, 0)
            steps = self._history.steps_between(expected, first.seq) or (before, before)
            self._outbox.forget_seqs()
            for later in kept:
                later.seq = None
            kept.insert(0, Parcel.hole(*steps, seq=expected))
            self._guard.say_once(
                "rewound",
                f"the server went back to batch {expected}; it has lost steps {steps[0]} to {steps[1]}.",
            )
        self._outbox.put_back(kept)

    def _renumber(self, parcel: Parcel, free: int) -> None:
        """Somebody else has used this seq with other bytes: the same steps go out under the next free one."""
        if parcel.other_body is not None:  # unless it was ourselves, in the encoding that was tried first
            parcel.body, parcel.other_body = parcel.other_body, None
            return
        self.is_shared = True
        self._guard.say_once(
            "conflict",
            "another process sends under the same run and rank; its steps and ours are kept side by side. "
            "Give each process its own rank or run_id.",
        )
        self._outbox.forget_seqs()
        self._next_seq = free
        self._retry_later("the seq is taken", quiet=True)

    def _divide(self, parcel: Parcel, seq: int, answer: Answer) -> None:
        """The server refuses the content: halve it until the step it dislikes stands alone; give that up."""
        self._outbox.forget_seqs()
        self._next_seq = seq
        if len(parcel.batch) > 1:
            self._outbox.take_out()
            self._outbox.put_back(parcel.halves())
            return
        self._guard.say_once(
            "refused",
            f"the server refuses step {parcel.first_step}: {detail(answer)}. You lose the steps it refuses.",
        )
        if parcel.batch.lost is not None:
            self._outbox.delivered()  # not even a hole is taken: there is nothing left to say of it
            return
        self._outbox.take_out()
        hole = Parcel.hole(parcel.first_step, parcel.last_step, seq=None, entries=parcel.entries)
        self._outbox.put_back([hole])

    def _finish(self, status: str, reason: str | None) -> None:
        if (
            status == "finished" and self._rank != 0
        ):  # the others may still be training; rank 0 speaks for all
            self._rest(is_all_said=True)
            return
        body = dumps({"status": status, "reason": reason}).encode()
        self._ask(Request("POST", f"{self._run_path}/finish", body, _JSON), self._finished)

    def _finished(self, answer: Answer) -> None:
        verdict = read_answer(answer)
        if verdict in (Verdict.OK, Verdict.REFUSED) or answer.status == 204:
            self._rest(is_all_said=True)
        elif verdict is Verdict.STOP:
            self._stop(answer)
        else:
            self._sent_info = None if verdict is Verdict.UNKNOWN_RUN else self._sent_info
            self._react(Verdict.RETRY, answer, None)

    def _rest(self, *, is_all_said: bool) -> None:
        self.is_done = True
        self._outbox.close(is_all_said=is_all_said)
        self._courier.rest()

    def _stop(self, answer: Answer) -> None:
        self.is_stopped = self._is_refused = True
        spool = self._outbox.spool
        loss = f"you lose the record from here on ({self.undelivered} steps were not sent)"
        if spool is not None:
            loss = f"what was not sent is kept in {spool.path}; floatscope resend delivers it"
        self._guard.say_once(
            "token",
            f"the server refuses the token ({answer.status}): set FLOATSCOPE_TOKEN to a valid one "
            f"(a server keeps its own in <data_dir>/token) and start again. Training goes on; {loss}.",
        )
        if spool is None:
            self._outbox.give_up_memory()

    def _succeeded(self, answer: Answer) -> None:
        if self._is_trouble_told:
            self._is_trouble_told = False
            self._guard.say(f"the server answers again; {self.undelivered} steps are on their way.")
        self.patience.succeeded()
        body = answer.body or {}
        if isinstance(body.get("settings"), dict):
            self._news.settings(body["settings"])
        if body.get("verdict") is not None:
            self._news.verdict(body["verdict"])

    def _retry_later(self, why: str, after_s: float | None = None, *, quiet: bool = False) -> None:
        """The same again after a pause.  after_s: what the server asked for."""
        self.patience.failed(why, self._clock(), after_s)
        if self.patience.failures == SAY_AFTER_FAILURES and not quiet:
            self._tell_trouble(why)

    def _tell_trouble(self, why: str) -> None:
        self._is_trouble_told = True
        self._guard.say_once(
            "unreachable",
            f"{why}. It is tried again; meanwhile the steps are kept {self._outbox.kept_in}. "
            "Training goes on.",
        )
