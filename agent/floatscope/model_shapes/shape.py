"""The shape of a model: its linear layers with their sizes, and what else has parameters or activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LinearKind = Literal["attention", "mlp", "expert", "router", "head"]


@dataclass(frozen=True)
class Linear:
    """One kind of linear layer of the model, before any parallelism cuts it.

    name: with ``*`` for the number of the layer, as in ``layers.*.mlp.down_proj``.  count: how many layers of
    this kind the whole model has (for experts: layers times experts).  k: features in, n: features out.
    tokens_share: share of a micro-batch's tokens that pass through one of them (experts: chosen per token /
    experts). split: the dimension that tensor parallelism cuts, "n" (column parallel), "k" (row parallel) or
    "" (replicated).  kv_features: how many of the n features belong to key and value heads, which are never
    cut into pieces of a head.
    """

    name: str
    kind: LinearKind
    count: int
    k: int
    n: int
    bias: bool = False
    tokens_share: float = 1.0
    split: Literal["n", "k", ""] = "n"
    kv_features: int = 0

    @property
    def parameters(self) -> int:
        """Of all ``count`` layers together."""
        return self.count * (self.k * self.n + (self.n if self.bias else 0))


@dataclass(frozen=True)
class ModelShape:
    """A decoder (or encoder) transformer.

    source: the file it was read from. ffn: width of the dense MLP. gated: SwiGLU and its kin, three matrices.
    experts, experts_per_token, expert_ffn: 0 without a mixture of experts.  context: longest sequence the
    configuration allows, 0 if it does not say.  linears: as a token meets them, the head last.
    embedding_parameters: token (and learned position) embeddings; a ``tied`` head has none of its own.
    other_parameters: norms and what else is neither linear nor embedding.  notes: what a reader of the shape
    must know, as that the architecture is not known by name.
    """

    name: str
    source: str
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
    linears: tuple[Linear, ...]
    embedding_parameters: int
    other_parameters: int
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    notes: tuple[str, ...] = ()

    @property
    def linear_parameters(self) -> int:
        """Of all linear layers, the head included unless it is tied to the embedding."""
        return sum(one.parameters for one in self.linears if not (self.tied and one.kind == "head"))

    @property
    def parameters(self) -> int:
        """Of the whole model; tied weights count once."""
        return self.linear_parameters + self.embedding_parameters + self.other_parameters


@dataclass(frozen=True)
class Parallelism:
    """How a job cuts the model. All at least 1; ``data`` is what is left of the GPUs.

    sequence: whether sequence parallelism cuts the tokens of norms and residuals by ``tensor`` too.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    sequence: bool = False


class ModelConfigError(ValueError):
    """A model configuration that cannot be used; the message names file, field, what was expected and what to
    do.
    """
