"""Rewrites the hot batches of a rank to chunks, in many short transactions and one that makes it count.

Whatever happens in between (a kill, a database that is away, another worker that took over), readers see
either the hot batches or the chunk; what was left over is swept by the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from floatscope.protocol.batch import Bool, Float32
from floatscope.protocol.runinfo import TensorTable
from floatscope_server import chunk_columns, chunk_sources, levels
from floatscope_server.chunk_columns import Layout
from floatscope_server.chunk_plan import LIMITS, Limits
from floatscope_server.chunk_sources import Work
from floatscope_server.chunk_writer import ChunkWriter, Interrupted
from floatscope_server.database import Database
from floatscope_server.derived import DERIVED, combine, needs
from floatscope_server.store import blocks, claims, hot, kinds, leftovers, runs, tiles
from floatscope_server.store.chunks import Chunk
from floatscope_server.store.kinds import LEVEL_SERIES
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects, pack_rows, pack_series
from floatscope_server.sweeping import sweep

Described = Mapping[str, Mapping[str, Any]]
_KINDS = (kinds.ROWS, kinds.SCALARS, kinds.STAT, kinds.HISTOGRAM)


class Rewriter:
    """Makes chunks. Two of them at the same rank do each other no harm: one of them has the claim.

    worker: a name that no other rewriter has. stopping: asked now and then; True ends the work soon.
    """

    def __init__(
        self,
        *,
        database: Database,
        tensor_tables: TensorTables,
        worker: str,
        objects: Objects | None = None,
        limits: Limits = LIMITS,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._tensor_tables = tensor_tables
        self._worker = worker
        self._objects = objects
        self._limits = limits
        self._stopping = stopping
        self._clock = clock

    def rewrite(self, run: int, rank: int, *, whole: bool = False) -> int:
        """Rewrites what is due and sweeps left-overs; returns how many chunks were made.

        whole: also what does not fill a chunk, as for a run that ended. Raises Interrupted, and whatever the
        database or the object store raises; the next call goes on.
        """
        with self._database.read() as c:
            before = hot.state(c, run, rank)
        if before is None:
            return 0
        with self._database.write() as c:
            if not claims.take(c, run, rank, worker=self._worker, now=self._clock()):
                return 0
        if before.claimed:
            self._sweep(run, rank, tiles_too=True)
        whole = whole or before.ended or before.next_seq - before.chunked_seq >= self._limits.hot_batches
        made = 0
        while work := self._look(run, rank, whole_to=before.next_seq if whole else 0):
            with self._database.read() as c:
                tensors = runs.info(c, run).tensors
            for one in work:
                self._make(run, rank, one, tensors)
                made += 1
        with self._database.write() as c:
            claims.release(c, run, rank, worker=self._worker)
        return made

    def _look(self, run: int, rank: int, *, whole_to: int) -> list[Work]:
        """What is to be made now. What came after ``whole_to`` waits until it fills a chunk."""
        with self._database.read() as c:
            state = hot.state(c, run, rank)
            if state is None:
                raise Interrupted
            whole, tables = state.chunked_seq < whole_to, self._tensor_tables
            return chunk_sources.look(
                c,
                run,
                rank,
                from_seq=state.chunked_seq,
                whole=whole,
                tensor_tables=tables,
                limits=self._limits,
            )

    def _make(self, run: int, rank: int, work: Work, tensors: Described) -> None:
        plan = work.plan
        writer, chunk = None, None
        if plan.content is not None:
            writer = ChunkWriter(
                self._database,
                run,
                rank,
                plan.number,
                worker=self._worker,
                portion_bytes=self._limits.portion_bytes,
                objects=self._objects,
                clock=self._clock,
            )
            chunk = self._write(run, rank, work, tensors, writer)
        hot_bytes = self._hot_bytes(run, rank, work)
        with self._database.write() as c:
            if not claims.holds(c, run, rank, worker=self._worker, now=self._clock()):
                raise Interrupted
            moved = hot.move(
                c,
                run,
                rank,
                chunk,
                from_seq=work.from_seq,
                to_seq=plan.number + 1,
                hot_rows=plan.hot_rows,
                hot_bytes=hot_bytes,
                merged=plan.merged,
                now=self._clock(),
            )
            if not moved:
                raise Interrupted
            if writer is not None and not leftovers.keep_objects(c, writer.objects):
                raise Interrupted
        merged = None if plan.merged is None else plan.merged.number
        self._sweep(run, rank, tiles_too=merged is not None, number=merged)

    def _write(self, run: int, rank: int, work: Work, tensors: Described, writer: ChunkWriter) -> Chunk:
        """Tiles and levels of the chunk; nothing reads them yet."""
        plan = work.plan
        at = chunk_columns.layout(work.sources)
        widths, stat_widths = levels.widths(at.step), levels.widths(at.stat_step)
        writer.tile(kinds.ROWS, "", 0, pack_rows(at.step, at.time, at.stat_row, at.hist_row, at.makeup))
        self._scalars(run, rank, work, at, widths, writer)
        self._stats(run, rank, work, at, stat_widths, tensors, writer)
        if len(at.hist_row) and at.names:
            self._histograms(run, rank, work, at, writer)
        writer.flush()
        return Chunk(
            rank=rank,
            number=plan.number,
            first_seq=plan.first_seq,
            segment=plan.batches[-1].segment,
            tensor_table=self._table(run, work),
            rows=len(at.step),
            stat_rows=len(at.stat_row),
            hist_rows=len(at.hist_row),
            first_step=int(at.step[0]),
            last_step=int(at.step[-1]),
            widths=widths,
            stat_widths=stat_widths,
            bytes=writer.bytes,
        )

    def _scalars(
        self, run: int, rank: int, work: Work, at: Layout, widths: tuple[int, ...], writer: ChunkWriter
    ) -> None:
        plan = work.plan
        with self._database.read() as c:
            found = blocks.each(
                c, run, rank, kinds.SCALARS, first_seq=plan.batches[0].seq, last_seq=plan.number
            )
            names = {name for makeup in at.makeup for name in makeup.scalars}
            old = tiles.scalars(c, run, rank, names, _merged(work))
            columns = chunk_columns.scalar_columns(at, found, old)
        for name, (values, present) in sorted(columns.items()):
            writer.tile(kinds.SCALARS, name, 0, pack_series(values[None], present[None]))
            for level in chunk_columns.levels_of(at.step, values[:, None], present[:, None], widths):
                writer.level(kinds.SCALARS, name, 0, level)

    def _stats(
        self,
        run: int,
        rank: int,
        work: Work,
        at: Layout,
        widths: tuple[int, ...],
        tensors: Described,
        writer: ChunkWriter,
    ) -> None:
        """One after the other; those that others are derived from are kept until these are made."""
        assert work.plan.content is not None
        names = sorted(work.plan.content.stats) if at.names else []
        wanted = {part for stat in DERIVED for part in needs(stat, names)}
        kept: dict[str, tuple[Float32, Bool]] = {}
        for name in sorted(names, key=lambda name: name not in wanted):
            if kept and name not in wanted:
                self._derived(at, widths, kept, tensors, writer)
                kept = {}
            values, present = self._stat(run, rank, work, at, name)
            writer.series(kinds.STAT, name, chunk_columns.tile_parts(values, present))
            if name in wanted:
                kept[name] = (values, present)
            if name not in DERIVED:
                for group in chunk_columns.column_groups(at):
                    of_group = values[:, group], present[:, group]
                    self._levels(kinds.STAT, name, group, at, of_group, widths, writer)
        if kept:
            self._derived(at, widths, kept, tensors, writer)

    def _stat(self, run: int, rank: int, work: Work, at: Layout, name: str) -> tuple[Float32, Bool]:
        self._go_on()
        first, last = work.plan.batches[0].seq, work.plan.number
        with self._database.read() as c:
            found = blocks.each(c, run, rank, kinds.STAT, name, first_seq=first, last_seq=last)
            old = tiles.stats(c, run, rank, [name], _merged(work), objects=self._objects)
            return chunk_columns.stat_columns(at, found, old)

    def _derived(
        self,
        at: Layout,
        widths: tuple[int, ...],
        kept: Mapping[str, tuple[Float32, Bool]],
        tensors: Described,
        writer: ChunkWriter,
    ) -> None:
        for columns in chunk_columns.column_groups(at):
            parts = {
                name: (values[:, columns], present[:, columns]) for name, (values, present) in kept.items()
            }
            for stat in DERIVED:
                of_stat = {name: parts[name] for name in needs(stat, list(kept))}
                made = combine(stat, of_stat, at.names[columns], tensors)
                if made is not None:
                    self._levels(kinds.DERIVED, stat, columns, at, made, widths, writer)

    def _levels(
        self,
        kind: int,
        name: str,
        columns: slice,
        at: Layout,
        of_columns: tuple[Float32, Bool],
        widths: tuple[int, ...],
        writer: ChunkWriter,
    ) -> None:
        first = columns.start // LEVEL_SERIES
        for part, level in chunk_columns.level_parts(at.stat_step, *of_columns, widths):
            writer.level(kind, name, first + part, level)

    def _histograms(self, run: int, rank: int, work: Work, at: Layout, writer: ChunkWriter) -> None:
        self._go_on()
        first, last = work.plan.batches[0].seq, work.plan.number
        with self._database.read() as c:
            found = blocks.each(c, run, rank, kinds.HISTOGRAM, first_seq=first, last_seq=last)
            old = tiles.histograms(c, run, rank, _merged(work), objects=self._objects)
            counts, present = chunk_columns.histogram_columns(at, found, old)
        writer.series(kinds.HISTOGRAM, "", chunk_columns.tile_parts(counts, present))

    def _table(self, run: int, work: Work) -> int | None:
        """The table of the chunk's columns: that of its batches, or one of all their tensors."""
        if len(work.tables) < 2:
            return work.tables[0] if work.tables else None
        joined: TensorTable = {}
        with self._database.write() as c:
            for table in work.tables:
                joined = {**joined, **self._tensor_tables.get(c, table).table}
            return self._tensor_tables.add(c, run, joined)

    def _hot_bytes(self, run: int, rank: int, work: Work) -> int:
        stats = [] if work.plan.content is None else sorted(work.plan.content.stats)
        seqs = (work.plan.batches[0].seq, work.plan.number)
        with self._database.read() as c:
            return hot.block_bytes(c, run, rank, _KINDS, ["", *stats], seqs)

    def _sweep(self, run: int, rank: int, *, tiles_too: bool, number: int | None = None) -> None:
        sweep(
            self._database,
            run,
            rank,
            tiles_too=tiles_too,
            worker=self._worker,
            portion_bytes=self._limits.portion_bytes,
            go_on=self._go_on,
            clock=self._clock,
            number=number,
        )

    def _go_on(self) -> None:
        if self._stopping():
            raise Interrupted


def _merged(work: Work) -> list[Chunk]:
    return [] if work.plan.merged is None else [work.plan.merged]
