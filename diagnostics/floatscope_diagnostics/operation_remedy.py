"""What to do about an operation that computes something else, whichever rule found it."""

from __future__ import annotations

from floatscope_diagnostics.precision import fitting
from floatscope_diagnostics.rule import Remedy, RunFacts

FP8 = Remedy(
    "Run this operation (for a weight gradient: the wgrad GEMM of this layer) in BF16 or on another "
    "backend, restore the last clean checkpoint and block the one written since.",
    {
        "transformer_engine": "debug feature DisableFP8GEMM for this layer and GEMM; NVTE_FUSED_ATTN=0 or "
        "NVTE_FLASH_ATTN=0 to change the attention backend",
        "torchao": "exclude the layer in module_filter_fn; run without torch.compile",
        "megatron": "--rerun-mode validate_results; --no-gradient-accumulation-fusion",
        "deepspeed": "switch fused kernels off one by one",
    },
)
PLAIN = Remedy(
    "Run this operation in FP32 or on another backend, restore the last clean checkpoint and block the one "
    "written since.",
    {
        "transformer_engine": "NVTE_FUSED_ATTN=0 or NVTE_FLASH_ATTN=0 to change the attention backend",
        "torchao": "run without torch.compile",
        "megatron": "--rerun-mode validate_results; --no-gradient-accumulation-fusion",
        "deepspeed": "switch fused kernels off one by one",
    },
)


def operation_remedy(run: RunFacts) -> Remedy:
    """Another backend or precision for the operation, by what the run's precision offers."""
    return fitting(run, FP8, PLAIN)
