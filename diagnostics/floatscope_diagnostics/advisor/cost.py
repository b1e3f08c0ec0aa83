"""What it costs in step time to take layers out of FP8: a roofline of their GEMMs, or parameter shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from floatscope.hardware.gpus import GpuModel
from floatscope.hardware.roofline import bf16_seconds, casts_of, roofline, speedup
from floatscope.preflight.recipe_names import ALIASES
from floatscope_diagnostics.advisor.shapes import Sizes


@dataclass(frozen=True)
class Cost:
    """flops_leaving_pct: share of the GEMM FLOPs of layers in FP8 that would run in BF16.  speed_cost_pct:
    longer time of the linear layers' GEMMs, in % of their time now, None if not known; below 0 where FP8 does
    not pay for these sizes.  source: what this rests on, a sentence.
    """

    flops_leaving_pct: float | None
    speed_cost_pct: float | None
    source: str


def gemm_seconds(tokens: float, k: int, n: int, gpu: GpuModel, recipe: str) -> tuple[float, float]:
    """Seconds of the three products of a layer in BF16, and in FP8 with its casts, by the roofline.

    tokens: of a micro-batch.  recipe: short name; one the roofline does not know costs what current scaling
    does.
    """
    bf16 = bf16_seconds(tokens, k, n, gpu)
    casts = casts_of(ALIASES.get(recipe, recipe)) or roofline().recipes["fp8_current_scaling"]
    if not casts.peak_tflops(gpu):
        return bf16, bf16
    return bf16, bf16 / speedup(tokens, k, n, gpu, casts)


def cost_of(
    targets: Mapping[str, str],
    sizes: Sizes,
    in_fp8: Collection[str],
    *,
    tokens: float | None,
    gpu: GpuModel | None,
    recipe: str,
) -> Cost:
    """The price of a change. targets: short recipe or "bf16" by layer.  in_fp8: the layers that have casts
    now.
    """
    moved = [layer for layer, to in targets.items() if to == "bf16"]
    shares = sizes.share_pct()
    known = sum(shares.get(layer, 0.0) for layer in in_fp8)
    if not shares or known <= 0:
        return Cost(None, None, "the sizes of the layers are not logged")
    leaving = 100.0 * sum(shares.get(layer, 0.0) for layer in moved) / known
    if sizes.source != "shapes" or tokens is None or gpu is None or not gpu.fp8_tflops:
        missing = (
            "their shapes are not logged"
            if sizes.source != "shapes"
            else "tokens a step are not logged"
            if tokens is None
            else "no GPU with FP8 is named (--gpu)"
        )
        return Cost(leaving, None, f"share of the parameters of the linear layers in FP8; {missing}")
    before = after = 0.0
    for layer, (k, n) in sizes.kn.items():
        t16, t8 = gemm_seconds(tokens, k, n, gpu, recipe)
        before += t8 if layer in in_fp8 else t16
        if layer not in in_fp8 or layer in moved:
            after += t16
        else:
            after += gemm_seconds(tokens, k, n, gpu, targets.get(layer, recipe))[1]
    source = (
        f"roofline of the linear layers' GEMMs on {gpu.name} at {tokens:,.0f} tokens a micro-batch; "
        "attention, optimizer and communication come on top and make the share smaller"
    )
    return Cost(leaving, 100.0 * (after / before - 1.0) if before > 0 else None, source)
