"""Training runs whose gap to BF16 has a known place, and healthy ones.

Two families. In the *format* family nothing is broken: the values do not suit the format, the recipe is set
badly or the cast rounds badly. In the *injected* family a fault sits at chosen quantisers; it vanishes when
the layer leaves FP8, because a BF16 layer has no quantiser, so these show only whether the right layers are
found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LAYERS = 3
OUTLIER_CHANNEL = 5


@dataclass(frozen=True)
class Scenario:
    """options: of ``floatscope train``, for the FP8 run.  bad: layers that are meant to be bad, empty for all
    or none.  prepare: changes the model before the first step, in FP8 and BF16 alike.  family: "format",
    "injected" or "healthy".
    """

    name: str
    family: str
    what: str
    options: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    prepare: Callable[[nn.Module], None] | None = None


def outlier_input(block: int, part: str, times: float) -> Callable[[nn.Module], None]:
    """One channel in front of a layer is ``times`` as large as the others and carries nothing.

    As the massive activations of language models: the norm's gain of this channel is large, and the weights
    that read it are zero and stay so. Exact zeros in BF16, so nothing changes there.
    """

    def prepare(model: nn.Module) -> None:
        at = model.get_submodule(f"blocks.{block}")
        norm, layer = (
            (at.get_submodule("attn_norm"), at.get_submodule("attn.qkv"))
            if part == "attn.qkv"
            else (at.get_submodule("mlp_norm"), at.get_submodule("mlp.fc1"))
        )
        _set(norm.weight, (OUTLIER_CHANNEL,), times)
        _set(layer.weight, (slice(None), OUTLIER_CHANNEL), 0.0)

    return prepare


def outlier_swiglu(block: int, times: float) -> Callable[[nn.Module], None]:
    """One row of fc1 (its up half) is ``times`` as large, and fc2 does not read what it makes.

    As in 2409.12517: SwiGLU amplifies single channels; fc1's weight and fc2's input then hold an outlier.
    """

    def prepare(model: nn.Module) -> None:
        mlp = model.get_submodule(f"blocks.{block}.mlp")
        fc1, fc2 = mlp.get_submodule("fc1"), mlp.get_submodule("fc2")
        assert isinstance(fc1.weight, Tensor)
        assert isinstance(fc2.weight, Tensor)
        row = fc1.weight.shape[0] // 2 + OUTLIER_CHANNEL
        with torch.no_grad():
            fc1.weight[row] *= times
        _hold(fc1.weight, (row,))
        _set(fc2.weight, (slice(None), OUTLIER_CHANNEL), 0.0)

    return prepare


def _set(parameter: object, at: tuple[int | slice, ...], value: float) -> None:
    assert isinstance(parameter, nn.Parameter)
    with torch.no_grad():
        parameter[at] = value
    _hold(parameter, at)


def _hold(parameter: Tensor, at: tuple[int | slice, ...]) -> None:
    """Elements that training leaves as they are (but for weight decay)."""

    def without(grad: Tensor) -> Tensor:
        grad = grad.clone()
        grad[at] = 0.0
        return grad

    parameter.register_hook(without)  # type: ignore[no-untyped-call]


def both(*parts: Callable[[nn.Module], None]) -> Callable[[nn.Module], None]:
    def prepare(model: nn.Module) -> None:
        for part in parts:
            part(model)

    return prepare


CURRENT = ("--recipe", "current")
DELAYED = ("--recipe", "delayed", "--amax-history-len", "16")
FC1_AND_QKV = tuple(f"blocks.{b}.{part}" for b in range(LAYERS) for part in ("attn.qkv", "mlp.fc1"))
FC2_AND_PROJ = tuple(f"blocks.{b}.{part}" for b in range(LAYERS) for part in ("attn.proj", "mlp.fc2"))
FC1_AND_FC2 = tuple(f"blocks.{b}.{part}" for b in range(LAYERS) for part in ("mlp.fc1", "mlp.fc2"))


def _at(fault: str, tensors: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for tensor in tensors for word in ("--inject", f"{fault}:{tensor}"))


SCENARIOS = (
    Scenario(
        "gradients-six",
        "injected",
        "the gradient scales of every proj and fc2 are constants far too low",
        (*DELAYED, *_at("gradient_underflow@10", tuple(f"{name}/grad_output" for name in FC2_AND_PROJ))),
        FC2_AND_PROJ,
    ),
    Scenario(
        "outlier-six",
        "format",
        "outlier channels in front of every qkv and fc1",
        CURRENT,
        FC1_AND_QKV,
        both(*(outlier_input(b, part, 2.0**20) for b in range(LAYERS) for part in ("attn.qkv", "mlp.fc1"))),
    ),
    Scenario(
        "outlier-swiglu",
        "format",
        "a SwiGLU channel that is amplified in every block: fc1's weight and fc2's input",
        DELAYED,
        FC1_AND_FC2,
        both(*(outlier_swiglu(b, 2.0**20) for b in range(LAYERS))),
    ),
    Scenario(
        "frozen-scales",
        "injected",
        "the scales of every input of proj and fc2 stop at step 1 and clip as the values grow",
        (*DELAYED, *_at("scale_frozen@1", tuple(f"{name}/input" for name in FC2_AND_PROJ))),
        FC2_AND_PROJ,
    ),
    Scenario("margin-17", "format", "a margin of 17 bits: scales far too low", (*DELAYED, "--margin", "17")),
    Scenario("rtz", "format", "casts that round toward zero, everywhere", (*CURRENT, "--cast", "rtz")),
    Scenario("healthy-current", "healthy", "current scaling, nothing wrong", CURRENT),
    Scenario("healthy-delayed", "healthy", "delayed scaling, nothing wrong", DELAYED),
)
