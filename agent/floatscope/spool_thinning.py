"""Makes room in a spool: small batches become large ones, then detail goes, oldest first, then steps.

A spool over its limit gives up, file by file from the oldest: the statistics of three sampled steps in four;
then all statistics; only then whole steps. Scalars are never touched while there is a statistic left to give
up. A batch that has a seq, or is on its way, keeps its bytes: the server may have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from floatscope import spool_format as form
from floatscope.parcels import Body, Parcel, encode
from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.runinfo import TensorTable
from floatscope.protocol.wire_safetensors import canonical
from floatscope.spool import Entry, Segment, Spool
from floatscope.spool_batches import can_follow, detail_rows, flags_of, joined, read_body, thinned
from floatscope.spool_format import Frame, Kind

PACKED, QUARTER, BARE = 1, 2, 3
SMALL_ENTRIES = 64  # so many batches in one file are worth putting together
JOIN_STEPS = 256  # of one batch put together from small ones
JOIN_BYTES = 2 * 2**20
PIECE_PAUSE_S = 0.0002  # after each batch: the training loop gets the interpreter back at once


@dataclass
class Loss:
    """What was given up, in steps."""

    thinned: int = 0
    dropped: int = 0
    damaged: int = 0


def shrink(spool: Spool, loss: Loss, *, rank: int, compress: bool) -> None:
    """Brings the spool below its limit. Raises OSError where the disk does not let it.

    loss: what had to go is added to it.
    """
    while spool.size > spool.limit_bytes:
        segment = _next_to_thin(spool)
        if segment is None:
            if not _drop_oldest(spool, loss, rank=rank, compress=compress):
                return
        else:
            _rewrite(
                spool,
                segment,
                segment.level + 1 if segment.level else QUARTER,
                loss,
                rank=rank,
                compress=compress,
            )


def pack_small(spool: Spool, loss: Loss, *, rank: int, compress: bool) -> None:
    """Puts the small batches of one full file together, if there is one; raises OSError."""
    for segment in spool.segments[:-1]:
        if segment.level == 0:
            if segment.waiting > SMALL_ENTRIES:
                _rewrite(spool, segment, PACKED, loss, rank=rank, compress=compress)
                return
            segment.level = PACKED


def _next_to_thin(spool: Spool) -> Segment | None:
    """The file whose turn it is: of those thinned least the oldest. The one being written is closed first."""
    with_detail = {id(e.segment): e.segment for e in spool.entries.values() if e.frame.detail and _is_free(e)}
    candidates = [s for s in spool.segments if id(s) in with_detail and s.level < BARE]
    if not candidates:
        return None
    least = min(max(segment.level, PACKED) for segment in candidates)
    segment = next(s for s in candidates if max(s.level, PACKED) == least)
    if segment is spool.segments[-1]:
        spool.rotate()
    return segment


def _is_free(entry: Entry) -> bool:
    return entry.seq is None and not entry.is_out


def _drop_oldest(spool: Spool, loss: Loss, *, rank: int, compress: bool) -> bool:
    """Lets go of the oldest file's steps, but those the server may know; False if there are none."""
    oldest = next((entry.segment for entry in spool.entries.values() if _is_free(entry)), None)
    if oldest is None:
        return False
    for entry in [e for e in spool.entries.values() if e.segment is oldest and _is_free(e)]:
        loss.dropped += entry.frame.steps
        spool.delivered(entry)
    if oldest.waiting:
        _rewrite(spool, oldest, BARE, loss, rank=rank, compress=compress)
    return True


def _rewrite(spool: Spool, segment: Segment, level: int, loss: Loss, *, rank: int, compress: bool) -> None:
    """Replaces a file by one with fewer, larger batches and the detail that belongs to its level."""
    if segment is spool.segments[-1]:
        spool.rotate()
    frames: list[tuple[bytes, Frame, Entry | None]] = []
    tables: set[str] = set()
    group: list[tuple[Entry, Batch, TensorTable]] = []
    lost = Loss()
    keep = _keeper(level)

    def close_group() -> None:
        if group:
            batch, table = joined([(b, t) for _, b, t in group])
            parcel = Parcel(batch, table)
            body = encode(parcel, rank=rank, with_table=False, compress=compress)
            add(parcel, body, group[0][0].frame.first, group[-1][0].frame.last)
            group.clear()

    def add_table(table: TensorTable, key: str) -> None:
        if table and key not in tables:
            tables.add(key)
            text = canonical(table).encode()
            frames.append((form.pack(Kind.TABLE, text), _table_frame(len(text)), None))

    def add(parcel: Parcel, body: Body, first: int, last: int) -> None:
        add_table(parcel.table, parcel.table_hash)
        flags = flags_of(body.headers, with_table=body.with_table)
        steps, detail = len(parcel.batch), detail_rows(parcel.batch)
        frame = Frame(Kind.BATCH, flags, first, last, steps, detail, 0, len(body.data))
        frames.append((_bytes_of(frame, body.data, None), frame, None))

    for entry in [e for e in spool.entries.values() if e.segment is segment]:
        body = spool.read(entry)
        try:
            batch, table = read_entry(spool, entry, body, rank=rank)
        except ProtocolError:
            lost.damaged += entry.frame.steps
            continue
        if not _is_free(entry) or batch.lost is not None:
            close_group()
            add_table(table, Parcel(batch, table).table_hash)
            frames.append((_bytes_of(entry.frame, body, entry.seq), entry.frame, entry))
            continue
        batch, table, gone = thinned(batch, table, keep)
        lost.thinned += gone
        size = sum(len(b) for _, b, _ in group), sum(e.frame.length for e, _, _ in group)
        is_large = size[0] + len(batch) > JOIN_STEPS or size[1] > JOIN_BYTES
        if group and (
            is_large or entry.is_own is not group[-1][0].is_own or not can_follow(group[-1][1], batch)
        ):
            close_group()
        group.append((entry, batch, table))
        time.sleep(PIECE_PAUSE_S)
    close_group()
    spool.swap(segment, frames, level)
    loss.thinned += lost.thinned
    loss.damaged += lost.damaged


def read_entry(spool: Spool, entry: Entry, body: bytes, *, rank: int) -> tuple[Batch, TensorTable]:
    """The batch of an entry and its tensor table. Raises ProtocolError."""
    return read_body(
        body, entry.frame.flags, rank=rank, find_table=lambda key: spool.find_table(entry.segment, key)
    )


def _keeper(level: int) -> Callable[[], bool]:
    count = 0

    def keep() -> bool:
        nonlocal count
        count += 1
        return level == PACKED or (level == QUARTER and count % 4 == 1)

    return keep


def _bytes_of(frame: Frame, body: bytes, seq: int | None) -> bytes:
    return form.pack(
        frame.kind,
        body,
        flags=frame.flags,
        first=frame.first,
        last=frame.last,
        steps=frame.steps,
        detail=frame.detail,
        seq=seq,
    )


def _table_frame(length: int) -> Frame:
    return Frame(Kind.TABLE, form.Flag.NONE, 0, 0, 0, 0, 0, length)
