"""Which layers are measured by hooks: those that multiply by a weight matrix and do not cast."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from floatscope.probes.naming import is_lazy


class Kind(enum.Enum):
    """What is measured of a layer.

    WEIGHTED: input, weight, gradient of the output (linear, convolution, and anything else with a ``weight``
    of two or more dimensions).  EMBEDDING: the output.  ATTENTION: torch's own, see ``layer_hooks``.
    """

    WEIGHTED = "weighted"
    EMBEDDING = "embedding"
    ATTENTION = "attention"


EMBEDDINGS = frozenset({"VocabParallelEmbedding"})
"""Embeddings that are not torch's (Megatron)."""


def plain_layers(layers: Mapping[nn.Module, str]) -> Iterator[tuple[nn.Module, str, Kind]]:
    """The layers to hook, with their names.

    Norms are left out: their weights are vectors, and what they put out is the next layer's input. Modules
    that cast tell by themselves what they cast (see the probes of FP8 packages).
    """
    for module, layer in layers.items():
        if casts_itself(module):
            continue
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) or type(module).__name__ in EMBEDDINGS:
            yield module, layer, Kind.EMBEDDING
        elif isinstance(module, nn.MultiheadAttention):
            yield module, layer, Kind.ATTENTION
        elif _is_weighted(module):
            yield module, layer, Kind.WEIGHTED


def casts_itself(module: nn.Module) -> bool:
    """Whether another probe measures it: an emulation with inspectors, Transformer Engine, torchao."""
    return (
        hasattr(module, "fp8_global_state")
        or bool(getattr(module, "fp8_meta", None))
        or hasattr(module, "_fp8_metas")  # an operation of te.ops, whose forward is not called
        or hasattr(module, "linear_mm_config")
    )


def _is_weighted(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.Bilinear):
        return True
    if isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("Norm"):
        return False  # that of an image has a weight per place
    weight = _parameter(module, "weight")
    return weight is not None and not is_lazy(weight) and weight.dim() >= 2


def tensor_of(output: Any) -> Any:
    """A layer's output, which Megatron's layers give together with their bias and torch's attention with its
    weights.
    """
    return output[0] if isinstance(output, tuple) and output else output


def stored(module: Any, name: str) -> Any:
    """A weight as the module holds it, or None.

    Never computed: reading a parametrised weight as an attribute runs its computation, and that of spectral
    normalisation changes the module.
    """
    found = _parameter(module, name)
    return found if found is not None else module.__dict__.get(name)


def _parameter(module: Any, name: str) -> Any:
    held = module._parameters
    found = held[name] if name in held else None  # noqa: SIM401  (of a scripted module it is no dict)
    return found
