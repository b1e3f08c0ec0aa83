"""The few functions of Transformer Engine's compiled module that its linear layers call, on the CPU.

Casts, GEMMs and normalisations in plain torch; everything else is the real package: autograd functions,
module logic, registration in the global buffers, order of updates, checkpoint state.
"""

from __future__ import annotations

import contextlib
import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.te_contract.te_stub import import_transformer_engine

_FP8 = {7: torch.float8_e4m3fn, 8: torch.float8_e5m2}
_WIDE = {4: torch.float32, 5: torch.float16, 6: torch.bfloat16}

Casts = list[tuple[str, float, float]]
"""What was cast, in order: (class of quantizer, amax of the tensor, scale used)."""


class TransformerEngine:
    """The package with its compiled part emulated. Made once per process: it patches torch and the package.

    te: transformer_engine.pytorch.  recipes: its recipe classes.  casts: a record of all casts.
    """

    def __init__(self) -> None:
        cuda: Any = torch.cuda
        cuda.is_available = lambda: True
        cuda.get_device_capability = lambda *args, **kwargs: (10, 0)  # no transposed copies are needed
        cuda.current_device = lambda: 0
        cuda.get_device_properties = lambda *args: SimpleNamespace(multi_processor_count=1, major=10, minor=0)
        cuda.synchronize = lambda *args, **kwargs: None
        cuda.is_current_stream_capturing = lambda: False
        cuda.device = lambda *args: contextlib.nullcontext()  # up to 2.9 forward passes enter their device
        tensor: Any = torch.Tensor
        tensor.cuda = lambda self, *args, **kwargs: self
        self.te, self._extension = import_transformer_engine()
        self.recipes: Any = importlib.import_module("transformer_engine.common.recipe")
        self.quantization: Any = importlib.import_module("transformer_engine.pytorch.quantization")
        self.manager = self.quantization.FP8GlobalStateManager
        self.quantizers: Any = importlib.import_module("transformer_engine.pytorch.tensor.float8_tensor")
        self.casts: Casts = []
        self._tensors: Any = importlib.import_module("transformer_engine.pytorch.tensor.float8_tensor")
        storage: Any = importlib.import_module(
            "transformer_engine.pytorch.tensor.storage.float8_tensor_storage"
        )
        self._storage = storage.Float8TensorStorage
        self._patch_package()
        functions: Any = importlib.import_module("transformer_engine.pytorch.cpp_extensions")
        functions.__getattr__ = lambda name: getattr(self._extension, name)  # it lists functions by import *
        for name, function in {
            "quantize": self._quantize,
            "generic_gemm": self._gemm,
            "bgrad_quantize": self._bgrad_quantize,
            "layernorm_fwd": self._layernorm,
            "layernorm_bwd": self._layernorm_backward,
            "gelu": self._gelu,
            "dgelu": self._dgelu,
            "dbias_dgelu": self._dbias_dgelu,
            "split_quantize": self._split_quantize,
            "te_general_grouped_gemm": self._grouped_gemm,
        }.items():
            setattr(self._extension, name, function)
            setattr(functions, name, function)

    def _patch_package(self) -> None:
        distributed: Any = importlib.import_module("transformer_engine.pytorch.distributed")
        distributed._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
        distributed._set_cuda_rng_state = lambda *args, **kwargs: None
        cuda: Any = torch.cuda
        cuda.get_rng_state, cuda.set_rng_state = torch.get_rng_state, torch.set_rng_state
        self.quantization._FP8_SUPPORT = (True, "")
        create = self.quantization.RecipeState.create
        self.quantization.RecipeState.create = staticmethod(
            lambda recipe, **kw: create(recipe, **{**kw, "device": kw.get("device") or torch.device("cpu")})
        )
        gemm: Any = importlib.import_module("transformer_engine.pytorch.cpp_extensions.gemm")
        gemm.get_cublas_workspace = lambda index, ub, grouped: [torch.empty(1)] if grouped else torch.empty(1)
        base: Any = importlib.import_module("transformer_engine.pytorch.module.base")
        prepare = base.TransformerEngineBaseModule.prepare_forward

        def prepare_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            with _pretends_cuda():
                return prepare(module, *args, **kwargs)

        base.TransformerEngineBaseModule.prepare_forward = prepare_forward

    def _quantize(self, tensor: Tensor, quantizer: Any, out: Any = None, noop: Any = None) -> Any:
        """A cast. amax goes into the open row of the history as a running maximum that drops NaN."""
        fp8 = _FP8[int(quantizer.dtype)]
        limit = torch.finfo(fp8).max
        tensor = tensor.detach()
        finite_or_inf = torch.nan_to_num(tensor.abs().float(), nan=0.0, posinf=float("inf"))
        amax = finite_or_inf.amax().reshape(1)
        if isinstance(quantizer, self._tensors.Float8Quantizer):
            quantizer.amax.copy_(torch.fmax(quantizer.amax, amax))
            scale = quantizer.scale.reshape(()).clone()
        else:
            usable = (amax > 0) & torch.isfinite(amax)
            scale = torch.where(usable, limit / amax, torch.ones(())).reshape(())
            if isinstance(getattr(quantizer, "amax", None), Tensor):  # 2.2 to 2.15
                quantizer.amax.copy_(amax)
                quantizer.scale.copy_(scale.reshape(1))
        self.casts.append((type(quantizer).__name__, float(amax), float(scale)))
        data = (tensor.float() * scale).clamp(-limit, limit).to(fp8).view(torch.uint8)
        if out is not None:
            out._data.copy_(data)
            out._scale_inv.copy_(1 / scale)
            return out
        parts = {
            "data": data,
            "fp8_scale_inv": (1 / scale).reshape(1),
            "fp8_dtype": quantizer.dtype,
            "quantizer": quantizer,
        }
        if quantizer.internal:
            return self._storage(fake_dtype=tensor.dtype, **parts)
        return self._tensors.Float8Tensor(
            shape=tensor.shape, dtype=tensor.dtype, device=tensor.device, **parts
        )

    def _plain(self, x: Any) -> Tensor:
        if isinstance(x, self._storage):
            values: Tensor = x._data.view(_FP8[int(x._fp8_dtype)]).float() * x._scale_inv
            return values
        return torch.as_tensor(x).float()

    def _gemm(
        self, a: Any, transa: bool, b: Any, transb: bool, out: Any, quantizer: Any, dtype: Any, bias: Any,
        bias_dtype: Any, gelu: bool, gelu_in: Any, grad: bool, workspace: Any, size: int, accumulate: bool,
        *rest: Any, **kwargs: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """cuBLAS's column-major product: the result is op(b) op(a), row-major."""
        left, right = self._plain(b), self._plain(a)
        flat_left, flat_right = left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1])
        product = (flat_left.t() if transb else flat_left) @ (flat_right.t() if transa else flat_right)
        if bias is not None and not grad:
            product = product + bias.float()
        if not transb and left.dim() > 2:
            product = product.reshape(*left.shape[:-1], product.shape[-1])
        pre_activation = None
        if gelu and not grad:
            pre_activation = product.to(torch.bfloat16)
            product = functional.gelu(product, approximate="tanh")
        result: Any = product.to(_WIDE[int(dtype)] if dtype is not None else torch.float32)
        if quantizer is not None:
            result = self._quantize(result, quantizer)
        if out is not None:
            out.copy_(out + result if accumulate else result)
            result = out
        bias_grad = flat_left.sum(0).to(product.dtype) if grad and bias is not None else None
        return result, bias_grad, pre_activation, None

    def _bgrad_quantize(self, tensor: Tensor, quantizer: Any) -> tuple[Tensor, Any]:
        return tensor.reshape(-1, tensor.shape[-1]).sum(0), self._quantize(tensor, quantizer)

    def _layernorm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Any,
        eps: float,
        out: Any,
        quantizer: Any,
        dtype: Any,
        *rest: Any,
    ) -> tuple[Any, Tensor, Tensor]:
        wide = x.float()
        mean = wide.mean(-1)
        scale = torch.rsqrt(wide.var(-1, unbiased=False) + eps)
        normal = (wide - mean[:, None]) * scale[:, None] * weight.float()
        normal = (normal if bias is None else normal + bias.float()).to(x.dtype)
        result = normal if quantizer is None else self._quantize(normal, quantizer)
        return result, mean, scale

    def _layernorm_backward(
        self, grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            leaf, gain = x.detach().float().requires_grad_(), weight.detach().float().requires_grad_()
            shift = torch.zeros_like(gain, requires_grad=True)
            out = functional.layer_norm(leaf, (leaf.shape[-1],), gain, shift)
        found = torch.autograd.grad(out, (leaf, gain, shift), grad.float())
        return found[0].to(x.dtype), found[1].to(weight.dtype), found[2].to(weight.dtype)

    def _gelu(self, x: Tensor, quantizer: Any) -> Any:
        out = functional.gelu(x.float(), approximate="tanh").to(x.dtype)
        return out if quantizer is None else self._quantize(out, quantizer)

    def _dgelu(self, grad: Tensor, x: Tensor, quantizer: Any) -> Any:
        with torch.enable_grad():
            leaf = x.detach().float().requires_grad_()
            out = functional.gelu(leaf, approximate="tanh")
        (found,) = torch.autograd.grad(out, leaf, grad.float())
        result = found.to(x.dtype)
        return result if quantizer is None else self._quantize(result, quantizer)

    def _dbias_dgelu(self, grad: Tensor, x: Tensor, quantizer: Any) -> tuple[Tensor, Any]:
        dense = self._dgelu(grad, x, None)
        return dense.reshape(-1, dense.shape[-1]).sum(0), self._quantize(dense, quantizer)

    def _split_quantize(self, x: Tensor, sizes: list[int], quantizers: list[Any], **kwargs: Any) -> list[Any]:
        parts = torch.split(x.reshape(-1, x.shape[-1]), list(sizes))
        return [self._quantize(part, quantizer) for part, quantizer in zip(parts, quantizers, strict=True)]

    def _grouped_gemm(
        self, a: list[Any], transa: bool, b: list[Any], transb: bool, out: list[Tensor], dtype: Any,
        splits: Any, bias: Any, bias_dtype: Any, single_output: bool, gelu_in: Any, grad: bool,
        workspaces: Any, size: int, accumulate: bool, *rest: Any,
    ) -> Any:  # fmt: skip
        products = [
            self._gemm(
                x, transa, y, transb, None, None, dtype, None, None, False, None, grad, None, 0, False
            )[0]
            for x, y in zip(a, b, strict=True)
        ]
        results = [torch.cat(products)] if single_output else products
        for target, result in zip(out, results, strict=True):
            target.copy_(target + result if accumulate else result)
        return bias


class _pretends_cuda:
    """Tensors say they are on a GPU, which the package asserts before a forward pass."""

    def __enter__(self) -> None:
        torch.Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment]

    def __exit__(self, *error: object) -> None:
        del torch.Tensor.is_cuda
