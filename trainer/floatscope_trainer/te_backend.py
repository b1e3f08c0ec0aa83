"""The model on Transformer Engine: real FP8 GEMMs on a GPU, with the library's documented calls.

Checked against the real Python package of Transformer Engine 2.20 with its kernels emulated on the CPU
(tests/te_contract); not run on a GPU yet.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from floatscope import te_debug
from floatscope_trainer.config import OptimConfig, Precision, TrainConfig
from floatscope_trainer.emulated.backend import ROUNDED_TO, decay_groups, scale_state
from floatscope_trainer.emulated.quantizers import Quantizer
from floatscope_trainer.model import GPT, initialise
from floatscope_trainer.precision import linear_names, parse_precision_map

DEVICE = torch.device("cuda")
MIN_CAPABILITY = (8, 9)  # Ada; `check_fp8_support` in transformer_engine/pytorch/quantization.py
MULTIPLE = 16  # FP8 GEMMs want both matrix dimensions in multiples of 16 (assert_dim_for_fp8_exec)


class BackendUnavailable(RuntimeError):
    """The backend cannot run here; the message says what is needed."""


class TransformerEngineBackend:
    """Builds the model from `te.Linear` layers on the first GPU.

    layers: the linear layers by qualified name, in call order.
    """

    name = "transformer_engine"

    def __init__(self, config: TrainConfig) -> None:
        self._te = import_transformer_engine()
        require_capable_gpu()
        _check_shape(config)
        self.device = DEVICE
        self.layers: dict[str, nn.Module] = {}
        self._enabled = config.precision.precision == "fp8"
        self._recipe = self._make_recipe(config) if self._enabled else None
        if self._enabled and config.precision.recipe != "delayed":
            te_debug()  # those recipes keep no amax and no scale; this has to come before the first layer
        names = linear_names(config.model.layers)
        wanted = parse_precision_map(config.precision.precision_map, layers=names)
        depth = config.model.layers
        self._precisions = {n: wanted.of(n, default=config.precision.precision, depth=depth) for n in names}

        def make_linear(name: str, in_features: int, out_features: int) -> nn.Module:
            layer = self._te.Linear(
                in_features, out_features, bias=False, params_dtype=torch.bfloat16, device=DEVICE
            )
            if self._enabled and self._precisions[name] != "fp8":
                layer = HighPrecision(layer, autocast=self._te.autocast, recipe=self._recipe)
            self.layers[name] = layer
            linear: nn.Module = layer
            return linear

        self.model = GPT(
            config.model,
            make_linear=make_linear,
            embedding_dtype=torch.bfloat16,  # the residual stream is bf16 from here on
            head_dtype=ROUNDED_TO[wanted.head],
        ).to(device=DEVICE, dtype=torch.bfloat16)
        initialise(self.model, config.model, seed=config.seed)

    def _make_recipe(self, config: TrainConfig) -> Any:
        recipes = importlib.import_module("transformer_engine.common.recipe")
        precision = config.precision
        if precision.recipe == "delayed":
            return recipes.DelayedScaling(
                margin=precision.margin,
                fp8_format=recipes.Format.HYBRID,
                amax_history_len=precision.amax_history_len,
                amax_compute_algo=precision.amax_compute_algo,
            )
        classes = {
            "current": "Float8CurrentScaling",
            "block": "Float8BlockScaling",
            "mxfp8": "MXFP8BlockScaling",
        }
        return getattr(recipes, classes[precision.recipe])()

    def autocast(self) -> AbstractContextManager[None]:
        """Around one forward pass. The backward belongs outside: Transformer Engine's own rule."""
        context: AbstractContextManager[None] = self._te.autocast(enabled=self._enabled, recipe=self._recipe)
        return context

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Around an evaluation under `no_grad`.

        Its casts write their amax into the open row of the history, where the next training pass would find
        it; so the open rows are emptied afterwards, as they were.
        """
        try:
            yield
        finally:
            for name, tensor in self.scale_state().items():
                if name.endswith("amax_history"):
                    tensor[0].zero_()

    @contextmanager
    def in_precision(self, precision: Precision, *, layers: Sequence[str] | None = None) -> Iterator[None]:
        """Inside, the layers named (all if None) compute in bf16 instead of FP8.

        precision: bf16; the library's layers here know no other beside FP8, else BackendUnavailable.
        """
        if precision != "bf16":
            raise BackendUnavailable(f"layers on Transformer Engine run in fp8 or bf16, not in {precision}")
        if layers is None:
            was, self._enabled = self._enabled, False
            try:
                yield
            finally:
                self._enabled = was
            return
        chosen = [self.layers[name] for name in layers]
        for layer in chosen:
            layer.forward = partial(self._without_fp8, layer.forward)
        try:
            yield
        finally:
            for layer in chosen:
                del layer.forward

    def _without_fp8(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        with self._te.autocast(enabled=False, recipe=self._recipe):
            return forward(*args, **kwargs)

    def make_optimizer(self, config: OptimConfig, *, scaled_gradients: bool) -> torch.optim.Optimizer:
        """Transformer Engine's FusedAdam in AdamW mode with float32 master weights behind the bf16 ones."""
        optimizers = importlib.import_module("transformer_engine.pytorch.optimizers")
        optimizer: torch.optim.Optimizer = optimizers.FusedAdam(
            decay_groups(self.model, config.weight_decay),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            adam_w_mode=True,
            master_weights=True,
        )
        return optimizer

    def quantizers(self) -> dict[str, Quantizer]:
        """None: the casts happen inside Transformer Engine's kernels."""
        return {}

    def scale_state(self) -> dict[str, Tensor]:
        """The live tensors of the delayed-scaling state; empty before the first pass and for recipes without
        state.
        """
        return scale_state(self.layers)


class HighPrecision(nn.Module):
    """A layer that stays out of FP8 inside an FP8 pass."""

    def __init__(self, layer: nn.Module, *, autocast: Any, recipe: Any) -> None:
        super().__init__()
        self.weight = layer.weight
        self._layer = (layer,)  # in a tuple: the weight is registered once, under this module's name
        self._autocast = autocast
        self._recipe = recipe

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features)."""
        with self._autocast(enabled=False, recipe=self._recipe):
            out: Tensor = self._layer[0](x)
        return out


def import_transformer_engine() -> Any:
    """`transformer_engine.pytorch`. Raises BackendUnavailable with how to install it."""
    try:
        return importlib.import_module("transformer_engine.pytorch")
    except (
        ImportError,
        RuntimeError,
        OSError,
    ) as error:  # without a driver the import itself may raise RuntimeError
        raise BackendUnavailable(
            "--backend transformer_engine needs NVIDIA Transformer Engine, which cannot be imported here "
            f"({error}); pip install 'transformer_engine[pytorch]' on a machine with CUDA 12.1 or newer, "
            "or use --backend emulated"
        ) from error


def require_capable_gpu() -> None:
    """Raises BackendUnavailable unless the first GPU has FP8 units (compute capability 8.9 or more)."""
    if not torch.cuda.is_available():
        raise BackendUnavailable(
            "--backend transformer_engine needs an NVIDIA GPU of compute capability 8.9 or more "
            "(Ada, Hopper, Blackwell), and no GPU is visible here; use --backend emulated"
        )
    capability = torch.cuda.get_device_capability()
    if capability < MIN_CAPABILITY:
        raise BackendUnavailable(
            "--backend transformer_engine needs compute capability 8.9 or more, "
            f"this GPU has {capability[0]}.{capability[1]}; use --backend emulated"
        )


def _check_shape(config: TrainConfig) -> None:
    sizes = {
        "--width": config.model.width,
        "--hidden": config.model.hidden,
        "--batch times --context": config.batch * config.model.context,
    }
    for flag, size in sizes.items():
        if size % MULTIPLE:
            raise BackendUnavailable(f"{flag} is {size}: FP8 GEMMs on a GPU need multiples of {MULTIPLE}")
    if config.precision.precision in ("fp16", "fp32"):
        raise BackendUnavailable(
            "--backend transformer_engine trains in fp8 or bf16; use --backend emulated for fp16 and fp32"
        )
    if config.precision.cast != "saturating":
        raise BackendUnavailable(
            "--cast is a property of the hardware on --backend transformer_engine: casts saturate"
        )
