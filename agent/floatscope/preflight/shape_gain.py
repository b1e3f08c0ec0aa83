"""Layers that are too small for FP8 to pay: the casts cost more than the GEMM saves."""

from __future__ import annotations

from collections.abc import Sequence

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu
from floatscope.hardware.gpus import GpuModel
from floatscope.hardware.roofline import casts_of, speedup
from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.shape_layers import Layer, tokens_known
from floatscope.preflight.table_reading import read_table

_MOST_NAMED = 8


def gain_checks(facts: Facts, wanted: Wanted, layers: Sequence[Layer]) -> list[Check]:
    """One check that names the layers below break-even; none where tokens are not known or none is in FP8."""
    inside = [one for one in layers if one.in_fp8 and one.gemm.kind != "expert"]
    if not tokens_known(wanted) or not inside:
        return []
    gpu, known = _gpu(facts, wanted.recipe)
    if gpu is None or _pays(inside[0], gpu, wanted.recipe) is None:
        return []
    small = [one for one in inside if _pays(one, gpu, wanted.recipe) is False]
    where = gpu.name if known else f"{gpu.name} (the GPU is not known)"
    named = ", ".join(
        f"{one.gemm.name} (K {one.gemm.k:,}, N {one.gemm.n:,}, T {one.gemm.tokens:,})"
        for one in small[:_MOST_NAMED]
    )
    return [
        Check(
            "shape.gain",
            "shape",
            "warn" if small else "pass",
            f"below break-even on {where}: {named}" if small else f"all above break-even on {where}",
            "casting reads and writes the operands; under a certain K, N and T (as narrow key and value "
            "projections have) that costs more than the faster GEMM saves",
            "keep them in BF16, or give more tokens a GEMM (micro-batch times sequence)" if small else "",
            f"{read_table('shapes')['gain']['source']}; peaks: {gpu.source}",
        )
    ]


def _gpu(facts: Facts, recipe: str) -> tuple[GpuModel | None, bool]:
    """The first GPU that the table knows, else the one that stands in for the recipe; False for that."""
    table = read_table("shapes")["gain"]["stands_in"]
    stand_in = table.get(recipe, table["*"])
    for name, known in (*((gpu.name, True) for gpu in facts.gpus), (stand_in, False)):
        try:
            return find_gpu(name), known
        except UnknownGpuError:
            continue
    return None, False


def _pays(layer: Layer, gpu: GpuModel, recipe: str) -> bool | None:
    """Whether it is faster than in BF16 by the roofline; None where the recipe's or the GPU's numbers are not
    known.
    """
    casts, gemm = casts_of(recipe), layer.gemm
    if casts is None or not casts.peak_tflops(gpu):
        return None
    return speedup(gemm.tokens, gemm.k, gemm.n, gpu, casts, after_norm=gemm.after_norm) > 1
