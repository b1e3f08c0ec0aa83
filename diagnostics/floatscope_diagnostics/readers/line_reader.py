"""Reads a text log with the line format that knows it."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.readers.assemble import assemble
from floatscope_diagnostics.readers.head import split_lines
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.records import Records
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog


def read_lines(opened: Opened, line_format: LineFormat) -> Iterator[RunLog]:
    """The runs of the log. Raises UnreadableLog if it holds no value of a training run."""
    tally = Tally()
    records = Records()
    parser = line_format.parser()
    number = 0
    for number, raw in opened.lines():
        for text in split_lines(raw.replace(b"\x00", b"").decode("utf-8", "replace")):
            if not text.strip():
                continue
            found = parser.line(number, text)
            pieces = list(found)
            if not pieces and found is not HELD:
                tally.skip(number, f"no training values: {text.strip()[:100]}")
            for piece in pieces:
                records.add(number, piece)
    for piece in parser.end():
        records.add(number, piece)
    if not records.count:
        raise UnreadableLog(
            f"looks like {line_format.title} but holds no training values. " + (tally.first_skipped or "")
        )
    yield from assemble(records, tally, line_format.name)
