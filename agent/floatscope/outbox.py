"""What waits for the server, oldest first: batches under way, the spool on disk, rows in memory.

Rows go to the spool as soon as a batch is due, whatever the server does: from there on they outlive the
process. A batch is read back when its turn comes. Where the spool does not work (no room, read-only, another
process has it) the rows wait in memory, within their bounds.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from floatscope.backlog import Backlog
from floatscope.guard import Guard
from floatscope.parcels import Body, Parcel, Tables, encode
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Columns, Row
from floatscope.spool import Entry, Spool
from floatscope.spool_batches import can_follow, detail_rows, flags_of, headers_of, joined, with_scalar
from floatscope.spool_format import Flag
from floatscope.spool_thinning import Loss, pack_small, read_entry, shrink

TRY_AGAIN_S = 10.0  # after a disk refused
PRESSURE = (0.25, 0.5, 0.75)  # how full, for each level of pressure
BATCH_BYTES = 8 * 2**20  # unpacked; a thirtieth of what the server takes, so that a batch is soon judged
ROWS_A_TURN = 4096  # written in one go; the rest follows after a look at the server


class Outbox:
    """The queue of one rank.

    is_resumed: the run had steps before; the first own step that is sent says so.
    left: after ``close``, steps kept in the spool, steps lost, and where the spool is.
    open_spool: opens the spool or raises OSError; None for memory only.  on_pressure: called with 0 to 3 when
    the queue fills up or empties.
    """

    def __init__(
        self,
        *,
        rank: int,
        backlog: Backlog,
        info: Callable[[], RunInfo],
        guard: Guard,
        flush_every_s: float = 1.0,
        batch_steps: int = 256,
        compress: bool = True,
        open_spool: Callable[[], Spool] | None = None,
        about: Callable[[], dict[str, Any]] = dict,
        on_pressure: Callable[[int], None] = lambda level: None,
    ) -> None:
        self.is_resumed = False
        self.left: tuple[int, int, Path | None] = (0, 0, None)
        self.spool: Spool | None = None
        self.loss = Loss()
        self._rank = rank
        self._backlog = backlog
        self._info = info
        self._guard = guard
        self._flush_every_s = flush_every_s
        self._batch_steps = batch_steps
        self._compress = compress
        self._open_spool = open_spool
        self._about = about
        self._on_pressure = on_pressure
        self._columns = Columns()
        self._tables = Tables()
        self._ready: deque[Parcel] = deque()  # the first is the one under way
        self._loose: Parcel | None = None  # packed, but the disk refused it
        self._fresh: Parcel | None = None  # the last one written, which is often the next one read
        self._pressure = 0
        self._disk_again_at = 0.0
        self._is_refused = False  # by the disk, the last time something was to be written
        self._written_about: dict[str, Any] | None = None

    @property
    def undelivered(self) -> int:
        """Steps that the server has not acknowledged."""
        return self.in_memory + (self.spool.steps if self.spool is not None else 0)

    @property
    def in_memory(self) -> int:
        """Those that would go with the process."""
        held = sum(len(parcel.batch) for parcel in self._ready if not parcel.entries)
        return held + len(self._backlog) + (len(self._loose.batch) if self._loose is not None else 0)

    @property
    def kept_in(self) -> str:
        """Where the steps lie that come now, in words."""
        if self.spool is None or self._is_refused:
            return f"in memory, up to {self.most_in_memory:,}"
        return f"in {self.spool.path}"

    @property
    def most_in_memory(self) -> int:
        """Steps that memory holds at most."""
        return self._backlog.most_rows

    def accept(self, rows: Sequence[Row], now: float) -> None:
        """Takes rows over."""
        self._backlog.add(rows, now)

    def keep(self, now: float, *, ending: tuple[str, str | None] | None = None) -> None:
        """Writes to disk what is due; at the end of the run, all there is and how it ended."""
        is_hurried = ending is not None
        if self._open_spool is not None:
            self._open(self._open_spool)
        if self.spool is not None and (now >= self._disk_again_at or is_hurried):
            try:
                self._describe(self.spool, ending)
                self._write(self.spool, now, is_hurried=is_hurried)
                self._is_refused = False
            except OSError as error:
                self._is_refused = True
                self._disk_again_at = now + TRY_AGAIN_S
                self._guard.say_once(
                    "spool",
                    f"cannot write to {self.spool.path} ({error.strerror or error}). Training goes on; up to "
                    f"{self.most_in_memory:,} steps that are not sent yet are kept in memory only.",
                )
        self._press()

    def due_in(self, now: float) -> float | None:
        """Seconds until there is something to send; None if there is nothing at all."""
        if self._ready or self._loose is not None or (self.spool is not None and self.spool.entries):
            return 0.0
        if not len(self._backlog):
            return None
        return self._backlog.wait_s(now, flush_every_s=self._flush_every_s, steps=self._batch_steps)

    def front(self, next_seq: int, known_tables: Container[str]) -> Parcel | None:
        """The parcel whose turn it is, with seq and body, both written down; it stays until ``delivered``.

        known_tables: hashes of the tensor tables that the server has.
        """
        if not self._ready and self.spool is not None:
            self._load(self.spool)
        if not self._ready and self._loose is not None:
            self._ready.append(self._loose)
            self._loose = None
        if not self._ready and len(self._backlog):
            self._ready.append(self._pack())
        if not self._ready:
            return None
        parcel = self._ready[0]
        if parcel.seq is None:
            parcel.seq = next_seq
            self._mark_resumed(parcel)
            needs_table = bool(parcel.table) and parcel.table_hash not in known_tables
            if parcel.body is None or (needs_table and not parcel.body.with_table):
                parcel.body, parcel.other_body = self._encode(parcel, with_table=needs_table), None
        if parcel.body is None:
            parcel.body = self._encode(parcel, with_table=True)
        if self.spool is not None and parcel.entries and not parcel.is_part:
            return self._seal(self.spool, parcel, next_seq)
        return parcel

    def delivered(self) -> Parcel:
        """Takes the front parcel out: the server has it."""
        parcel = self.take_out()
        for entry in parcel.entries:
            if self.spool is not None:
                self.spool.delivered(entry)
        return parcel

    def take_out(self) -> Parcel:
        """Takes the front parcel out, to be put back in another form."""
        return self._ready.popleft()

    def put_back(self, parcels: Sequence[Parcel]) -> None:
        """Puts parcels at the front, in this order."""
        self._ready.extendleft(reversed(parcels))

    def forget_seqs(self) -> None:
        """What waits gets a new seq when it is sent."""
        for parcel in self._ready:
            parcel.seq = None
        if self.spool is not None:
            self.spool.forget_seqs()

    def give_up_memory(self) -> None:
        """Lets go of what is only in memory: nobody will take it any more."""
        self._backlog.clear()
        self._loose = None
        self._ready = deque(parcel for parcel in self._ready if parcel.entries)

    def close(self, *, is_all_said: bool) -> None:
        """Lets the spool go.  is_all_said: deletes it, if nothing waits in it."""
        kept = self.spool.steps if self.spool is not None else 0
        self.left = (kept, self.in_memory, self.spool.path if self.spool is not None else None)
        spool, self.spool, self._open_spool = self.spool, None, None
        if spool is None:
            return
        if is_all_said and not spool.entries:
            spool.remove()
        else:
            spool.close()

    def encode_with_table(self, parcel: Parcel) -> Body:
        """The body with the tensor table in it."""
        return self._encode(parcel, with_table=True)

    def _open(self, open_spool: Callable[[], Spool]) -> None:
        self._open_spool = None
        try:
            spool = self.spool = open_spool()
        except OSError as error:
            self._guard.say_once(
                "no spool",
                f"what the server has not taken yet cannot be kept on disk ({error.strerror or error}). "
                f"Training goes on; up to {self.most_in_memory:,} steps are kept in memory.",
            )
            return
        if spool.damaged:
            self._guard.say(f"{spool.damaged} places in {spool.path} cannot be read; what lay there is lost.")
        self.is_resumed = self.is_resumed or spool.was_there
        if spool.entries:
            self._guard.say(
                f"an earlier process of this run left {spool.steps:,} steps that were not delivered; "
                "they go first."
            )

    def _describe(self, spool: Spool, ending: tuple[str, str | None] | None) -> None:
        about = self._about()
        if ending is not None:
            about["status"], about["reason"] = ending
        if about != self._written_about:
            spool.describe(about)
            self._written_about = about

    def _write(self, spool: Spool, now: float, *, is_hurried: bool) -> None:
        self._shrink(spool)
        if spool.size > spool.limit_bytes:
            raise OSError(f"it is full: {spool.size:,} bytes")
        left = ROWS_A_TURN
        while self._loose is not None or (len(self._backlog) and (left > 0 or is_hurried)):
            wait = self._backlog.wait_s(now, flush_every_s=self._flush_every_s, steps=self._batch_steps)
            if self._loose is None and wait > 0 and not is_hurried:
                break
            parcel = self._loose or self._pack()
            left -= len(parcel.batch)
            self._loose = parcel
            try:
                self._append(spool, parcel)
            except OSError:
                raise
            except Exception:  # what cannot be packed now never can be; what comes after it goes on
                self._loose = None
                self.loss.dropped += len(parcel.batch)
                raise
            self._loose = None
            self._fresh = parcel if len(spool.entries) == 1 else None
            self._shrink(spool)
        pack_small(spool, self.loss, rank=self._rank, compress=self._compress)

    def _shrink(self, spool: Spool) -> None:
        if spool.size > spool.limit_bytes:
            self._guard.say_once(
                "spool full",
                f"the spool {spool.path} is full ({spool.limit_bytes:,} bytes): the oldest tensor "
                "statistics are thinned out; what goes is counted.",
            )
            shrink(spool, self.loss, rank=self._rank, compress=self._compress)

    def _pack(self) -> Parcel:
        rows = self._backlog.first(self._batch_steps)
        rows = rows[: self._columns.fitting(rows, BATCH_BYTES)]
        self._backlog.take(len(rows))
        lost = {
            "agent_dropped_steps": self._backlog.dropped + self.loss.dropped + self.loss.damaged,
            "agent_thinned_steps": self._backlog.thinned + self.loss.thinned,
        }
        if self.is_resumed:
            rows[0] = rows[0].with_default("resumed", 1.0)
            self.is_resumed = False
        for name, count in lost.items():
            if count:
                scalars = rows[0].scalars
                rows[0] = replace(rows[0], scalars={**scalars, name: count + scalars.get(name, 0.0)})
        return self._tables.parcel(self._columns.batch(rows), self._info().tensors)

    def _append(self, spool: Spool, parcel: Parcel) -> None:
        if parcel.body is None:
            parcel.body = self._encode(parcel, with_table=False)
        spooled = self._spooled(spool, parcel, parcel.body)
        parcel.entries, parcel.stored = (spooled,), parcel.body

    def _spooled(self, spool: Spool, parcel: Parcel, body: Body) -> Entry:
        return spool.append(
            body.data,
            flags=flags_of(body.headers, with_table=body.with_table),
            steps=len(parcel.batch),
            detail=detail_rows(parcel.batch),
            table=parcel.table,
            table_key=parcel.table_hash,
            seq=parcel.seq,
            instead_of=parcel.entries,
        )

    def _load(self, spool: Spool, *, alone: bool = False) -> None:
        """Reads the first batches of the spool, as many as go well into one."""
        parts: list[Parcel] = []
        steps = size = 0
        for entry in list(islice(spool.entries.values(), self._batch_steps + 1)):
            steps += entry.frame.steps
            size += entry.frame.length
            if parts and (alone or steps > self._batch_steps or size > BATCH_BYTES or entry.seq is not None):
                break
            if parts and entry.is_own is not parts[0].entries[0].is_own:
                break
            part = self._read(spool, entry)
            if part is None:
                continue
            if parts and not can_follow(parts[-1].batch, part.batch):
                break
            parts.append(part)
            if entry.seq is not None:
                break
        if not parts:
            return
        whole = parts[0]
        if len(parts) > 1:
            batch, table = joined([(part.batch, part.table) for part in parts])
            whole = Parcel(batch, table, entries=tuple(part.entries[0] for part in parts))
        for entry in whole.entries:
            entry.is_out = True
        self._ready.append(whole)

    def _read(self, spool: Spool, entry: Entry) -> Parcel | None:
        if self._fresh is not None and self._fresh.entries == (entry,):
            return self._fresh
        try:
            data = spool.read(entry)
            batch, table = read_entry(spool, entry, data, rank=self._rank)
        except (OSError, ProtocolError) as error:
            self._guard.say_once(
                "unreadable", f"a batch in {spool.path} cannot be read ({error}); it is lost."
            )
            self.loss.damaged += entry.frame.steps
            spool.delivered(entry)
            return None
        flags = entry.frame.flags
        body = Body(data, headers_of(flags), Flag.HAS_TABLE in flags)
        return Parcel(batch, table, seq=entry.seq, body=body, entries=(entry,), stored=body)

    def _seal(self, spool: Spool, parcel: Parcel, next_seq: int) -> Parcel | None:
        """Writes down seq and bytes before they are sent for the first time."""
        body, seq = parcel.body, parcel.seq
        assert body is not None
        assert seq is not None
        try:
            if body is not parcel.stored:
                parcel.entries = (self._spooled(spool, parcel, body),)
                parcel.entries[0].is_out = True
                parcel.stored = body
            elif parcel.entries[0].seq != seq:
                spool.stamp(parcel.entries[0], seq)
        except OSError as error:
            self._guard.say_once(
                "seal",
                f"cannot write to {spool.path} ({error.strerror or error}). Training goes on; should the "
                "process be killed now, the batch under way may arrive twice.",
            )
            if len(parcel.entries) > 1:  # one alone needs no room, only its seq is noted
                for entry in parcel.entries:
                    entry.is_out = False
                self._ready.popleft()
                self._load(spool, alone=True)
                if not self._ready:  # what was to be read alone is damaged, which has been said
                    return None
                first = self._ready[0]
                first.seq = next_seq if first.seq is None else first.seq
                with contextlib.suppress(OSError):  # a disk that takes nothing any more
                    spool.stamp(first.entries[0], first.seq)
                return first
        return parcel

    def _mark_resumed(self, parcel: Parcel) -> None:
        is_own = all(entry.is_own for entry in parcel.entries)
        if self.is_resumed and is_own and parcel.batch.lost is None and not parcel.is_part:
            parcel.batch, parcel.body = with_scalar(parcel.batch, "resumed", 1.0), None
            self.is_resumed = False

    def _encode(self, parcel: Parcel, *, with_table: bool) -> Body:
        return encode(parcel, rank=self._rank, with_table=with_table, compress=self._compress)

    def _press(self) -> None:
        spool = self.spool
        fill = max(self._backlog.fill, spool.size / spool.limit_bytes if spool is not None else 0.0)
        pressure = sum(fill >= limit for limit in PRESSURE)
        if pressure != self._pressure:
            self._pressure = pressure
            self._on_pressure(pressure)
