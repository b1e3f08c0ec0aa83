"""A small GPT: pre-norm, RMSNorm, rotary positions, causal attention, SwiGLU. Every layer has one name and
one job.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from floatscope_trainer.config import ModelConfig

MakeLinear = Callable[[str, int, int], nn.Module]
"""(qualified name, in features, out features) -> a linear layer without bias; backends differ in this."""

ROTARY_BASE = 10_000.0  # Su et al. 2021, section 3.2.2
INIT_STD = 0.02  # GPT-2


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., width)."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: ModelConfig, *, name: str, make_linear: MakeLinear) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = make_linear(f"{name}.qkv", config.width, 3 * config.width)
        self.proj = make_linear(f"{name}.proj", config.width, config.width)

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        """x: (batch, time, width).  rotary: (2, time, head width) cosines and sines."""
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, head width)
        mixed = functional.scaled_dot_product_attention(
            rotate(q, rotary), rotate(k, rotary), v, is_causal=True
        )
        merged: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, time, width))
        return merged


class MLP(nn.Module):
    """SwiGLU: fc2(silu(gate) * up), with gate and up the two halves of fc1's output."""

    def __init__(self, config: ModelConfig, *, name: str, make_linear: MakeLinear) -> None:
        super().__init__()
        self.fc1 = make_linear(f"{name}.fc1", config.width, 2 * config.hidden)
        self.fc2 = make_linear(f"{name}.fc2", config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, width)."""
        gate, up = self.fc1(x).chunk(2, dim=-1)
        out: Tensor = self.fc2(functional.silu(gate) * up)
        return out


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, *, name: str, make_linear: MakeLinear) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.width)
        self.attn = Attention(config, name=f"{name}.attn", make_linear=make_linear)
        self.mlp_norm = RMSNorm(config.width)
        self.mlp = MLP(config, name=f"{name}.mlp", make_linear=make_linear)

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        """x: (batch, time, width)."""
        x = x + self.attn(self.attn_norm(x), rotary)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class GPT(nn.Module):
    """Token ids in, logits out. Embedding, norms and head stay in high precision; `make_linear` decides about
    the rest.

    embedding_dtype, head_dtype: what the embedding's output and the head's operands are rounded to; None is
    float32.
    """

    rotary: Tensor

    def __init__(
        self,
        config: ModelConfig,
        *,
        make_linear: MakeLinear,
        embedding_dtype: torch.dtype | None = None,
        head_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(
            Block(config, name=f"blocks.{i}", make_linear=make_linear) for i in range(config.layers)
        )
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.embedding_dtype = embedding_dtype
        self.head_dtype = head_dtype
        self.register_buffer(
            "rotary", rotary_table(config.context, config.width // config.heads), persistent=False
        )

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (batch, time) int64, time at most the context.  Returns logits (batch, time, vocabulary)
        float32.

        Raises IndexError on the CPU if an id is outside the vocabulary.
        """
        x = self.tok_emb(ids)
        if self.embedding_dtype is not None:
            x = x.to(self.embedding_dtype).to(x.dtype)
        rotary = self.rotary[:, : ids.shape[1]]
        for block in self.blocks:
            x = block(x, rotary)
        x = self.norm(x)
        if self.head_dtype is None:
            wide: Tensor = self.head(x)
            return wide.float()
        narrow = functional.linear(x.to(self.head_dtype), self.head.weight.to(self.head_dtype))
        return narrow.float()


def rotary_table(context: int, head_width: int) -> Tensor:
    """Cosines and sines, (2, context, head_width): the angle of position t and pair i is t * base^(-2 i /
    head_width).
    """
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turns each pair (i, i + half) of the last dimension by its position's angle.  x: (batch, heads, time,
    head width).
    """
    cosines, sines = rotary.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    turned: Tensor = x * cosines + torch.cat([-second, first], dim=-1) * sines
    return turned


def initialise(model: nn.Module, config: ModelConfig, *, seed: int) -> None:
    """Normal weights of standard deviation 0.02; layers that write into the residual stream smaller by sqrt(2
    * layers), as GPT-2.

    Drawn in the order of names, so the same seed gives the same weights on every backend.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue
            std = (
                INIT_STD / (2 * config.layers) ** 0.5
                if name.endswith(("proj.weight", "fc2.weight"))
                else INIT_STD
            )
            parameter.copy_(torch.empty(parameter.shape).normal_(std=std, generator=generator))
