"""The model on the emulated backend: plain torch on any machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from floatscope_trainer.config import OptimConfig, Precision, TrainConfig
from floatscope_trainer.emulated.blocks import BlockShape
from floatscope_trainer.emulated.casts import CastMode
from floatscope_trainer.emulated.linear import QUANTIZED_ROLES, EmulatedLinear
from floatscope_trainer.emulated.quantizers import (
    BlockQuantizer,
    CurrentQuantizer,
    DelayedQuantizer,
    Quantizer,
    RoundTrip,
)
from floatscope_trainer.emulated.recipes import Recipe
from floatscope_trainer.emulated.scaling import DelayedScalingState
from floatscope_trainer.emulated.state import BACKWARD_SLOTS, FORWARD_SLOTS, make_global_state
from floatscope_trainer.model import GPT, initialise
from floatscope_trainer.precision import linear_names, parse_precision_map

ROUNDED_TO: Mapping[str, torch.dtype | None] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
SQUARE_128, ROW_128 = BlockShape(128, 128, "down"), BlockShape(1, 128, "down")
ROW_32 = BlockShape(1, 32, "e8m0")


class EmulatedBackend:
    """Builds the model and knows its FP8 state.

    layers: the linear layers by qualified name, in call order.  global_state: what they share.
    """

    name = "emulated"

    def __init__(self, config: TrainConfig) -> None:
        self.device = torch.device("cpu")
        self.global_state = make_global_state()
        self.layers: dict[str, EmulatedLinear] = {}
        names = linear_names(config.model.layers)
        wanted = parse_precision_map(config.precision.precision_map, layers=names)

        def make_linear(name: str, in_features: int, out_features: int) -> nn.Module:
            layer = EmulatedLinear(in_features, out_features, state=self.global_state)
            self.layers[name] = layer
            return layer

        self.model = GPT(
            config.model,
            make_linear=make_linear,
            embedding_dtype=ROUNDED_TO[wanted.embedding],
            head_dtype=ROUNDED_TO[wanted.head],
        )
        initialise(self.model, config.model, seed=config.seed)
        depth = config.model.layers
        precisions = {n: wanted.of(n, default=config.precision.precision, depth=depth) for n in names}
        recipe = config.precision.fp8_recipe()
        in_fp8 = [self.layers[n] for n in names if precisions[n] == "fp8"]
        self.global_state.add_modules(in_fp8, recipe)
        for name, layer in self.layers.items():
            _equip(layer, precision=precisions[name], recipe=recipe, mode=config.precision.cast)

    def quantizers(self) -> dict[str, Quantizer]:
        """Every quantizer by tensor name (`layer/role`), in call order."""
        return {
            f"{name}/{role}": q for name, layer in self.layers.items() for role, q in layer.quantizers.items()
        }

    def autocast(self) -> AbstractContextManager[None]:
        """Around one forward pass; the backward comes after it."""
        return self.global_state.autocast()

    def evaluating(self) -> AbstractContextManager[None]:
        """Around an evaluation: same arithmetic, no trace in the scale state."""
        return self.global_state.paused()

    @contextmanager
    def in_precision(self, precision: Precision, *, layers: Sequence[str] | None = None) -> Iterator[None]:
        """Inside, the layers named (all if None) compute in this precision instead of their own.

        precision: fp32, bf16 or fp16. Their scale state is left as it is, faults at their quantizers too.
        """
        chosen = [self.layers[name] for name in (self.layers if layers is None else layers)]
        kept = [(layer, layer.quantizers, layer.result_dtype) for layer in chosen]
        try:
            for layer in chosen:
                layer.quantizers = _round_trips(precision)
                layer.result_dtype = ROUNDED_TO[precision]
            yield
        finally:
            for layer, quantizers, result_dtype in kept:
                layer.quantizers, layer.result_dtype = quantizers, result_dtype

    def make_optimizer(self, config: OptimConfig, *, scaled_gradients: bool) -> torch.optim.Optimizer:
        """AdamW on float32 weights, no decay for norms.  scaled_gradients: a GradScaler steps it (fp16)."""
        return torch.optim.AdamW(
            decay_groups(self.model, config.weight_decay),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=not scaled_gradients,
        )

    def scale_state(self) -> dict[str, Tensor]:
        """The live tensors of the FP8 state by `layer/scaling_fwd.scale` and so on; empty for recipes without
        state.
        """
        return scale_state(self.layers)


def scale_state(layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Scales and histories of modules that carry Transformer Engine's `fp8_meta`, by name; read and restored
    in place.
    """
    found: dict[str, Tensor] = {}
    for name, layer in layers.items():
        meta = getattr(layer, "fp8_meta", {})
        for direction in ("scaling_fwd", "scaling_bwd"):
            for attribute in ("scale", "amax_history"):
                tensor = getattr(meta.get(direction), attribute, None)
                if tensor is not None:
                    found[f"{name}/{direction}.{attribute}"] = tensor
    return found


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Parameter groups: matrices decay, norms do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def _equip(layer: EmulatedLinear, *, precision: Precision, recipe: Recipe, mode: CastMode) -> None:
    if precision == "fp8":
        layer.quantizers = {role: _fp8_quantizer(layer, role, recipe, mode) for role in QUANTIZED_ROLES}
    else:
        layer.quantizers = _round_trips(precision)
        layer.result_dtype = ROUNDED_TO[precision]


def _round_trips(precision: Precision) -> dict[str, Quantizer]:
    return {role: RoundTrip(role=role, fmt=precision) for role in QUANTIZED_ROLES}


def _fp8_quantizer(layer: EmulatedLinear, role: str, recipe: Recipe, mode: CastMode) -> Quantizer:
    fmt = recipe.fp8_format.of(role).name
    if recipe.delayed():
        backward = role in BACKWARD_SLOTS
        state = layer.fp8_meta["scaling_bwd" if backward else "scaling_fwd"]
        assert isinstance(state, DelayedScalingState)
        slot = (BACKWARD_SLOTS if backward else FORWARD_SLOTS).index(role)
        return DelayedQuantizer(role=role, fmt=fmt, mode=mode, state=state, slot=slot)
    if recipe.float8_current_scaling():
        return CurrentQuantizer(role=role, fmt=fmt, mode=mode)
    if recipe.mxfp8():
        return BlockQuantizer(role=role, fmt=f"mxfp8_{fmt}", mode=mode, shape=ROW_32)
    return BlockQuantizer(role=role, fmt=fmt, mode=mode, shape=SQUARE_128 if role == "weight" else ROW_128)
