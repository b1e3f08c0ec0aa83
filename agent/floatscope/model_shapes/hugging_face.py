"""The configuration of a Hugging Face model, ``config.json``, and others with the same usual fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope.model_shapes.design import Design, Latent, Mixture, entry, families
from floatscope.model_shapes.fields import MOST, Fields
from floatscope.model_shapes.unlike import refuse_unlike

TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
MAX_MLP_ONLY = 10_000


def design_of(values: Mapping[str, Any], *, source: str, name: str) -> Design:
    """The design a configuration describes.

    Of a model of several kinds of input only the language model is read, and noted.

    Raises:
        ModelConfigError: a field that is needed is missing, or one is absurd.
    """
    fields, notes = Fields(source, values), []
    if not fields.has(*families()["fields"]["hidden"]):
        for section in TEXT_SECTIONS:
            inner = fields.section(section)
            if inner is not None:
                notes.append(f"only the language model ({section}) was read, no encoder of images or sound")
                fields = inner
                break
    kind = fields.text("model_type") or Fields(source, values).text("model_type")
    key = _family(kind, fields)
    known = key in families()["families"]
    if not kind and not known:
        notes.append("the file names no model_type: read by its usual fields, as of Llama's design")
    elif not known:
        notes.append(f"model_type {kind!r} is not known here: read by its usual fields, as of Llama's design")
    if fields.has("num_nextn_predict_layers"):
        notes.append("layers that predict further tokens (num_nextn_predict_layers) are not counted")
    design = _design(fields, entry("families", key), source=source, name=name, notes=tuple(notes))
    refuse_unlike(fields, known=known)
    return design


def _family(kind: str, fields: Fields) -> str:
    if not kind and {"width", "layers", "hidden"} <= fields.values.keys():
        return "floatscope_train"  # the bundled trainer's own configuration
    return kind.replace("-", "_")


def _design(
    fields: Fields, family: Mapping[str, Any], *, source: str, name: str, notes: tuple[str, ...]
) -> Design:
    words = families()["fields"]
    hidden = fields.count(words["hidden"])
    layers = fields.count(words["layers"], most=MOST["layers"])
    heads = fields.count(words["heads"], most=MOST["heads"])
    mixture = _mixture(fields, family, layers)
    head_dim = _head_dim(fields, hidden, heads)
    kv_heads = _kv_heads(fields, heads)
    context = fields.count(words["context"], default=0, most=MOST["context"])
    default_ffn = family.get("default_ffn", 0) * hidden or None
    dense = mixture is None or mixture.layers < layers
    names = [family["dense_ffn"], *words["ffn"]] if "dense_ffn" in family else words["ffn"]
    ffn = fields.count(names, default=default_ffn if dense else 0)
    positions = 0
    if family.get("learned_positions"):
        positions = context + family.get("extra_positions", 0)
        positions += fields.count(["type_vocab_size"], default=0, most=1024, least=0)
    norm_count = family.get("norm_count", 2)
    if fields.flag(["new_decoder_architecture"], default=False):
        norm_count = 2  # Falcon 40B and later
    return Design(
        name=name,
        source=source,
        style=family.get("style", "llama"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=fields.count(words["vocab"], most=MOST["vocab"]),
        gated=family.get("gated", True),
        tied=fields.flag(["tie_word_embeddings"], default=family.get("tied", False)),
        context=context,
        qkv_bias=_flag(fields, family, "qkv_bias"),
        out_bias=_flag(fields, family, "out_bias"),
        mlp_bias=_flag(fields, family, "mlp_bias"),
        head_bias=_flag(fields, family, "head_bias"),
        norm_values=family.get("norm_values", 1),
        norm_count=norm_count,
        extra_norms=family.get("extra_norms", 1),
        qk_norm=family.get("qk_norm", ""),
        positions=positions,
        sinks=bool(family.get("sinks")),
        latent=_latent(fields),
        mixture=mixture,
        notes=notes,
    )


def _flag(fields: Fields, family: Mapping[str, Any], name: str) -> bool:
    """A property of the family: true, false, or the name of the field that says it."""
    value = family.get(name, False)
    return fields.flag([value], default=False) if isinstance(value, str) else bool(value)


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    words = families()["fields"]["head_dim"]
    if fields.has(*words):
        return fields.count(words, most=65_536)
    if hidden % heads and not fields.has("kv_lora_rank"):
        name = fields.name_of(families()["fields"]["heads"])
        raise fields.error(name, f"a divisor of the hidden size {hidden:,}, or a head_dim", f"{heads:,}")
    return max(hidden // heads, 1)


def _kv_heads(fields: Fields, heads: int) -> int:
    words = families()["fields"]["kv_heads"]
    several = fields.flag(["new_decoder_architecture"], default=False)
    if fields.flag(["multi_query"], default=False) and not several:
        return 1
    kv_heads = fields.count(words, default=heads, most=MOST["heads"])
    if heads % kv_heads:
        raise fields.error(fields.name_of(words), f"a divisor of the {heads:,} heads", f"{kv_heads:,}")
    return kv_heads


def _latent(fields: Fields) -> Latent | None:
    if not fields.has("kv_lora_rank"):
        return None
    return Latent(
        query_rank=fields.count(["q_lora_rank"], default=0),
        key_value_rank=fields.count(["kv_lora_rank"]),
        nope=fields.count(["qk_nope_head_dim"], most=65_536),
        rope=fields.count(["qk_rope_head_dim"], most=65_536, least=0),
        value=fields.count(["v_head_dim"], most=65_536),
    )


def _mixture(fields: Fields, family: Mapping[str, Any], layers: int) -> Mixture | None:
    words = families()["fields"]
    experts = fields.count(words["experts"], default=0, most=MOST["experts"], least=0)
    if not experts:
        return None
    per_token = fields.count(words["experts_per_token"], most=MOST["experts"])
    if per_token > experts:
        name = fields.name_of(words["experts_per_token"])
        raise fields.error(name, f"at most the {experts:,} experts", f"{per_token:,}")
    ffn = fields.count([*words["expert_ffn"], *words["ffn"]])
    few = family.get("shared_experts", 0)
    shared = fields.count(words["shared_experts"], default=few, most=MOST["experts"], least=0) * ffn
    shared = fields.count(["shared_expert_intermediate_size"], default=shared, least=0)
    return Mixture(
        experts=experts,
        per_token=per_token,
        ffn=ffn,
        layers=_mixture_layers(fields, layers),
        shared_ffn=shared,
        shared_router=bool(family.get("shared_router")) and shared > 0,
        expert_bias=bool(family.get("expert_bias")),
        router_bias=bool(family.get("router_bias")),
        router_correction=bool(family.get("router_correction")),
    )


def _mixture_layers(fields: Fields, layers: int) -> int:
    """Layers with experts: from the first one on, every so many, without those said to be dense."""
    words = families()["fields"]
    first = fields.count(words["first_mixture"], default=0, most=MOST["layers"], least=0)
    last = fields.count(["moe_layer_end_index"], default=layers, most=MOST["layers"], least=0)
    every = fields.count(["moe_layer_freq"], default=1, most=MOST["layers"])
    step = fields.count(words["mixture_step"], default=1, most=MOST["layers"])
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or len(dense) > MAX_MLP_ONLY or not all(type(i) is int for i in dense):
        raise fields.error("mlp_only_layers", "a list of numbers of layers", "something else")
    without = set(dense)
    return sum(
        first <= layer <= last and layer % every == 0 and (layer + 1) % step == 0 and layer not in without
        for layer in range(layers)
    )
