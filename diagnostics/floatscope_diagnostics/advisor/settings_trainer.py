"""The advice as options of ``floatscope train``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from floatscope.protocol.runinfo import RunInfo

WHOLE_RUN = ("delayed", "current", "block", "mxfp8")
_LAYER = re.compile(r"blocks\.\d+\.(attn\.(qkv|proj)|mlp\.(fc1|fc2))\Z")


def floatscope_train(layers: Sequence[tuple[str, str]], info: RunInfo) -> str:
    """Options, or a comment that says why there are none. A single layer can only go to BF16 here; what the
    run's own precision map says is kept behind it (the first match wins).
    """
    if not layers:
        return ""
    foreign = next((name for name, _ in layers if not _LAYER.match(name)), None)
    if foreign is not None:
        return f"# {foreign} is not a layer of the bundled model (blocks.N.mlp.fc2 and the like)\n"
    entries = [f"{name}=bf16" for name, _ in layers]
    before = _map_of(info)
    if before:
        entries.append(before)
    return f"--precision-map {','.join(entries)}\n"


def whole_recipe(recipe: str) -> str:
    """The option that gives the whole model another recipe."""
    if recipe not in WHOLE_RUN:
        return f"# the bundled trainer has no {recipe} scaling\n"
    return f"--recipe {recipe} --margin 0\n"


def _map_of(info: RunInfo) -> str:
    precision: Any = info.config.get("precision")
    given = precision.get("precision_map") if isinstance(precision, Mapping) else None
    return given if isinstance(given, str) and re.fullmatch(r"[A-Za-z0-9_.*?=,\[\]-]+", given) else ""
