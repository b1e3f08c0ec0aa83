"""Which layers accelerate's conversion leaves behind, told from the shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

from floatscope.model_shapes.gemm import Gemm
from floatscope.preflight.facts import Wanted
from floatscope.preflight.shape_rules import library_of

MULTIPLE = 16
SOURCE = "accelerate 1.15.0, utils/transformer_engine.py:44-51 (convert_model) and utils/ao.py:65"


def left_by_accelerate(gemms: Sequence[Gemm], wanted: Wanted) -> dict[str, str]:
    """Name of a layer -> why accelerate does not convert it.

    With Transformer Engine, ``convert_model`` returns from its loop over a module's children at the first
    Linear whose weight has a side that is no multiple of 16: every later child of that module, with all
    below it, stays as it was. With torchao the filter looks at each layer alone, and leaves out the first
    and the last.  The order of children is taken to be the order in which a token meets them.
    """
    if library_of(wanted) == "torchao":
        return _by_filter(gemms)
    left: dict[str, str] = {}
    stopped: dict[str, str] = {}
    for gemm in gemms:
        parent = gemm.name.rpartition(".")[0]
        stop = next((at for at in stopped if parent == at or parent.startswith(f"{at}.")), None)
        if stop is not None:
            left[gemm.name] = f"accelerate stops converting this module at {stopped[stop]}"
        elif gemm.k % MULTIPLE or gemm.n % MULTIPLE:
            left[gemm.name] = f"its weight {gemm.n:,} x {gemm.k:,} is no multiple of {MULTIPLE}"
            if parent:
                stopped[parent] = gemm.name
    return left


def _by_filter(gemms: Sequence[Gemm]) -> dict[str, str]:
    left = {
        gemm.name: f"its weight {gemm.n:,} x {gemm.k:,} is no multiple of {MULTIPLE}"
        for gemm in gemms
        if gemm.k % MULTIPLE or gemm.n % MULTIPLE
    }
    last = gemms[-1].name if gemms else ""
    if last and last not in left:
        left[last] = "accelerate's filter leaves the first and the last linear layer out"
    return left
