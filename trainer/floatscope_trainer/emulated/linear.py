"""A linear layer whose three GEMMs multiply what the quantizers leave, with float32 accumulation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from floatscope_trainer.emulated.quantizers import Operand, Quantizer
from floatscope_trainer.emulated.state import GlobalState

QUANTIZED_ROLES = ("input", "weight", "grad_output")


class EmulatedLinear(nn.Module):
    """y = x W^T without bias.

    weight: float32 master copy, (out_features, in_features).  quantizers: by role, set by the backend.
    fp8_meta: as on Transformer Engine's modules, empty unless the layer runs in FP8.  fp8_global_state: what
    the model's layers share.
    """

    fp8_global_state: type[GlobalState]
    fp8_meta: dict[str, Any]

    def __init__(self, in_features: int, out_features: int, *, state: type[GlobalState]) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.quantizers: dict[str, Quantizer] = {}
        self.result_dtype: torch.dtype | None = None  # what products are rounded to; None keeps float32
        self.fp8_global_state = state

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features) float32.  Returns (..., out_features)."""
        out: Tensor = _QuantizedLinear.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return out

    def quantize(self, role: str, values: Tensor) -> Operand:
        """What the GEMMs use for the tensor with this role; inspectors see both."""
        state = self.fp8_global_state
        quantizer = self.quantizers[role]
        seen, operand = quantizer(values, record=state.recording)
        if state.inspectors and state.recording:
            replaced = seen if operand.scale is None else operand.dequantized()
            for inspect in tuple(state.inspectors.values()):
                inspect(self, role, seen, replaced, operand.scale, quantizer.fmt)
        return operand

    def round_result(self, product: Tensor) -> Tensor:
        """A GEMM's result as its output dtype holds it, in float32."""
        return product if self.result_dtype is None else product.to(self.result_dtype).to(torch.float32)

    def extra_repr(self) -> str:
        """Shape and formats, for print(model)."""
        formats = ", ".join(f"{role}={q.fmt}" for role, q in self.quantizers.items())
        return f"{self.in_features}, {self.out_features}, {formats}"


class _QuantizedLinear(torch.autograd.Function):
    """fprop x W^T, dgrad g W, wgrad g^T x. The backward GEMMs use the forward's quantized x and W, as
    Transformer Engine's do.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: EmulatedLinear) -> Tensor:
        ctx.layer = layer
        ctx.is_first = layer.fp8_global_state.claim_first()
        ctx.x = layer.quantize("input", x.reshape(-1, x.shape[-1]))
        ctx.weight = layer.quantize("weight", weight)
        product = _unscale(ctx.x.row @ ctx.weight.row.t(), ctx.x, ctx.weight)
        return layer.round_result(product).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        layer: EmulatedLinear = ctx.layer
        g = layer.quantize("grad_output", grad_output.reshape(-1, grad_output.shape[-1]))
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            product = layer.round_result(_unscale(g.row @ ctx.weight.col, g, ctx.weight))
            grad_x = product.view(*grad_output.shape[:-1], -1)
        if ctx.needs_input_grad[1]:
            grad_weight = layer.round_result(_unscale(g.col.t() @ ctx.x.col, g, ctx.x))
        if ctx.is_first:
            layer.fp8_global_state.reduce_and_update_fp8_tensors(forward=False)
        return grad_x, grad_weight, None


def _unscale(product: Tensor, a: Operand, b: Operand) -> Tensor:
    """The product in the units of the unquantized tensors, in place."""
    for operand in (a, b):  # one after the other: their product may leave the range of float32
        if operand.scale_inv is not None:
            product.mul_(operand.scale_inv)
    return product
