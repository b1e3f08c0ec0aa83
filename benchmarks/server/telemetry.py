"""Batches as a trainer sends them, made in advance, so that making them takes no time while they are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol import wire_safetensors
from floatscope.protocol.batch import Batch

STATS = ("amax", "nan_count", "overflow_pct", "rms", "scale", "underflow_pct")
ROLES = ("input", "weight", "grad_output")
LAYERS = ("q", "k", "v", "o", "gate", "up", "down", "norm1", "norm2")
SCALARS = ("grad_norm", "loss", "lr")
ELEMENTS = 4_194_304  # of a tensor, so that percentages are counts divided by it
START_TIME = 1.7e9


@dataclass(frozen=True)
class Shape:
    """tensors: how many.  steps: in a batch.  variety: batches of different content, then they repeat with
    other steps; 64 fill a chunk, so no chunk holds the same numbers twice.
    """

    tensors: int = 675
    steps: int = 64
    variety: int = 64

    @property
    def values(self) -> int:
        """Statistics in one batch."""
        return self.tensors * len(STATS) * self.steps


class Telemetry:
    """The batches of a run; number n holds the steps from ``n * shape.steps`` on."""

    def __init__(self, shape: Shape, *, seed: int = 0) -> None:
        self.shape = shape
        rng = np.random.default_rng(seed)
        self._base = np.exp2(rng.normal(0, 2, shape.tensors)).astype(np.float32)
        names = [f"blocks.{n // 27:03d}.{LAYERS[n // 3 % 9]}/{ROLES[n % 3]}" for n in range(shape.tensors)]
        self.names = tuple(sorted(names))
        self.table: dict[str, dict[str, Any]] = {
            name: {"format": "e5m2" if name.endswith("grad_output") else "e4m3", "call_order": n}
            for n, name in enumerate(self.names)
        }
        made = [self.batch(n, rng) for n in range(shape.variety)]
        self._first = wire_safetensors.encode(made[0], self.table, with_table=True)
        self._contents = [wire_safetensors.encode(batch, self.table, with_table=False) for batch in made]

    @property
    def description(self) -> dict[str, Any]:
        """What is told of the run when it is opened."""
        recipe = {"name": "fp8_delayed_scaling", "amax_history_len": 1024, "amax_compute_algo": "max"}
        return {"recipe": recipe | {"margin": 0}, "ranks": 1}

    def body(self, number: int) -> bytes:
        """The request body of a batch; that of number 0 carries the tensor table."""
        if number == 0:
            return self._first
        content = bytearray(self._contents[number % len(self._contents)])
        head = int.from_bytes(content[:8], "little")
        arrays = json.loads(content[8 : 8 + head])
        step = np.arange(number * self.shape.steps, (number + 1) * self.shape.steps, dtype=np.int64)
        for name, values in (("step", step), ("stat_step", step), ("time", START_TIME + step)):
            begin, end = (8 + head + at for at in arrays[name]["data_offsets"])
            content[begin:end] = values.tobytes()
        return bytes(content)

    def batch(self, number: int, rng: np.random.Generator) -> Batch:
        """amax as bfloat16 gives it, scale a power of two, percentages are counts, rms has full noise."""
        size = (self.shape.steps, self.shape.tensors)
        amax = self._base * rng.normal(1, 0.1, size).astype(np.float32)
        stats: Mapping[str, NDArray[np.float32]] = {
            "amax": (amax.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
            "nan_count": np.zeros(size, np.float32),
            "overflow_pct": np.where(rng.random(size) < 0.01, _share(rng, 40, size), 0).astype(np.float32),
            "rms": (self._base * 0.3 * rng.normal(1, 0.1, size)).astype(np.float32),
            "scale": np.broadcast_to(np.exp2(np.floor(np.log2(224 / self._base))), size).astype(np.float32),
            "underflow_pct": _share(rng, 4000, size),
        }
        step = np.arange(number * self.shape.steps, (number + 1) * self.shape.steps, dtype=np.int64)
        loss = 2.5 + rng.normal(0, 0.03, len(step))
        norm = rng.normal(1.0, 0.1, len(step))
        return Batch(
            step=step,
            time=START_TIME + step.astype(np.float64),
            scalar_names=SCALARS,
            scalars=np.column_stack([norm, loss, np.full(len(step), 3e-4)]),
            scalars_present=np.ones((len(step), len(SCALARS)), bool),
            tensor_names=self.names,
            stat_row=np.arange(len(step), dtype=np.int64),
            stats=dict(stats),
            stats_present={name: np.ones(size, bool) for name in STATS},
        )


def _share(rng: np.random.Generator, most: int, size: tuple[int, int]) -> NDArray[np.float32]:
    return (rng.integers(0, most, size) / ELEMENTS * 100).astype(np.float32)
