"""Sizes of the run's linear layers, from whatever the run says about them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.advisor.evidence import Evidence
from floatscope_diagnostics.compare.tensor_log import plain_name

LARGEST_WHOLE_HISTOGRAM = 2**22
"""Elements up to which a histogram surely holds all elements of a weight; larger tensors may be sampled by
rows (``floatscope.probes.counters``)."""

_BUNDLED = re.compile(r"blocks\.\d+\.(attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\Z")


@dataclass(frozen=True)
class Sizes:
    """kn: (features in, features out) by layer, where known.  parameters: by layer, where known.  source:
    "shapes", "parameters" or "" if there is nothing for some layer.
    """

    kn: Mapping[str, tuple[int, int]]
    parameters: Mapping[str, float]
    source: Literal["shapes", "parameters", ""]

    def share_pct(self) -> dict[str, float]:
        """Share of each layer in the GEMM FLOPs of all. FLOPs of a linear layer are proportional to its
        parameters (6 T K N for a training step), as long as all see the same tokens.
        """
        total = sum(self.parameters.values())
        if not self.source or total <= 0:
            return {}
        return {layer: 100.0 * value / total for layer, value in self.parameters.items()}


def sizes_of(evidence: Evidence) -> Sizes:
    """Sizes of all layers with casts or watched in high precision beside them."""
    layers = tuple(dict.fromkeys((*evidence.layers, *evidence.high)))
    linears = [name for name in layers if name in evidence.layers or _BUNDLED.match(name)]
    kn = {}
    for layer in linears:
        found = _described(evidence.info, layer) or _bundled(evidence.info, layer)
        if found is not None:
            kn[layer] = found
    if linears and len(kn) == len(linears):
        return Sizes(kn, {layer: float(k * n) for layer, (k, n) in kn.items()}, "shapes")
    counted = {
        t.layer: float(sum(t.histogram.counts))
        for t in evidence.tensors
        if t.role == "weight" and t.histogram is not None
    }
    if len(counted) == len(evidence.layers) and max(counted.values(), default=0) < LARGEST_WHOLE_HISTOGRAM:
        return Sizes({}, counted, "parameters" if counted else "")
    return Sizes({}, {}, "")


def _described(info: RunInfo, layer: str) -> tuple[int, int] | None:
    """From the shape of the weight, (features out, features in), in the table of tensors."""
    for name in (f"{layer}/weight",):
        row = info.tensors.get(name) or next(
            (row for known, row in info.tensors.items() if plain_name(known) == name), {}
        )
        shape = row.get("shape")
        if isinstance(shape, list | tuple) and len(shape) == 2 and all(_is_size(v) for v in shape):
            return int(shape[1]), int(shape[0])
    return None


def _bundled(info: RunInfo, layer: str) -> tuple[int, int] | None:
    """Of the model of ``floatscope train``, which logs its widths in the configuration of the run."""
    model: Any = info.config.get("model")
    part = _BUNDLED.match(layer)
    if part is None or not isinstance(model, Mapping):
        return None
    if not _is_size(model.get("width")) or not _is_size(model.get("hidden")):
        return None
    width, hidden = int(model["width"]), int(model["hidden"])
    return {
        "attn.qkv": (width, 3 * width),
        "attn.proj": (width, width),
        "mlp.fc1": (width, 2 * hidden),
        "mlp.fc2": (hidden, width),
    }[part[1]]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
