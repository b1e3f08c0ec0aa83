"""Reads the statistics logs of Transformer Engine's debug features (nvidia-dlframework-inspect).

``2025-01-01 10:00:00,123 - INFO - decoder.1.mlp.fc1_activation_std      iteration=000010      value=0.9996``,
one file a rank, named ``..._globalrank-0.log``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import Batcher, RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.te_names import call_orders, our_stats, tensor_and_stat, too_small

FORMAT = "te_debug"
_VALUE = re.compile(r"(\d{1,15})\s{1,40}value=(\S{1,60})\s{0,9}$")  # behind "iteration="
_RANK = re.compile(r"_globalrank-(\d{1,5})\.log")
_MAX_TENSORS = 100_000
FOUR_DECIMALS = (
    "the log prints four decimals: an amax, norm or scale_inv shown as 0.0000 is only known to be below "
    "0.00005 and counts as not logged"
)


def certainty(head: Head) -> float:
    """Sure where lines end in an iteration and a value and name a tensor's statistic."""
    found = (_parsed(x) for x in head.lines[:200])
    return 0.97 if any(x is not None for x in found) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The one run of the file."""
    return read_parts((opened,))


def read_parts(parts: Iterable[Opened]) -> Iterator[RunLog]:
    """The run whose ranks wrote these files. Raises UnreadableLog without a statistic."""
    tally = Tally()
    ranks = [_Rank(part, tally) for part in parts]
    live = [r for r in ranks if r.start()]
    if not live:
        raise UnreadableLog(
            "holds no statistic of a tensor: expected lines such as layer_activation_std iteration=000010 "
            "value=0.9996. " + (tally.first_skipped or "")
        )
    info = RunInfo(tensors=call_orders(live[0].first_row()), ranks=len(live) if len(live) > 1 else None)
    yield RunLog(info, FORMAT, _batches(live, tally), tally)


def _parsed(text: str) -> tuple[str, str, int, float] | None:
    """Tensor, statistic, iteration and value of a line."""
    before, sign, behind = text.rpartition("iteration=")
    words = before[-2_000:].split() if sign else []
    match = _VALUE.match(behind)
    named = tensor_and_stat(words[-1]) if words and match is not None else None
    value = to_float(match[2]) if match is not None else None
    if match is None or named is None or value is None:
        return None
    return (*named, int(match[1]), value)


@dataclass
class _Rank:
    """One rank's file, read an iteration at a time."""

    opened: Opened
    tally: Tally
    number: int = 0
    _rows: Iterator[tuple[int, dict[str, Any]]] = field(init=False)
    _held: tuple[int, dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        match = _RANK.search(self.opened.name)
        self.number = int(match[1]) if match else 0
        self._rows = self._read()

    def start(self) -> bool:
        """Reads the first iteration; whether there is one."""
        self._held = next(self._rows, None)
        return self._held is not None

    def first_row(self) -> dict[str, Any]:
        """The tensors of the first iteration, in the order of the file."""
        tensors: dict[str, Any] = {} if self._held is None else self._held[1]["tensors"]
        return tensors

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line number and row of each iteration."""
        if self._held is not None:
            yield self._held
        yield from self._rows

    def _read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        step = -1
        first = 0
        found: dict[str, dict[str, float]] = {}
        for line, raw in self.opened.text_lines():
            parsed = _parsed(raw.decode("utf-8", "replace"))
            if parsed is None:
                self.tally.skip(line, f"no statistic: {raw[:80].decode('utf-8', 'replace').strip()}")
                continue
            tensor, stat, at, value = parsed
            if at != step:
                yield from self._row(first, step, found)
                step, first, found = at, line, {}
            if too_small(stat, value):
                self.tally.note(FOUR_DECIMALS)
            elif tensor in found or len(found) < _MAX_TENSORS:
                found.setdefault(tensor, {})[stat] = value
        yield from self._row(first, step, found)

    def _row(
        self, line: int, step: int, found: dict[str, dict[str, float]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        tensors = {name: our_stats(stats) for name, stats in found.items()}
        if tensors:
            yield line, {"step": step, "rank": self.number, "tensors": tensors}


def _batches(ranks: list[_Rank], tally: Tally) -> Iterator[tuple[int, Batch]]:
    """One iteration of each rank in turn."""
    batcher = Batcher(tally)
    left = [r.rows() for r in ranks]
    while left:
        for rows in list(left):
            item = next(rows, None)
            if item is None:
                left.remove(rows)
            else:
                yield from batcher.add(*item)
    yield from batcher.flush()
