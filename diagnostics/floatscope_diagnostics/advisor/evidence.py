"""What a run says about the casts of its layers: statistics by row and tensor, and the last histograms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.names import split_tensor
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.compare.tensor_log import NONFINITE, TensorLog, plain_name
from floatscope_diagnostics.whatif.stored import READ_STATS

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

STATS = ("amax", "scale", "overflow_pct", "underflow_pct", "sqnr_db", "nan_count", "inf_count")
"""What is read of the statistics; histograms with ``whatif.stored.READ_STATS`` of the same step, and the
scalars tokens and passes, besides."""

ROLES = ("input", "weight", "grad_output")
"""The operands of a linear layer's three GEMMs."""

SHORT_RECIPES = {
    "fp8_delayed_scaling": "delayed",
    "fp8_current_scaling": "current",
    "ao_tensorwise": "current",
    "ao_rowwise": "rowwise",
    "fp8_block_scaling": "block",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "bf16": "bf16",
    "fp16_amp": "fp16",
    "fp32": "fp32",
}
"""The protocol's names of recipes in the words of the settings."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """The last histogram of a tensor.  counts: of the protocol, 64.  stats: of the same step, by name
    (``whatif.stored.READ_STATS``), None where not logged.
    """

    step: int
    counts: tuple[int, ...]
    stats: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TensorEvidence:
    """One operand that is cast. Arrays are float64 [rows], NaN where a step has no number.

    recipe: short name.  facts: of the table of tensors.
    """

    name: str
    layer: str
    role: str
    format: str
    recipe: str
    facts: Mapping[str, Any]
    underflow_pct: Float64
    overflow_pct: Float64
    sqnr_db: Float64
    amax: Float64
    scale: Float64
    histogram: Histogram | None


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run. steps: int64 [rows], ascending, of the rows with statistics.  tensors: of FP8 (or FP4) casts.

    high: layers whose operands are watched in high precision.  broken: (step, tensor) of the first value that
    is not finite; rows from there on are left out.  tokens: of one GEMM, None if not logged.
    """

    info: RunInfo
    steps: Int64
    tensors: tuple[TensorEvidence, ...]
    high: tuple[str, ...] = ()
    broken: tuple[int, str] | None = None
    tokens: float | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers with casts, in call order."""
        return tuple(dict.fromkeys(t.layer for t in self.tensors))


def collect(
    info: RunInfo, batches: Iterable[Batch], histograms: Mapping[str, Histogram] | None = None
) -> Evidence:
    """Reads the batches of one rank to their end. Memory is bounded as in ``compare.tensor_log``.

    histograms: known beforehand, by the tensor's plain name; newer ones of the batches go before them.
    """
    log = TensorLog()
    last: dict[str, Histogram] = dict(histograms or {})
    tokens: list[float] = []
    for batch in batches:
        log.add(batch, np.ones(len(batch), bool))
        _keep_histograms(batch, last)
        if len(tokens) < 64:
            tokens += _tokens(batch)
    return evidence_of(info, log, last, float(np.median(tokens)) if tokens else None)


def evidence_of(
    info: RunInfo, log: TensorLog, last: Mapping[str, Histogram] | None = None, tokens: float | None = None
) -> Evidence:
    """The evidence of statistics that were read. last: newest histograms by name.  tokens: of one GEMM."""
    histograms = last or {}
    steps = np.array(sorted(log.steps()), np.int64)
    described = RunInfo(
        recipe=info.recipe, tensors={plain_name(name): row for name, row in info.tensors.items()}
    )
    columns = Columns(described)
    columns.add(sorted(log.names))
    names = sorted(log.names, key=lambda name: (int(columns.call_order[columns.index[name]]), name))
    casts, high = [], []
    for name in names:
        layer, role = split_tensor(name)
        at = columns.index[name]
        if role not in ROLES:
            continue
        if columns.scaled[at] and columns.fmt[at] is not None:
            casts.append(name)
        elif columns.fmt[at] is not None:
            high.append(layer)
    steps, broken = _finite_rows(log, steps.tolist(), casts)
    rows = steps.tolist()
    tables = {
        stat: log.table(stat, rows, casts).astype(np.float64)
        for stat in ("underflow_pct", "overflow_pct", "sqnr_db", "amax", "scale")
    }
    return Evidence(
        info=info,
        steps=steps,
        tensors=tuple(
            TensorEvidence(
                name=name,
                layer=split_tensor(name)[0],
                role=split_tensor(name)[1],
                format=str(columns.fmt[columns.index[name]]),
                recipe=_recipe(described, name),
                facts=described.tensors.get(name, {}),
                underflow_pct=tables["underflow_pct"][:, k],
                overflow_pct=tables["overflow_pct"][:, k],
                sqnr_db=tables["sqnr_db"][:, k],
                amax=tables["amax"][:, k],
                scale=tables["scale"][:, k],
                histogram=histograms.get(name),
            )
            for k, name in enumerate(casts)
        ),
        high=tuple(
            dict.fromkeys(layer for layer in high if layer not in {split_tensor(n)[0] for n in casts})
        ),
        broken=broken,
        tokens=tokens,
    )


def _finite_rows(log: TensorLog, steps: list[int], names: list[str]) -> tuple[Int64, tuple[int, str] | None]:
    """The rows before the first non-finite value, and where that is."""
    if not steps or not names:
        return np.array(steps, np.int64), None
    bad = log.table(NONFINITE, steps, names) > 0
    rows = np.flatnonzero(bad.any(axis=1))
    if not len(rows):
        return np.array(steps, np.int64), None
    first = int(rows[0])
    return np.array(steps[:first], np.int64), (steps[first], names[int(np.argmax(bad[first]))])


def _keep_histograms(batch: Batch, last: dict[str, Histogram]) -> None:
    """The newest histogram of every tensor, with the numbers of the same step."""
    if not len(batch.hist_row):
        return
    row_of = {int(row): d for d, row in enumerate(batch.stat_row)}
    stats = {stat: batch.stat(stat) for stat in READ_STATS}
    for h, row in enumerate(batch.hist_row.tolist()):
        d = row_of.get(row)
        for s in np.flatnonzero(batch.hist_log2[h].any(axis=1)).tolist():
            name = plain_name(batch.tensor_names[s])
            step = int(batch.step[row])
            if name in last and last[name].step > step:
                continue
            found = {
                stat: float(values[d, s]) if d is not None and present[d, s] else None
                for stat, (values, present) in stats.items()
            }
            last[name] = Histogram(step, tuple(batch.hist_log2[h, s].tolist()), found)


def _tokens(batch: Batch) -> list[float]:
    tokens, has = batch.scalar("tokens")
    passes, has_passes = batch.scalar("passes")
    each = np.where(has_passes & (passes >= 1), passes, 1.0)
    good = has & np.isfinite(tokens) & (tokens > 0)
    return [float(v) for v in (tokens[good] / each[good])[:64]]


def _recipe(info: RunInfo, name: str) -> str:
    given = str(info.tensors.get(name, {}).get("recipe") or info.recipe.get("name") or "")
    return SHORT_RECIPES.get(given, given or "unknown")
