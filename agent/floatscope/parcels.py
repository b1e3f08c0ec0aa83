"""Batches on their way to the server: numbered once, sent again with the same bytes until they are there."""

from __future__ import annotations

import gzip
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope.protocol import wire_json, wire_safetensors
from floatscope.protocol.batch import Batch, lost_batch
from floatscope.protocol.runinfo import TensorTable
from floatscope.rows import table_of
from floatscope.spool import Entry

GZIP_LEVEL = 1  # statistics barely compress better at higher levels, and the core belongs to the training
GZIP_FROM_BYTES = 1024
HISTORY_BYTES = 16 * 2**20  # delivered bodies kept in case the server comes back from an older backup
HISTORY_PARCELS = 1000
RANGES = 100_000  # (seq, steps) remembered to name a hole; that many batches are a day and more


@dataclass(frozen=True)
class Body:
    """The bytes of a request and how they are encoded.

    with_table: whether the tensor table itself is in it, not only its hash.
    """

    data: bytes
    headers: Mapping[str, str]
    with_table: bool = False


@dataclass(eq=False)
class Parcel:
    """One batch under one seq.

    seq: None until it is first sent.  body: made once; the same bytes go out however often it is sent.
    other_body: the same steps in the encoding that was tried first, after the server asked for the table.
    entries: where it lies in the spool, if it does.  stored: the body as it lies there; None after several
    entries were put together.  is_part: a part of what its entries hold.
    """

    batch: Batch
    table: TensorTable
    seq: int | None = None
    body: Body | None = None
    other_body: Body | None = None
    entries: tuple[Entry, ...] = ()
    stored: Body | None = None
    is_part: bool = False
    table_key: str | None = None

    @classmethod
    def hole(
        cls, first_step: int, last_step: int, *, seq: int | None, entries: tuple[Entry, ...] = ()
    ) -> Parcel:
        """A parcel that says these steps are lost."""
        return cls(lost_batch(first_step, last_step), {}, seq=seq, entries=entries, is_part=True)

    @property
    def table_hash(self) -> str:
        """Hash under which the server knows the parcel's tensor table."""
        if self.table_key is None:
            self.table_key = wire_safetensors.table_hash(self.table)
        return self.table_key

    @property
    def first_step(self) -> int:
        """First step carried, or lost."""
        return self.batch.lost[0] if self.batch.lost is not None else int(self.batch.step[0])

    @property
    def last_step(self) -> int:
        """Last step carried, or lost."""
        return self.batch.lost[1] if self.batch.lost is not None else int(self.batch.step[-1])

    @property
    def nbytes(self) -> int:
        """Memory the parcel holds."""
        arrays = sum(a.nbytes for a in (*self.batch.stats.values(), *self.batch.stats_present.values()))
        return arrays + self.batch.scalars.nbytes + (len(self.body.data) if self.body is not None else 0)

    def halves(self) -> tuple[Parcel, Parcel]:
        """The same steps as two parcels without a seq; the spool's entries are done with the second."""
        middle = len(self.batch) // 2
        first, second = self.batch.rows(0, middle), self.batch.rows(middle, len(self.batch))
        return (
            Parcel(first, self.table, is_part=True, table_key=self.table_key),
            Parcel(second, self.table, is_part=True, table_key=self.table_key, entries=self.entries),
        )


def encode(parcel: Parcel, *, rank: int, with_table: bool, compress: bool) -> Body:
    """The body of a parcel: safetensors, or JSON where there is nothing but a hole to report."""
    with_table = with_table or not parcel.table  # an empty one is as short as its name
    if parcel.batch.lost is not None:
        data, content_type = wire_json.encode(parcel.batch, rank=rank), wire_json.CONTENT_TYPE
    else:
        data = wire_safetensors.encode(
            parcel.batch, parcel.table, with_table=with_table, key=parcel.table_hash
        )
        content_type = wire_safetensors.CONTENT_TYPE
    headers = {"Content-Type": content_type}
    if compress and len(data) >= GZIP_FROM_BYTES:
        headers["Content-Encoding"] = "gzip"
        data = gzip.compress(data, GZIP_LEVEL, mtime=0)
    return Body(data, headers, with_table)


class Tables:
    """The tensor table of a batch and its hash, made once for as long as neither tensors nor facts change.

    Both take milliseconds for thousands of tensors, and during them the training loop does not run.
    """

    def __init__(self) -> None:
        self._names: object = None
        self._facts: object = None
        self._found: tuple[TensorTable, str] = ({}, wire_safetensors.table_hash({}))

    def parcel(self, batch: Batch, tensors: Mapping[str, Mapping[str, Any]]) -> Parcel:
        """The batch as a parcel.  tensors: what is known of each of the run's tensors."""
        if not batch.tensor_names:
            return Parcel(batch, {})
        if batch.tensor_names is not self._names or tensors is not self._facts:
            table = table_of(batch, tensors)
            self._found = (table, wire_safetensors.table_hash(table))
            self._names, self._facts = batch.tensor_names, tensors
        return Parcel(batch, self._found[0], table_key=self._found[1])


class History:
    """What was delivered, as far back as memory allows."""

    def __init__(self, *, limit_bytes: int = HISTORY_BYTES, limit_parcels: int = HISTORY_PARCELS) -> None:
        self._limit_bytes = limit_bytes
        self._limit_parcels = limit_parcels
        self._bytes = 0
        self._parcels: deque[Parcel] = deque()
        self._ranges: deque[tuple[int, int, int]] = deque(maxlen=RANGES)

    def add(self, parcel: Parcel) -> None:
        """Keeps a delivered parcel and lets the oldest go when there is too much."""
        assert parcel.seq is not None
        self._parcels.append(parcel)
        self._bytes += parcel.nbytes
        self._ranges.append((parcel.seq, parcel.first_step, parcel.last_step))
        while self._parcels and (self._bytes > self._limit_bytes or len(self._parcels) > self._limit_parcels):
            self._bytes -= self._parcels.popleft().nbytes

    def take_from(self, seq: int) -> list[Parcel]:
        """Removes and returns the kept parcels from this seq on, in order."""
        taken: list[Parcel] = []
        while self._parcels and (self._parcels[-1].seq or 0) >= seq:
            parcel = self._parcels.pop()
            self._bytes -= parcel.nbytes
            taken.append(parcel)
        while taken and self._ranges and self._ranges[-1][0] >= (taken[-1].seq or 0):
            self._ranges.pop()
        return taken[::-1]

    def steps_between(self, seq: int, stop: int) -> tuple[int, int] | None:
        """First and last step sent under ``seq`` up to, not including, ``stop``; None if forgotten."""
        found = [(first, last) for number, first, last in self._ranges if seq <= number < stop]
        return (min(first for first, _ in found), max(last for _, last in found)) if found else None
