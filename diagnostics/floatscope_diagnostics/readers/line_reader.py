"""Reads a text log with the line format that knows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from floatscope_diagnostics.readers.alike_lines import AlikeLines
from floatscope_diagnostics.readers.assemble import assemble
from floatscope_diagnostics.readers.events import Events
from floatscope_diagnostics.readers.head import split_lines
from floatscope_diagnostics.readers.line_format import HELD, LineFormat, LineParser, SingleLines
from floatscope_diagnostics.readers.opening import MAX_TEXT_LINE_BYTES, Opened
from floatscope_diagnostics.readers.records import Records
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.source_code import without_source
from floatscope_diagnostics.readers.text_blocks import text_blocks

PARSED_LINES = 4_000  # each line of a shorter log goes through the parser; source code ends within these
_RULES = " \t-=*#_+|.~<>/\\^"  # a line of nothing else separates others


def read_lines(opened: Opened, line_format: LineFormat) -> Iterator[RunLog]:
    """The runs of the log. Raises UnreadableLog if it holds no value of a training run."""
    tally = Tally()
    records = Records()
    parser = line_format.parser()
    reading = Reading(parser, records, tally)
    alike = line_format.alike or isinstance(parser, SingleLines)
    blocks = text_blocks(opened) if alike else iter(())
    for number, text in without_source(_texts(_head(blocks) if alike else opened.text_lines())):
        reading.line(number, text)
        if records.full is not None:
            break
    makes = AlikeLines(getattr(parser, "probe", line_format.parser))
    for number, data in blocks:
        if records.full is not None:
            break
        alike_lines = makes.take(number, data, records, reading.raw)  # which counts the others itself
        reading.lines += alike_lines
    if records.full is not None:
        tally.note(
            f"only the lines before {records.full:,} are read: there are more values than fit in memory"
        )
    reading.end()
    if not any(schema.names for schema in records.schemas.values()):
        raise UnreadableLog(
            f"holds no training values in the format {line_format.name} ({line_format.title}). "
            + (tally.first_skipped or "It has no lines.")
        )
    tally.lines = reading.lines
    yield from assemble(records, tally, line_format.name)


def _head(blocks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The lines of the first blocks, at least PARSED_LINES, where there are so many."""
    for first, data in blocks:
        for number, raw in enumerate(data.removesuffix(b"\n").split(b"\n"), start=first):
            yield number, raw[:MAX_TEXT_LINE_BYTES]
        if number >= PARSED_LINES:
            return


def _texts(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    """Line number and text without colours, NUL bytes and blank lines."""
    for number, raw in lines:
        if b"\x00" in raw:
            raw = raw.replace(b"\x00", b"")
        for text in split_lines(raw.decode("utf-8", "replace")):
            if text and not text.isspace():
                yield number, text


class Reading:
    """Hands each line to the format's parser, and what that does not know to the shared events.

    lines: number of lines that were not blank.
    """

    def __init__(self, parser: LineParser, records: Records, tally: Tally) -> None:
        self._parser = parser
        self._records = records
        self._tally = tally
        self._events = Events()
        self._last = 0
        self.lines = 0

    def line(self, number: int, text: str) -> None:
        """Reads the next line."""
        self._last = number
        self.lines += 1
        found = self._parser.line(number, text)
        known: dict[str, float] = {}
        stored = 0
        for piece in found:
            known.update(piece.values)
            stored += self._records.add(number, piece)
        if known and "verflow" not in text and "OVERFLOW" not in text:
            return
        if found is HELD:
            known["loss"] = 0.0  # what the parser holds back tells the loss of this line better than words
        event, failure = self._events.line(number, text, known=known)
        if failure is not None:
            self._records.fail(number, failure)
        if event is not None:
            stored += self._records.add(number, event)
        elif not stored and found is not HELD and failure is None and text.strip(_RULES):
            self._tally.skip(number, f"no training values: {text.strip()[:100]}")

    def raw(self, number: int, raw: bytes) -> None:
        """Reads the next line as it stands in the log."""
        for _, text in _texts(((number, raw[:MAX_TEXT_LINE_BYTES]),)):
            self.line(number, text)

    def end(self) -> None:
        """Takes what the parser still holds."""
        for piece in self._parser.end():
            self._records.add(self._last, piece)
        self._tally.mapping.update(getattr(self._parser, "mapping", {}))
