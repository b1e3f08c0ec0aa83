"""Megatron's arguments, and the same in the words of Megatron-Core's configuration (Megatron-Bridge, NeMo).

Defaults are those of Megatron-LM d98e8a6, ``megatron/training/arguments.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from floatscope.model_shapes.design import Design, Latent, Mixture
from floatscope.model_shapes.fields import MOST, Fields, shown

SECTIONS = ("model", "language_model", "ModelArgs", "MODEL_ARGS")
JOB = "the file also says"
"""How the note begins that tells what arguments say of the job."""
GPT2_VOCABULARY = 50_257  # of GPT2BPETokenizer, before padding
_PATTERN = re.compile(r"\(?\[([01](?:\s*,\s*[01])*)\]\)?(?:\*(\d{1,5}))?")


def is_megatron(values: Mapping[str, Any]) -> bool:
    """Whether these are Megatron's words: its own names for layers and heads, and no model_type."""
    own = ("num_attention_heads", "hidden_size", "num_layers")
    return "model_type" not in values and all(values.get(name) is not None for name in own)


def design_of(values: Mapping[str, Any], *, source: str, name: str, prefix: str = "") -> Design:
    """The design that arguments describe; names with underscores, values as YAML and JSON give them.

    Raises:
        ModelConfigError: one that is needed is missing, or one is absurd.
    """
    fields = Fields(source, values, prefix)
    _refuse_hybrid(fields)
    hidden = fields.count(["hidden_size"])
    layers = fields.count(["num_layers"], most=MOST["layers"])
    heads = fields.count(["num_attention_heads"], most=MOST["heads"])
    gated = fields.flag(["swiglu", "gated_linear_unit"], default=False)
    ffn = fields.count(["ffn_hidden_size"], default=hidden * 8 // 3 // 64 * 64 if gated else hidden * 4)
    head_dim = _head_dim(fields, hidden, heads)
    vocab, notes = _vocabulary(fields)
    if fields.count(["mtp_num_layers"], default=0, most=MOST["layers"], least=0):
        notes += ("layers that predict further tokens (mtp_num_layers) are not counted",)
    context = fields.count(["max_position_embeddings", "seq_length"], default=0, most=MOST["context"])
    kind = fields.text("position_embedding_type", "learned_absolute")
    rotary = fields.flag(["use_rotary_position_embeddings"], default=False)
    bias = _bias(fields)
    untied = fields.flag(["untie_embeddings_and_output_weights"], default=False)
    norm = fields.text("normalization", "LayerNorm")
    return Design(
        name=name,
        source=source,
        style="megatron",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(fields, heads),
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        gated=gated,
        tied=fields.flag(["share_embeddings_and_output_weights"], default=not untied),
        context=context,
        qkv_bias=bias or fields.flag(["add_qkv_bias"], default=False),
        out_bias=bias,
        mlp_bias=bias,
        norm_values=1 if norm == "RMSNorm" else 2,
        qk_norm="head" if fields.flag(["qk_layernorm"], default=False) else "",
        positions=context if kind == "learned_absolute" and not rotary else 0,
        latent=_latent(fields),
        mixture=_mixture(fields, layers, ffn),
        notes=(*notes, *_job(fields)),
    )


def _job(fields: Fields) -> tuple[str, ...]:
    """What the arguments say of the job: it is not part of the model, so whoever reads it must ask for it."""
    names = ("tensor_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
    sizes = {name: fields.count([name], default=1, most=2**20) for name in names}
    said = {name: size for name, size in sizes.items() if size > 1}
    if fields.has("micro_batch_size"):
        said["micro_batch_size"] = fields.count(["micro_batch_size"], most=2**20)
    if said and fields.has("seq_length"):
        said["seq_length"] = fields.count(["seq_length"], most=MOST["context"])
    return (f"{JOB} {', '.join(f'{name} {size:,}' for name, size in said.items())}",) if said else ()


def _refuse_hybrid(fields: Fields) -> None:
    """Layers of a state space or of linear attention would be counted as attention and MLP."""
    for name in ("hybrid_layer_pattern", "hybrid_override_pattern", "linear_attention_freq"):
        if fields.has(name):
            raise fields.error(name, "a model of attention and MLP only", shown(fields.values[name]))
    if fields.values.get("is_hybrid_model") is True:
        raise fields.error("is_hybrid_model", "a model of attention and MLP only", "true")
    if fields.values.get("model_provider") in ("hybrid", "mamba"):
        raise fields.error("model_provider", "gpt", shown(fields.values["model_provider"]))


def _bias(fields: Fields) -> bool:
    without = fields.flag(["disable_bias_linear"], default=False)
    return fields.flag(["add_bias_linear"], default=not without)


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if fields.has("kv_channels"):
        return fields.count(["kv_channels"], most=65_536)
    if hidden % heads:
        raise fields.error("num_attention_heads", f"a divisor of hidden_size {hidden:,}", f"{heads:,}")
    return hidden // heads


def _kv_heads(fields: Fields, heads: int) -> int:
    """``--num-query-groups`` counts only with ``--group-query-attention``; its default is 1."""
    if not fields.flag(["group_query_attention"], default=fields.has("num_query_groups")):
        return heads
    groups = fields.count(["num_query_groups"], default=1, most=MOST["heads"])
    if heads % groups:
        raise fields.error("num_query_groups", f"a divisor of the {heads:,} heads", f"{groups:,}")
    return groups


def _vocabulary(fields: Fields) -> tuple[int, tuple[str, ...]]:
    """The padded size of the vocabulary: a multiple of --make-vocab-size-divisible-by times TP."""
    if fields.has("padded_vocab_size"):
        return fields.count(["padded_vocab_size"], most=MOST["vocab"]), ()
    tokenizer = fields.text("tokenizer_type")
    default = GPT2_VOCABULARY if tokenizer == "GPT2BPETokenizer" else None
    vocab = fields.count(["vocab_size"], default=default, most=MOST["vocab"])
    if not fields.flag(["should_pad_vocab"], default=True):
        return vocab, ()
    multiple = fields.count(["make_vocab_size_divisible_by"], default=128, most=2**20)
    multiple *= fields.count(["tensor_model_parallel_size"], default=1, most=4096)
    padded = -(-vocab // multiple) * multiple
    if padded == vocab:
        return vocab, ()
    return padded, (f"vocabulary {vocab:,} padded to {padded:,}, a multiple of {multiple:,}",)


def _latent(fields: Fields) -> Latent | None:
    if not fields.flag(["multi_latent_attention"], default=False):
        return None
    return Latent(
        query_rank=fields.count(["q_lora_rank"], default=0),
        key_value_rank=fields.count(["kv_lora_rank"], default=32),
        nope=fields.count(["qk_head_dim"], default=128, most=65_536),
        rope=fields.count(["qk_pos_emb_head_dim"], default=64, most=65_536, least=0),
        value=fields.count(["v_head_dim"], default=128, most=65_536),
    )


def _mixture(fields: Fields, layers: int, ffn: int) -> Mixture | None:
    words = ["num_experts", "num_moe_experts"]
    experts = fields.count(words, default=0, most=MOST["experts"], least=0)
    if not experts:
        return None
    per_token = fields.count(["moe_router_topk"], default=2, most=MOST["experts"])
    if per_token > experts:
        raise fields.error("moe_router_topk", f"at most the {experts:,} experts", f"{per_token:,}")
    return Mixture(
        experts=experts,
        per_token=per_token,
        ffn=fields.count(["moe_ffn_hidden_size"], default=ffn),
        layers=_mixture_layers(fields, layers),
        shared_ffn=fields.count(["moe_shared_expert_intermediate_size"], default=0, least=0),
        shared_router=fields.flag(["moe_shared_expert_gate"], default=False),
        expert_bias=_bias(fields),
        router_correction=fields.flag(["moe_router_enable_expert_bias"], default=False),
    )


def _mixture_layers(fields: Fields, layers: int) -> int:
    """``--moe-layer-freq``: every so many layers, or one 0 or 1 per layer as ``([0]*3+[1]*58)``."""
    value = fields.values.get("moe_layer_freq", 1)
    if isinstance(value, int) and not isinstance(value, bool):
        every = fields.count(["moe_layer_freq"], default=1, most=MOST["layers"])
        return -(-layers // every)
    pattern = value if isinstance(value, list) else _pattern(value)
    if len(pattern) != layers or any(type(one) is not int or one not in (0, 1) for one in pattern):
        expected = f"a number, or one 0 or 1 for each of the {layers:,} layers as ([0]*3+[1]*58)"
        raise fields.error("moe_layer_freq", expected, "something else")
    return sum(pattern)


def _pattern(value: object) -> list[int]:
    """Reads the expression without evaluating it; an empty list for anything else."""
    if not isinstance(value, str) or len(value) > 1000:
        return []
    text = value.replace(" ", "").strip("()\"'")
    pattern: list[int] = []
    for part in text.split("+"):
        match = _PATTERN.fullmatch(part)
        if match is None or len(pattern) > MOST["layers"]:
            return []
        times = min(int(match[2] or 1), MOST["layers"])
        pattern += [int(one) for one in match[1].split(",")] * times
    return pattern
