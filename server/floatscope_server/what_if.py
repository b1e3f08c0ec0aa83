"""Asks the engine what other formats would do to stored tensors: from the histogram nearest to a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from floatscope_diagnostics.whatif.document import TensorWhatIf
from floatscope_diagnostics.whatif.grids import variants
from floatscope_diagnostics.whatif.stored import what_if
from floatscope_diagnostics.whatif.variant import Variant
from floatscope_server.errors import Refused
from floatscope_server.near_histograms import Known, near_histograms
from floatscope_server.routes import reading
from floatscope_server.services import Services
from floatscope_server.store.runs import RunRecord

_KEPT_BYTES = 16_384  # of one remembered answer
NO_HISTOGRAMS = (
    "The run has no histograms near this step, and without one nothing can be said about other formats: have "
    "the agent sample them (floatscope.watch, setting stats_every)."
)
NONE_SAMPLED = "No histogram of these tensors was sampled near this step; others of the run may have one."
NOT_SAMPLED = "No histogram of this tensor was sampled near this step: other formats cannot be predicted."


@dataclass(frozen=True)
class Asked:
    """names: tensors, in the order of the answer.  at: step.  wanted: variants, all where None."""

    names: tuple[str, ...]
    at: int
    rank: int
    wanted: tuple[Variant, ...] | None = None


@dataclass(frozen=True)
class Found:
    """tensors: of those of which a histogram is near, in the order asked for.  without: the others."""

    tensors: tuple[TensorWhatIf, ...]
    without: tuple[str, ...]

    @property
    def step(self) -> int | None:
        """Of the histograms; None where there is none, or where they are of several steps."""
        steps = {one.step for one in self.tensors}
        return next(iter(steps)) if len(steps) == 1 else None


def chosen_variants(keys: Sequence[str]) -> tuple[Variant, ...] | None:
    """The variants of these keys; None, which means all, for none. Raises Refused for an unknown one."""
    known = {variant.key: variant for variant in variants()}
    for key in keys:
        if key not in known:
            raise Refused("formats", "keys among " + ", ".join(known), key[:80])
    return tuple(known[key] for key in dict.fromkeys(keys)) or None


def asked_what_if(c: Connection, services: Services, run: RunRecord, asked: Asked, *, known: Known) -> Found:
    """What the engine says of each tensor. Raises Damaged."""
    described = services.descriptions.get(c, run).tensors
    source = reading.source(c, services, run, asked.rank)
    near = near_histograms(source, asked.names, at=asked.at, known=known)
    made = []
    for name in asked.names:
        one = near.get(name)
        if one is None:
            continue
        of_run = (run.id, run.revision, run.described, asked.rank)
        key = ("what-if", *of_run, name, one.step, one.stats_step, asked.wanted)
        answer: TensorWhatIf | None = services.warm.get(key)
        if answer is None:
            answer = what_if(
                name,
                one.counts,
                one.stats,
                _facts(described.get(name, {})),
                step=one.step,
                stats_step=one.stats_step,
                variants=asked.wanted,
            )
            services.warm.keep(key, answer, _KEPT_BYTES)
        made.append(answer)
    return Found(tuple(made), tuple(name for name in asked.names if name not in near))


def _facts(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the run said of the tensor. A row is the last dimension, along which a matrix product sums."""
    shape = row.get("shape")
    if "row_length" in row or not isinstance(shape, list) or not shape:
        return row
    return {**row, "row_length": shape[-1]}
