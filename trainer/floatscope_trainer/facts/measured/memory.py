"""FP8 halves the memory of training.

What people say
    Train in FP8 and memory halves; the weights of a 7B model take 5.6 GB.
What is true
    The weights of 7B parameters in FP8 are 7 GB, one byte each, and in training they come on top: masters,
    gradients and moments stay, and a library that computes in FP8 keeps FP8 copies, on Hopper a transposed
    one too. Weights that exist in FP8 only save a byte or none. Published peaks move by -1 to +0.7 %
    (torchao, torchtitan). Memory goes down with BF16 moments, sharding and recomputation.
How it is measured
    The tensors of one linear layer of 1024 x 1024 are allocated as each method keeps them, their bytes
    counted, and multiplied up to 7e9 parameters; state only, without activations, on one GPU.
What to do
    floatscope plan --model llama-2-7b --gpu H100 --gpus 8 shows memory by part, in BF16 and each recipe.
Source
    Transformer Engine documentation (quantized_model_init); Megatron-LM, theoretical_memory_usage.py; torchao
    and torchtitan benchmarks.
"""

from __future__ import annotations

import torch

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement

SIDE, PARAMETERS = 1024, 7e9
FP8, BF16, FP32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
MASTER_GRADIENT_MOMENTS = (FP32, FP32, FP32, FP32)
KEPT: dict[str, tuple[torch.dtype, ...]] = {
    "BF16 weights": (BF16, *MASTER_GRADIENT_MOMENTS),
    "+ FP8 compute, Blackwell (one copy)": (BF16, FP8, *MASTER_GRADIENT_MOMENTS),
    "+ FP8 compute, Hopper (and a transpose)": (BF16, FP8, FP8, *MASTER_GRADIENT_MOMENTS),
    "FP8-only weights, Hopper": (FP8, FP8, *MASTER_GRADIENT_MOMENTS),
    "BF16 weights and moments": (BF16, FP32, FP32, BF16, BF16),
}
EXPECTED = (18, 19, 20, 18, 14)


def _bytes_per_parameter(kept: tuple[torch.dtype, ...]) -> float:
    tensors = [torch.empty(SIDE, SIDE, dtype=dtype) for dtype in kept]
    return sum(tensor.nbytes for tensor in tensors) / SIDE**2


def measure() -> Measured:
    """Allocates and counts."""
    each = {name: _bytes_per_parameter(kept) for name, kept in KEPT.items()}
    weights = _bytes_per_parameter((FP8,)) * PARAMETERS / 1e9
    base = each["BF16 weights"]
    fp8 = {name: value for name, value in each.items() if "FP8" in name}
    per_parameter = zip(each.items(), EXPECTED, strict=True)
    return Measured(
        figures=(
            Figure("weights of 7B in FP8", weights, "GB", (7, 7)),
            *(
                Figure(f"{name}", value, "B per parameter", (expected, expected))
                for (name, value), expected in per_parameter
            ),
            Figure("state of 7B, BF16", base * PARAMETERS / 1e9, "GB"),
            Figure("state of 7B, FP8 compute on Hopper", list(fp8.values())[1] * PARAMETERS / 1e9, "GB"),
        ),
        claimed=(
            Statement("FP8 training state is half of BF16's", min(fp8.values()) <= 0.55 * base),
            Statement("7B weights take 5.6 GB in FP8", abs(weights - 5.6) < 0.1),
        ),
        true=(
            Statement(
                "FP8 compute with BF16 weights takes more state, not less", next(iter(fp8.values())) > base
            ),
            Statement(
                "BF16 moments save more than FP8 does", each["BF16 weights and moments"] < min(fp8.values())
            ),
        ),
    )


FACT = Fact("memory", "false", measure)
