"""Fills the card that says how well a tensor's format keeps it, and what others would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from floatscope.protocol.formats import FORMATS
from floatscope_dashboards.format_table import FormatRow, WhatIf, flags_of, predicted_rows
from floatscope_dashboards.tensor_view import TensorLine
from floatscope_diagnostics.whatif.document import tensor_json
from floatscope_server.services import Services
from floatscope_server.store.runs import RunRecord
from floatscope_server.what_if import NOT_SAMPLED, Asked, asked_what_if

_WANTED = ("overflow_pct", "underflow_pct", "sqnr_db", "headroom_log2")


def tensor_what_if(
    c: Connection,
    services: Services,
    run: RunRecord,
    line: TensorLine,
    *,
    step: int | None,
    at: int | None,
    rank: int,
    known: Mapping[tuple[int, str], tuple[int, ...]],
) -> WhatIf | None:
    """What is known at the step: measured in the format in use, predicted for the others from the nearest
    histogram. None where there is neither. step: of the numbers; at: as asked, None for the last.
    """
    if step is None:
        return None
    here = run.last_step or step if at is None else at
    found = asked_what_if(c, services, run, Asked((line.name,), here, rank), known=known)
    used = _in_use(line)
    if not found.tensors:
        if used is None:
            return None
        return WhatIf((used,), step, why_not=NOT_SAMPLED)
    entry: Mapping[str, Any] = tensor_json(found.tensors[0])
    rows = predicted_rows(entry)
    return WhatIf(
        rows if used is None else (used, *rows),
        step,
        predicted_step=found.tensors[0].step,
        source="histogram",
        flags=flags_of(entry),
    )


def _in_use(line: TensorLine) -> FormatRow | None:
    """What the run measured of its own cast."""
    values = line.values
    if not line.format or not any(stat in values for stat in _WANTED):
        return None
    clipped, zero, sqnr, headroom = (values.get(stat) for stat in _WANTED)
    return FormatRow(
        "",
        line.format,
        _bits(line.format),
        clipped,
        zero,
        sqnr,
        how=line.recipe,
        headroom=headroom,
        measured=True,
        in_use=True,
    )


def _bits(name: str) -> float | None:
    """Bits of a value, with its share of its block's 8-bit scale."""
    own = {"nvfp4": 4, "bf16": 16, "fp16": 16, "fp32": 32}.get(name, 8)
    found = FORMATS.get(name)
    if found is None:
        return None
    return own + (8 / found.block_size if found.block_size else 0)
