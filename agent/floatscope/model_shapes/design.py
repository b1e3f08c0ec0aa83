"""What a configuration says of an architecture, whoever's words it used, and the tables of those words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    query_rank: 0 where queries are not compressed.  nope, rope: features of a head without and with
    positions.  value: features of a head's values.
    """

    query_rank: int
    key_value_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts.

    layers: how many layers have it.  ffn: width of one expert.  shared_ffn: width of all shared experts
    together, 0 without.  shared_router: a linear to one feature weighs the shared expert. router_correction:
    one more value per expert and layer (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """

    experts: int
    per_token: int
    ffn: int
    layers: int
    shared_ffn: int = 0
    shared_router: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    router_correction: bool = False


@dataclass(frozen=True)
class Design:
    """An architecture in numbers.

    norm_values: vectors of a norm: 1 RMSNorm, 2 LayerNorm with bias, 0 without parameters.  norm_count: norms
    of a layer.  extra_norms: outside the layers.  positions: rows of learned position (and token type)
    embeddings.  sinks: one learned value per head and layer.
    """

    name: str
    source: str
    style: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool
    tied: bool
    context: int
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm_values: int = 1
    norm_count: int = 2
    extra_norms: int = 1
    qk_norm: Literal["", "head", "full"] = ""
    positions: int = 0
    sinks: bool = False
    latent: Latent | None = None
    mixture: Mixture | None = None
    notes: tuple[str, ...] = ()


@cache
def families() -> Mapping[str, Any]:
    """The table of architectures: words of fields, names of layers, what each family has."""
    text = resources.files("floatscope.model_shapes").joinpath("tables/families.json").read_text("utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table


def entry(section: str, key: str) -> dict[str, Any]:
    """One entry of "styles" or "families" with what it is ``like`` underneath."""
    own = dict(families()[section].get(key, {}))
    like = own.pop("like", "")
    return {**entry(section, like), **own} if like else own
