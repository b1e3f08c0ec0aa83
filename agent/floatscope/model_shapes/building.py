"""From a design to its linear layers and counts of parameters."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope.model_shapes.design import Design, Mixture, entry
from floatscope.model_shapes.shape import Linear, LinearKind, ModelShape


def build(design: Design) -> ModelShape:
    """The shape of a model of this design."""
    mixture = design.mixture
    linears = (*_attention(design), *_dense(design), *_experts(design), *_head(design))
    return ModelShape(
        name=design.name,
        source=design.source,
        hidden=design.hidden,
        layers=design.layers,
        heads=design.heads,
        kv_heads=design.kv_heads,
        head_dim=design.head_dim,
        ffn=design.ffn,
        vocab=design.vocab,
        gated=design.gated,
        tied=design.tied,
        context=design.context,
        linears=linears,
        embedding_parameters=(design.vocab + design.positions) * design.hidden,
        other_parameters=_other(design),
        experts=mixture.experts if mixture else 0,
        experts_per_token=mixture.per_token if mixture else 0,
        expert_ffn=mixture.ffn if mixture else 0,
        notes=design.notes,
    )


class _Names:
    """Names of a style's layers; an empty name says that the style has no such layer."""

    def __init__(self, style: str) -> None:
        self.table: dict[str, str] = entry("styles", style)

    def has(self, part: str) -> bool:
        return part in self.table

    def of(self, part: str, default: str = "") -> str:
        return f"{self.table['layer']}{self.table.get(part, default)}"


def _attention(design: Design) -> Iterator[Linear]:
    names, count, hidden = _Names(design.style), design.layers, design.hidden
    queries, keys = design.heads * design.head_dim, design.kv_heads * design.head_dim
    if design.latent is not None:
        yield from _latent(design, names)
        return
    if names.has("qkv"):
        n = queries + 2 * keys
        yield Linear(
            names.of("qkv"), "attention", count, hidden, n, bias=design.qkv_bias, kv_features=2 * keys
        )
    else:
        yield Linear(names.of("q"), "attention", count, hidden, queries, bias=design.qkv_bias)
        for part in ("k", "v"):
            yield Linear(
                names.of(part), "attention", count, hidden, keys, bias=design.qkv_bias, kv_features=keys
            )
    yield Linear(names.of("o"), "attention", count, queries, hidden, bias=design.out_bias, split="k")


def _latent(design: Design, names: _Names) -> Iterator[Linear]:
    latent, count, hidden = design.latent, design.layers, design.hidden
    assert latent is not None
    queries = design.heads * (latent.nope + latent.rope)
    if latent.query_rank:
        rank = latent.query_rank
        name = names.of("q_down", "self_attn.q_a_proj")
        yield Linear(name, "attention", count, hidden, rank, bias=design.qkv_bias, split="")
        yield Linear(names.of("q_up", "self_attn.q_b_proj"), "attention", count, rank, queries)
    else:
        yield Linear(names.of("q"), "attention", count, hidden, queries)
    down = names.of("kv_down", "self_attn.kv_a_proj_with_mqa")
    wide = latent.key_value_rank + latent.rope
    yield Linear(down, "attention", count, hidden, wide, bias=design.qkv_bias, split="")
    out = design.heads * (latent.nope + latent.value)
    up = names.of("kv_up", "self_attn.kv_b_proj")
    yield Linear(up, "attention", count, latent.key_value_rank, out)
    values = design.heads * latent.value
    yield Linear(names.of("o"), "attention", count, values, hidden, bias=design.out_bias, split="k")


def _dense(design: Design) -> Iterator[Linear]:
    count = design.layers - (design.mixture.layers if design.mixture else 0)
    if count:
        yield from _mlp(design, "", "mlp", count, design.ffn, design.mlp_bias)


def _experts(design: Design) -> Iterator[Linear]:
    mixture = design.mixture
    if mixture is None or not mixture.layers:
        return
    names = _Names(design.style)
    router = names.of("router", "router")
    yield Linear(
        router, "router", mixture.layers, design.hidden, mixture.experts, bias=mixture.router_bias, split=""
    )
    share = mixture.per_token / mixture.experts
    count = mixture.layers * mixture.experts
    yield from _mlp(design, "expert_", "expert", count, mixture.ffn, mixture.expert_bias, share)
    if mixture.shared_ffn:
        yield from _mlp(design, "shared_", "mlp", mixture.layers, mixture.shared_ffn, design.mlp_bias)
    if mixture.shared_router:
        yield Linear(names.of("shared_router"), "router", mixture.layers, design.hidden, 1, split="")


def _mlp(
    design: Design, part: str, kind: LinearKind, count: int, ffn: int, bias: bool, share: float = 1.0
) -> Iterator[Linear]:
    names, hidden = _Names(design.style), design.hidden
    if design.gated and names.has(f"{part}gate_up"):
        ups = [(f"{part}gate_up", 2 * ffn)]
    elif design.gated:
        ups = [(f"{part}gate", ffn), (f"{part}up", ffn)]
    else:
        ups = [(f"{part}up", ffn)]
    for up, width in ups:
        yield Linear(names.of(up, f"mlp.{up}"), kind, count, hidden, width, bias=bias, tokens_share=share)
    down = names.of(f"{part}down", f"mlp.{part}down")
    yield Linear(down, kind, count, ffn, hidden, bias=bias, tokens_share=share, split="k")


def _head(design: Design) -> Iterator[Linear]:
    table = entry("styles", design.style)
    if "transform" in table:
        yield Linear(table["transform"], "mlp", 1, design.hidden, design.hidden, bias=True, split="")
    yield Linear(table["head"], "head", 1, design.hidden, design.vocab, bias=design.head_bias)


def _other(design: Design) -> int:
    """Norms, sinks and corrections of routers, and the bias of a tied head, whose weight is the embedding."""
    norms = design.layers * design.norm_count + design.extra_norms
    total = norms * design.norm_values * design.hidden
    latent = design.latent
    if latent is not None:
        total += design.layers * (latent.query_rank + latent.key_value_rank) * design.norm_values
    elif design.qk_norm == "head":
        total += design.layers * 2 * design.head_dim
    elif design.qk_norm == "full":
        total += design.layers * (design.heads + design.kv_heads) * design.head_dim
    if design.sinks:
        total += design.layers * design.heads
    total += _of_routers(design.mixture)
    return total + (design.vocab if design.tied and design.head_bias else 0)


def _of_routers(mixture: Mixture | None) -> int:
    return mixture.layers * mixture.experts if mixture and mixture.router_correction else 0
