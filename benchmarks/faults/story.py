"""Runs whose every value follows from a seed, so that nothing has to be remembered to check what came back.

A run has one to three ranks. Each sends batches of very different sizes, in both formats of the wire, with
NaN, both infinities, zero and missing values, holes of lost steps, steps that are sent again after a resume,
and a scale that stops following its amax, so that alerts are raised and recover.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from floatscope.protocol import strict_json, wire_json, wire_safetensors
from floatscope.protocol.batch import Batch, lost_batch
from floatscope.protocol.json_rows import rows_from_batch
from floatscope.protocol.names import HIST_BINS

NAMES = tuple(
    sorted(f"blocks.{i}.mlp.fc1/{role}" for i in range(3) for role in ("input", "weight", "grad_output"))
)
FAULTY = NAMES.index("blocks.1.mlp.fc1/input")
TABLE = {n: {"format": "e5m2" if "grad" in n else "e4m3", "call_order": int(n.split(".")[1])} for n in NAMES}
RECIPE = {"name": "fp8_delayed_scaling", "amax_history_len": 16, "amax_compute_algo": "max", "margin": 0}
SCALARS = ("loss", "grad_norm", "lr", "odd")
ODD = np.array([np.nan, np.inf, -np.inf, 0.0])
FAULT_STEPS = 60  # so long a fault stands before the scale follows again
FIRST_TIME = 1_764_420_000.0


@dataclass(frozen=True)
class Sent:
    """One batch on the wire. whole: the body with the tensor table, where ``body`` leaves it out."""

    seq: int
    segment: int
    batch: Batch
    body: bytes
    content_type: str
    encoding: str | None = None
    whole: bytes | None = None


@dataclass(frozen=True)
class Story:
    """seed: all follows from it.  batches: of each rank; None has no end.  rows: most steps of a batch."""

    run_id: str
    seed: int
    ranks: int
    batches: int | None
    rows: int = 24

    @property
    def described(self) -> dict[str, Any]:
        """What the run is opened with."""
        return {"name": self.run_id, "recipe": RECIPE, "tensors": TABLE, "ranks": self.ranks}

    def stream(self, rank: int) -> Iterator[Sent]:
        """The batches of a rank, in order."""
        rng = np.random.default_rng([self.seed, rank])
        fault_at = 96 + int(np.random.default_rng(self.seed).integers(80))
        step = segment = seq = 0
        while self.batches is None or seq < self.batches:
            draw = rng.random()
            if draw < 0.02 and step:  # lost before it could be sent
                lost = (step, step + int(rng.integers(1, 5)) - 1)
                content = strict_json.dumps(
                    {"steps": [], "lost": {"first_step": lost[0], "last_step": lost[1]}}
                )
                yield Sent(seq, segment, lost_batch(*lost), content.encode(), wire_json.CONTENT_TYPE)
                step, seq = lost[1] + 1, seq + 1
                continue
            if draw < 0.035 and step > 40:  # a resume from an older checkpoint
                step, segment = step - int(rng.integers(1, 40)), segment + 1
            count = int(rng.integers(1, self.rows + 1)) if rng.random() < 0.8 else 1
            made = batch(rng, step, count, fault_at=fault_at)
            yield _sent(rng, seq, segment, made, rank)
            step, seq = step + count, seq + 1


def batch(rng: np.random.Generator, first: int, count: int, *, fault_at: int) -> Batch:
    """Steps with every kind of value; the statistics of one input go wrong for a while."""
    step = np.arange(first, first + count, dtype=np.int64)
    scalars = np.empty((count, len(SCALARS)))
    scalars[:, 0] = 4 - 1e-4 * step + rng.normal(0, 0.02, count)
    scalars[:, 1] = 1 + 0.1 * rng.random(count)
    scalars[:, 2] = 1e-3
    scalars[:, 3] = np.where(rng.random(count) < 0.5, ODD[rng.integers(4, size=count)], rng.random(count))
    has = np.ones(scalars.shape, bool)
    has[:, 1] = rng.random(count) < 0.9
    has[:, 3] = rng.random(count) < 0.7
    stat_row = np.flatnonzero(rng.random(count) < 0.9).astype(np.int64)
    late = np.clip(step[stat_row] - fault_at + 1, 0, None)
    late = np.where(late > FAULT_STEPS, 0, late)
    shape = (len(stat_row), len(NAMES))
    amax = 2 + rng.normal(0, 0.1, shape)
    amax[:, FAULTY] *= 1.3 ** np.minimum(late, 40)
    overflow = np.zeros(shape)
    overflow[:, FAULTY] = np.minimum(60.0, 0.5 * late)
    rms = np.where(rng.random(shape) < 0.05, ODD[rng.integers(4, size=shape)], rng.random(shape))
    stats = {
        "amax": amax.astype(np.float32),
        "overflow_pct": overflow.astype(np.float32),
        "rms": rms.astype(np.float32),
        "scale": np.full(shape, 128.0, np.float32),
    }
    present = {name: np.ones(shape, bool) for name in stats}
    present["rms"] = rng.random(shape) < 0.8
    hist_row = np.flatnonzero(rng.random(count) < 0.02).astype(np.int64)
    counts = rng.integers(0, 2**32, (len(hist_row), len(NAMES), HIST_BINS), dtype=np.uint32)
    return Batch(
        step=step,
        time=FIRST_TIME + step + np.round(rng.random(count), 6),
        scalar_names=SCALARS,
        scalars=np.where(has, scalars, 0.0),
        scalars_present=has,
        tensor_names=NAMES,
        stat_row=stat_row,
        stats={name: np.where(present[name], values, np.float32(0)) for name, values in stats.items()},
        stats_present=present,
        hist_row=hist_row,
        hist_log2=counts,
    )


def _sent(rng: np.random.Generator, seq: int, segment: int, made: Batch, rank: int) -> Sent:
    if rng.random() < 0.4:
        rows = list(rows_from_batch(made, rank=rank))
        body = strict_json.dumps({"steps": rows}).encode()
        if rng.random() < 0.5:
            return Sent(seq, segment, made, gzip.compress(body, 1, mtime=0), wire_json.CONTENT_TYPE, "gzip")
        return Sent(seq, segment, made, body, wire_json.CONTENT_TYPE)
    whole = wire_safetensors.encode(made, TABLE, with_table=True)
    brief = wire_safetensors.encode(made, TABLE, with_table=False)
    return Sent(seq, segment, made, brief, wire_safetensors.CONTENT_TYPE, None, whole)
