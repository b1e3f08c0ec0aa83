"""Set torch_dtype="fp8", or autocast to float8, and the model trains in FP8.

What people say
    AutoModel.from_pretrained(..., torch_dtype="fp8") or torch.autocast(dtype=torch.float8_e4m3fn) trains in
    FP8.
What is true
    torch has no dtype called fp8; torch.autocast takes no float8 dtype; float8 tensors cannot even be added,
    and where a plain matmul of them exists it knows no scale. FP8 training replaces the linear layers, each
    product with its scales: Transformer Engine, torchao, or through them Megatron-LM and accelerate.
How it is measured
    The installed torch is asked for the dtype, for the autocast and for operations on float8 tensors.
What to do
    See the pages of the recipes (docs/fp8/recipes), and count the linears that became FP8 ones afterwards:
    floatscope preflight tells which layers of a model can.
Source
    Measured; accelerate, low precision training.
"""

from __future__ import annotations

import warnings

import torch

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement


def _works(operation: str) -> bool:
    a = torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        if operation == "matmul":
            a @ a
        else:
            a + a
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _autocast_is_on() -> bool:
    """Whether torch.autocast to float8 stays enabled on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.autocast("cpu", dtype=torch.float8_e4m3fn):
                return torch.is_autocast_enabled("cpu")
        except (RuntimeError, TypeError):
            return False


def measure() -> Measured:
    """Asks torch."""
    named = hasattr(torch, "fp8")
    autocast = _autocast_is_on()
    operations = {name: _works(name) for name in ("matmul", "addition")}
    return Measured(
        figures=(
            Figure("torch.fp8 exists (1: yes)", float(named)),
            Figure("autocast to float8 stays on", float(autocast)),
            *(Figure(f"float8 {name} works", float(works)) for name, works in operations.items()),
        ),
        claimed=(
            Statement("there is a dtype torch.fp8", named),
            Statement("torch.autocast takes a float8 dtype", autocast),
        ),
        true=(Statement("two float8 tensors cannot be added", not operations["addition"]),),
    )


FACT = Fact("fp8-as-dtype", "false", measure)
