"""Where a growing tensor sits, and whether its growth is the warm-up's.

Query and key weights make attention logits, other layers make activations.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.rule import Symptoms

_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_QUERY_KEY = re.compile(r"(qkv|q_proj|k_proj|query|key|\bwq\b|\bwk\b|linear_q|linear_k)", re.IGNORECASE)


def attention_weights(s: Symptom) -> bool:
    """Whether the symptom is about weights of query or key projections only."""
    return bool(s.tensors) and all(
        t.endswith("/weight") and _QUERY_KEY.search(t.rpartition("/")[0]) is not None for t in s.tensors
    )


def of_warm_up(s: Symptom, symptoms: Symptoms) -> bool:
    """Whether the symptom began while everything grows: then, or as the rest of a stretch that did and that a
    row without the tensor has cut in two.
    """
    return bool(s.extra.get("warming")) or any(
        before.extra.get("warming")
        and (before.rank, before.segment) == (s.rank, s.segment)
        and before.onset <= s.onset <= before.last
        and set(before.tensors) >= set(s.tensors)
        for before in symptoms.of(s.signal)
    )


def attention_output(tensor: str) -> bool:
    """Whether a tensor is what attention made: the input of its output projection."""
    layer, _, role = tensor.rpartition("/")
    return role == "input" and _ATTENTION.search(layer) is not None and _QUERY_KEY.search(layer) is None
