"""The FP8 recipes a plan knows, as a table with sources, and which GPU can run which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from floatscope.hardware.gpus import GpuModel
from floatscope.hardware.roofline import Casts, roofline

BF16 = "bf16"
NOT_ON_AMD = "not planned on AMD: its own build of Transformer Engine has rules and speeds of its own"


@dataclass(frozen=True)
class Recipe:
    """A way to run the linear layers in fewer bits; the fields are explained in recipes.json.

    casts: what its casts and products cost, of the roofline.
    """

    key: str
    label: str
    library: str
    saved_input: float | None
    weight_copy: float
    second_copy: Literal["tn_only", "always", "never"]
    fp8_all_gather: bool
    needs: Mapping[str, Any]
    refused: str
    caveats: tuple[Mapping[str, Any], ...]
    source: str
    casts: Casts

    def copies(self, gpu: GpuModel) -> float:
        """Bytes per parameter of the low-precision copies of a weight that are kept for the backward pass."""
        second = self.second_copy == "always" or (self.second_copy == "tn_only" and tn_only(gpu))
        return self.weight_copy * (2 if second else 1)

    def why_not(self, gpu: GpuModel) -> str:
        """Why this GPU cannot run it, "" if it can."""
        if self.casts.peak_tflops(gpu) is None:
            return f"{gpu.name} has no {self.casts.peak.upper()} tensor cores, or none whose peak is known"
        if gpu.capability is None:
            return "" if gpu.arch in self.needs.get("amd", ()) else NOT_ON_AMD
        low, high = self.needs["nvidia"]
        return "" if tuple(low) <= gpu.capability < tuple(high) else self.refused

    def only_if_asked(self, gpu: GpuModel) -> str:
        """Why it is planned on this GPU only where it is asked for by name, "" if it always is."""
        left_out = [one for one in self.caveats if one.get("only_if_asked") and _applies(one, gpu)]
        return str(left_out[0]["text"]) if left_out else ""

    def notes(self, gpu: GpuModel) -> tuple[str, ...]:
        """What holds on this GPU besides."""
        return tuple(caveat["text"] for caveat in self.caveats if _applies(caveat, gpu))


@dataclass(frozen=True)
class RecipeTable:
    """All recipes and what they share.

    uncompiled_speedup: of a torchao linear without torch.compile.
    """

    recipes: tuple[Recipe, ...]
    uncompiled_speedup: float


def tn_only(gpu: GpuModel) -> bool:
    """Whether FP8 GEMMs take only the TN layout, so that a transposed copy is needed.

    Source: Transformer Engine ``is_non_tn_fp8_gemm_supported``: False below 10.0 and on 12.x.
    """
    return gpu.capability is not None and (gpu.capability < (10, 0) or gpu.capability >= (12, 0))


@cache
def recipe_table() -> RecipeTable:
    """The table of recipes.json."""
    table = json.loads(files("floatscope_diagnostics.plan").joinpath("recipes.json").read_text("utf-8"))
    rows = tuple(
        Recipe(
            **{
                **row,
                "caveats": tuple(row["caveats"]),
                "casts": roofline().recipes[row["key"]],
            }
        )
        for row in table["recipes"]
    )
    return RecipeTable(rows, table["uncompiled_linear_speedup"])


def _applies(caveat: Mapping[str, Any], gpu: GpuModel) -> bool:
    if "archs" in caveat:
        return gpu.arch in caveat["archs"]
    if gpu.capability is None:
        return False
    return bool(tuple(caveat["from"]) <= gpu.capability < tuple(caveat["to"]))
