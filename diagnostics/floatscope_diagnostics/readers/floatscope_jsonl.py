"""Reads floatscope JSONL: one object a step, an optional run object before the steps of each run.

Objects that log under other names (``iteration``, ``train/loss``), also inside other objects, are read by
the guessed names of ``names``. Rows of scalars that are alike but for their numbers are read in bulk.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import loads
from floatscope.runlog import LOST_STEPS
from floatscope_diagnostics.readers.alike_lines import AlikeLines
from floatscope_diagnostics.readers.json_rows_plan import KeyPlan
from floatscope_diagnostics.readers.line_blocks import line_blocks
from floatscope_diagnostics.readers.number_table import BLOCK_BYTES, SMALL_BYTES
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.run_log import Batcher, RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.same_step import joined

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

FORMAT = "floatscope"
MOSTLY = 64  # rows read in bulk for each line that is not
GIVE_UP_LINES = 2_000  # lines without a single step: this is another kind of file


def looks_like(head: bytes) -> bool:
    """Whether the first full line is a JSON object."""
    line = head.lstrip(b"\xef\xbb\xbf \t\r\n").split(b"\n", 1)[0].strip()
    if not line.startswith(b"{"):
        return False
    if b"\n" not in head and len(head) >= 1 << 16:
        return b'"log_history"' not in head  # a first line longer than the peek
    try:
        value = loads(line)
    except ProtocolError:
        named = b'"step"' in line or b'"tensors"' in line  # a damaged line among good ones
        return named and b'"log_history"' not in line
    return isinstance(value, dict) and "log_history" not in value


def read(opened: Opened) -> Iterator[RunLog]:
    """The runs of the file, one after the other; each must be consumed before the next is asked for."""
    reader = _Reader(opened)
    while True:
        run = reader.next_run()
        if run is None:
            return
        yield run


class _Reader:
    def __init__(self, opened: Opened) -> None:
        self._blocks = line_blocks(opened, BLOCK_BYTES)
        self._plan = KeyPlan(opened.mapping)
        self._makes = AlikeLines(lambda: _OneLine(self._plan))
        self._waiting: deque[tuple[int, bytes | Batch]] = deque()  # read, in order
        self._held: tuple[int, dict[str, Any] | Batch] | None = None
        self._pending_run: RunInfo | None = None
        self._steps = 0

    def next_run(self) -> RunLog | None:
        tally = Tally()
        run = self._pending_run
        self._pending_run = None
        for line, value in self._objects(tally):
            if isinstance(value, dict) and _describes_run(value):
                found = self._run_info(value["run"], line, tally)
                run = found if run is None else run.merged(found)
                continue
            self._held = (line, value)
            break
        if self._held is None and run is None:
            if self._steps == 0:
                raise UnreadableLog(
                    'holds no step: expected one JSON object a line with "step" and numbers such as "loss". '
                    + (tally.first_skipped or "")
                )
            return None
        return RunLog(run or RunInfo(), FORMAT, joined(self._batches(tally, run)), tally)

    def _batches(self, tally: Tally, run: RunInfo | None) -> Iterator[tuple[int, Batch]]:
        batcher = Batcher(tally)
        held, self._held = self._held, None
        if held is not None:
            yield from self._row(batcher, *held, tally)
        for line, value in self._objects(tally):
            if isinstance(value, dict) and _describes_run(value):
                found = self._run_info(value["run"], line, tally)
                if run is None or found.name == run.name:
                    tally.note(f"a second run object at line {line:,} describes the same run")
                    continue
                self._pending_run = found
                break
            yield from self._row(batcher, line, value, tally)
        yield from batcher.flush()

    def _row(
        self, batcher: Batcher, line: int, value: dict[str, Any] | Batch, tally: Tally
    ) -> Iterator[tuple[int, Batch]]:
        if isinstance(value, Batch):
            self._steps += len(value)
            yield from batcher.flush()
            yield 0, value
            return
        self._steps += 1
        yield from batcher.add(line, self._plan.row(value, tally))

    def _objects(self, tally: Tally) -> Iterator[tuple[int, dict[str, Any] | Batch]]:
        """Objects with their line numbers; rows that were read in bulk as batches of rank 0."""
        while True:
            while self._waiting:
                number, value = self._waiting.popleft()
                found = value if isinstance(value, Batch) else self._object(number, value, tally)
                if found is not None:
                    yield number, found
            block = next(self._blocks, None)
            if block is None:
                return
            self._read(*block, tally)

    def _read(self, number: int, data: bytes, tally: Tally) -> None:
        """Puts what a block holds into ``_waiting``."""
        sink = _Columns()
        if len(data) > SMALL_BYTES:
            self._plan.told = tally
            data = data.replace(b"\r\n", b"\n") if b"\r" in data else data
            self._makes.take(number, data, sink, sink.line)
            if sink.pays():
                self._waiting.extend(sink.things())
                return
        self._waiting.extend(enumerate(data.removesuffix(b"\n").split(b"\n"), start=number))

    def _object(self, number: int, line: bytes, tally: Tally) -> dict[str, Any] | None:
        text = line.strip().lstrip(b"\xef\xbb\xbf")
        if b"\x00" in text:
            text = text.replace(b"\x00", b"")
            if not text:
                tally.skip(number, "only NUL bytes")
        if not text:
            return None
        if number > GIVE_UP_LINES and self._steps == 0:
            raise UnreadableLog(
                f"no step in the first {GIVE_UP_LINES:,} lines. " + (tally.first_skipped or "")
            )
        try:
            value = loads(text, field=f"line {number:,}")
        except ProtocolError as error:
            tally.skip(number, str(error)[:160])
            return None
        if not isinstance(value, dict):
            tally.skip(number, f"expected an object, got {type(value).__name__}")
            return None
        return value

    def _run_info(self, value: Mapping[str, Any], line: int, tally: Tally) -> RunInfo:
        lost = value.get(LOST_STEPS)
        if isinstance(lost, int) and lost > 0:
            tally.note(f"steps are missing that could not be written: {lost:,} (the disk was full, perhaps)")
        try:
            return RunInfo.from_json(value)
        except ProtocolError as error:
            tally.skip(line, f"the run object: {error}"[:200])
            return RunInfo()


def _describes_run(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("run"), Mapping) and "step" not in value


class _OneLine:
    """A row of scalars of rank 0 as a piece, as ``batch_from_rows`` reads it; nothing for other lines."""

    def __init__(self, plan: KeyPlan) -> None:
        self._plan = plan

    def line(self, number: int, text: str) -> Iterable[Piece]:
        try:
            value = loads(text.strip())
        except ProtocolError:
            return ()
        if not isinstance(value, dict) or _describes_run(value) or "tensors" in value:
            return ()
        counted = self._plan.counted
        row = self._plan.row(value, self._plan.told)
        if self._plan.counted != counted:  # a row without a step does not stand for itself
            self._plan.counted = counted
            return ()
        if row.get("rank") is not None:  # ranks are read side by side, not one ahead of the others
            return ()
        try:
            batch = batch_from_rows([row], strict=False)
        except ProtocolError:
            return ()
        values = {n: float(v) for n, v in zip(batch.scalar_names, batch.scalars[0], strict=True)}
        if not all(batch.scalars_present[0]):
            return ()
        if not math.isnan(batch.time[0]):
            values["time"] = float(batch.time[0])
        return (Piece(values, step=int(batch.step[0])),)

    def end(self) -> Iterable[Piece]:
        return ()


class _Columns:
    """Gathers rows read in bulk, and single lines between them, in their order."""

    def __init__(self) -> None:
        self._things: list[tuple[int, bytes | None]] = []  # a line, or so many rows
        self._chunks: list[tuple[Int64, Int64, Mapping[str, Float64]]] = []
        self._count = 0

    def line(self, number: int, raw: bytes) -> None:
        self._things.append((number, raw))

    def reserve(self, count: int) -> int:
        self._things.append((count, None))
        self._count += count
        return self._count - count

    def pays(self) -> bool:
        """Whether nearly all lines are rows: single lines between them would cut them into small batches."""
        single = sum(raw is not None for _, raw in self._things)
        return single * MOSTLY <= self._count + single

    def add_columns(
        self,
        kind: str,
        *,
        line: Int64,
        values: Mapping[str, Float64],
        where: Mapping[str, NDArray[Any]],
        order: Int64,
    ) -> None:
        self._chunks.append((order, where["step"], values))

    def things(self) -> Iterator[tuple[int, bytes | Batch]]:
        """Lines with their numbers, and stretches of rows as batches."""
        names = tuple(dict.fromkeys(n for _, _, values in self._chunks for n in values if n != "time"))
        step, time = np.zeros(self._count, np.int64), np.full(self._count, np.nan)
        scalars = np.zeros((self._count, len(names)))
        present = np.zeros(scalars.shape, bool)
        for order, steps, values in self._chunks:
            step[order] = steps
            for name, column in values.items():
                if name == "time":
                    time[order] = column
                else:
                    k = names.index(name)
                    scalars[order, k], present[order, k] = column, True
        at = 0
        for number, raw in self._things:
            if raw is not None:
                yield number, raw
                continue
            rows = slice(at, at + number)
            at += number
            yield 0, Batch(step[rows], time[rows], names, scalars[rows], present[rows])
