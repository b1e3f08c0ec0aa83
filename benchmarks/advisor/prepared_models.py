"""Models whose values do not suit FP8 at known places, while BF16 computes the same as without.

Each function returns what changes a model before its first step. The channels concerned are of powers of two
and are multiplied by exact zeros somewhere, so they carry nothing, and the loss in BF16 is that of a smaller
model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Prepare = Callable[[nn.Module], None]

CHANNEL = 5
_NORM_BEFORE = {"attn.qkv": "attn_norm", "mlp.fc1": "mlp_norm"}


def outlier_input(block: int, part: str, times: float) -> Prepare:
    """One channel in front of a layer is ``times`` as large as the others: a massive activation.

    The norm's gain of this channel is large, and the weights that read it are zero and stay so.
    """

    def prepare(model: nn.Module) -> None:
        norm, layer = _around(model, block, part)
        _set(norm.weight, (CHANNEL,), times)
        _set(layer.weight, (slice(None), CHANNEL), 0.0)

    return prepare


def outlier_weight_column(block: int, part: str, times: float) -> Prepare:
    """One column of a weight is large, and the channel that it would read is zero and stays so."""

    def prepare(model: nn.Module) -> None:
        norm, layer = _around(model, block, part)
        _set(norm.weight, (CHANNEL,), 0.0)
        _set(layer.weight, (slice(None), CHANNEL), times * _typical(layer.weight))

    return prepare


def outlier_swiglu(block: int, times: float) -> Prepare:
    """One row of fc1 (its up half) is ``times`` as large, and fc2 does not read what it makes.

    As in 2409.12517: SwiGLU amplifies single channels; fc1's weight and fc2's input then hold an outlier.
    """

    def prepare(model: nn.Module) -> None:
        mlp = model.get_submodule(f"blocks.{block}.mlp")
        fc1, fc2 = mlp.get_submodule("fc1"), mlp.get_submodule("fc2")
        assert isinstance(fc1.weight, Tensor)
        _amplify_row(fc1.weight, fc1.weight.shape[0] // 2 + CHANNEL, times)
        _set(fc2.weight, (slice(None), CHANNEL), 0.0)

    return prepare


def outlier_value(block: int, times: float) -> Prepare:
    """One row of qkv (a channel of the values of attention) is ``times`` as large, and proj does not read it.

    The mate of ``outlier_swiglu`` in attention: qkv's weight and proj's input then hold an outlier.
    """

    def prepare(model: nn.Module) -> None:
        attention = model.get_submodule(f"blocks.{block}.attn")
        qkv, proj = attention.get_submodule("qkv"), attention.get_submodule("proj")
        assert isinstance(qkv.weight, Tensor)
        _amplify_row(qkv.weight, 2 * qkv.weight.shape[0] // 3 + CHANNEL, times)
        _set(proj.weight, (slice(None), CHANNEL), 0.0)

    return prepare


def twin(number: int) -> Prepare:
    """Every parameter changes by about the rounding of BF16 (2^-9 of itself): the same run but for chance.
    Zeros stay zeros. number: 0 changes nothing.
    """

    def prepare(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.0 + 2.0**-9 * torch.randn(parameter.shape, generator=generator))

    return prepare if number else all_of()


def all_of(*parts: Prepare) -> Prepare:
    """One after the other."""

    def prepare(model: nn.Module) -> None:
        for part in parts:
            part(model)

    return prepare


def _around(model: nn.Module, block: int, part: str) -> tuple[nn.Module, nn.Module]:
    """The layer and the norm in front of it."""
    at = model.get_submodule(f"blocks.{block}")
    return at.get_submodule(_NORM_BEFORE[part]), at.get_submodule(part)


def _typical(weight: object) -> float:
    assert isinstance(weight, Tensor)
    return float(weight.detach().std())


def _amplify_row(weight: Tensor, row: int, times: float) -> None:
    with torch.no_grad():
        weight[row] *= times
    _hold(weight, (row,))


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
