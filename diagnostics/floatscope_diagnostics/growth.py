"""Where a growing tensor sits: query and key weights make attention logits, other layers make activations."""

from __future__ import annotations

import re

from floatscope_diagnostics.episodes import Symptom

_QUERY_KEY = re.compile(r"(qkv|q_proj|k_proj|query|key|\bwq\b|\bwk\b|linear_q|linear_k)", re.IGNORECASE)


def attention_weights(s: Symptom) -> bool:
    """Whether the symptom is about weights of query or key projections only."""
    return bool(s.tensors) and all(
        t.endswith("/weight") and _QUERY_KEY.search(t.rpartition("/")[0]) is not None for t in s.tensors
    )
