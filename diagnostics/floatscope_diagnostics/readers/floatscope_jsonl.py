"""Reads floatscope JSONL: one object a step, an optional run object before the steps of each run.

Objects that log under other names (``iteration``, ``train/loss``) are read by the guessed names of ``names``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import loads
from floatscope_diagnostics.readers.names import guess, mapping_note
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import Batcher, RunLog, Tally, UnreadableLog

FORMAT = "floatscope"
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
        self._lines = opened.lines()
        self._held: tuple[int, dict[str, Any]] | None = None
        self._pending_run: RunInfo | None = None
        self._steps = 0
        self._seen_lines = 0
        self._mapping: dict[str, str] | None = None

    def next_run(self) -> RunLog | None:
        tally = Tally()
        run = self._pending_run
        self._pending_run = None
        for line, value in self._objects(tally):
            if "run" in value and isinstance(value["run"], Mapping) and "step" not in value:
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
        return RunLog(run or RunInfo(), FORMAT, self._batches(tally, run), tally)

    def _batches(self, tally: Tally, run: RunInfo | None) -> Iterator[tuple[int, Batch]]:
        batcher = Batcher(tally)
        held, self._held = self._held, None
        if held is not None:
            yield from self._row(batcher, *held, tally)
        for line, value in self._objects(tally):
            if "run" in value and isinstance(value["run"], Mapping) and "step" not in value:
                found = self._run_info(value["run"], line, tally)
                if run is None or found.name == run.name:
                    tally.note(f"a second run object at line {line:,} describes the same run")
                    continue
                self._pending_run = found
                break
            yield from self._row(batcher, line, value, tally)
        yield from batcher.flush()

    def _row(
        self, batcher: Batcher, line: int, value: dict[str, Any], tally: Tally
    ) -> Iterator[tuple[int, Batch]]:
        self._steps += 1
        if "step" not in value:
            if self._mapping is None:
                self._mapping = guess(k for k, v in value.items() if not isinstance(v, dict | list))
                note = mapping_note(self._mapping)
                if note:
                    tally.note(note)
            value = {self._mapping.get(k, k): v for k, v in value.items()}
            value = {k: v for k, v in value.items() if not isinstance(v, str) or k in ("time", "rank")}
        yield from batcher.add(line, value)

    def _objects(self, tally: Tally) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in self._lines:
            self._seen_lines = number
            text = line.strip().lstrip(b"\xef\xbb\xbf")
            if not text:
                continue
            if b"\x00" in text:
                text = text.replace(b"\x00", b"")
                if not text:
                    tally.skip(number, "only NUL bytes")
                    continue
            if number > GIVE_UP_LINES and self._steps == 0:
                raise UnreadableLog(
                    f"no step in the first {GIVE_UP_LINES:,} lines. " + (tally.first_skipped or "")
                )
            try:
                value = loads(text, field=f"line {number:,}")
            except ProtocolError as error:
                tally.skip(number, str(error)[:160])
                continue
            if not isinstance(value, dict):
                tally.skip(number, f"expected an object, got {type(value).__name__}")
                continue
            yield number, value

    def _run_info(self, value: Mapping[str, Any], line: int, tally: Tally) -> RunInfo:
        try:
            return RunInfo.from_json(value)
        except ProtocolError as error:
            tally.skip(line, f"the run object: {error}"[:200])
            return RunInfo()
