"""One tensor in several formats: what each keeps and loses, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.wording import as_float, as_int, as_text

MAX_ROWS = 64
MAX_FLAGS = 8
MEASURED, HISTOGRAM = "sample", "histogram"


@dataclass(frozen=True)
class FormatRow:
    """What one format does to the tensor at one step; None where it is not known.

    key: the engine's name of format and scales, "" for what the run measured.  name: as people write it.
    granularity: none, tensor, row or block, of which one has ``block`` values.  bits: of a value, with its
    share of the scales.  clipped_pct, zero_pct: values above the maximum, and values that become 0.  sqnr_db:
    signal to quantisation noise; bulk_sqnr_db: without the few values that hold most of the power.
    zero_error_pct, sqnr_error_db: largest error of such predictions.  valid: whether the prediction can be
    trusted; ``why_not`` then says why not.  in_use: the format that the tensor has.  headroom: binades
    between the largest value and the maximum.
    """

    key: str
    name: str
    bits: float | None
    clipped_pct: float | None
    zero_pct: float | None
    sqnr_db: float | None
    granularity: str = ""
    block: int | None = None
    how: str = ""
    headroom: float | None = None
    bulk_sqnr_db: float | None = None
    zero_error_pct: float | None = None
    sqnr_error_db: float | None = None
    measured: bool = False
    valid: bool = True
    why_not: str = ""
    in_use: bool = False


@dataclass(frozen=True)
class WhatIf:
    """Rows of the card and the step that they are of.

    predicted_step: of the histogram behind the rows that are not in use, None where there is none.  source:
    "histogram" or "sample".  flags: what speaks against the predictions, in the engine's sentences.  why_not:
    why there are no predictions, "" where there are.
    """

    rows: tuple[FormatRow, ...]
    step: int
    predicted_step: int | None = None
    source: str = ""
    flags: tuple[str, ...] = ()
    why_not: str = ""


def predicted_rows(tensor: Mapping[str, Any]) -> tuple[FormatRow, ...]:
    """The variants of one tensor of a ``floatscope.what_if/1`` document."""
    found = tensor.get("variants")
    items = found[:MAX_ROWS] if isinstance(found, list) else []
    return tuple(_row(item) for item in items if isinstance(item, Mapping))


def flags_of(tensor: Mapping[str, Any]) -> tuple[str, ...]:
    """The sentences of the flags of one tensor of the document."""
    found = tensor.get("flags")
    items = found[:MAX_FLAGS] if isinstance(found, list) else []
    said = (as_text(item.get("sentence")) for item in items if isinstance(item, Mapping))
    return tuple(text for text in said if text)


def _row(item: Mapping[str, Any]) -> FormatRow:
    def number(name: str) -> float | None:
        return as_float(item.get(name))

    return FormatRow(
        as_text(item.get("key")),
        as_text(item.get("label")) or as_text(item.get("key")),
        number("bits"),
        number("overflow_pct"),
        number("underflow_pct"),
        number("sqnr_db"),
        granularity=as_text(item.get("granularity")),
        block=as_int(item.get("block")),
        bulk_sqnr_db=number("bulk_sqnr_db"),
        zero_error_pct=number("underflow_error_pct"),
        sqnr_error_db=number("sqnr_error_db"),
        measured=item.get("measured") is True,
        valid=item.get("valid") is not False,
        why_not=as_text(item.get("why_not")),
    )
