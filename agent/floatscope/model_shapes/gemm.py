"""The matrix products of a model's linear layers on one GPU, after parallelism has cut them."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope.model_shapes.shape import Linear, LinearKind, ModelConfigError, ModelShape, Parallelism

MOST_WAYS = 2**20
MOST_TOKENS = 2**40


@dataclass(frozen=True)
class Gemm:
    """One kind of linear on one GPU: forward (T, N, K), input gradient (T, K, N), weight gradient (N, K, T).

    count: how many the whole model has, as `Linear.count`. on_rank: how many of them one GPU computes, a
    fraction where pipeline stages do not divide them.  tokens: T of one product of one micro-batch; for
    experts the mean, routing is never even. uncut: the dimension ("k", "n" or "") that tensor parallelism
    does not divide, so that K or N here is rounded up.  after_norm: it follows a norm (the column-parallel
    linears of attention and MLP), which some libraries fuse with its cast.
    """

    name: str
    kind: LinearKind
    count: int
    on_rank: float
    k: int
    n: int
    tokens: int
    bias: bool = False
    uncut: str = ""
    after_norm: bool = False

    @property
    def flops(self) -> float:
        """Of forward and both gradients of all of them on this GPU, for one micro-batch."""
        return 6.0 * self.tokens * self.k * self.n * self.on_rank


def gemm_shapes(
    shape: ModelShape, *, micro_batch: int, sequence: int, parallelism: Parallelism
) -> tuple[Gemm, ...]:
    """The products of every linear of the model on one GPU.

    micro_batch: sequences.  sequence: tokens of one. Tokens are micro_batch * sequence / context parallel.
    Sequence parallelism gathers them again in front of a layer that tensor parallelism cuts (Korthikanti et
    al., arXiv 2205.05198, section 4.2.2), so it divides only those of replicated layers. An expert meets
    tokens * experts per token / experts from each of the GPUs of its expert-parallel group, which are taken
    to be data-parallel ones. The head exists on the last pipeline stage only.

    Raises:
        ModelConfigError: a number is below 1 or absurd, or heads or experts cannot be cut that way.
    """
    _check(shape, micro_batch, sequence, parallelism)
    tokens = -(-micro_batch * sequence // parallelism.context)
    return tuple(_gemm(one, shape, tokens, parallelism) for one in shape.linears)


def _gemm(linear: Linear, shape: ModelShape, tokens: int, cut: Parallelism) -> Gemm:
    k, n, uncut = linear.k, linear.n, ""
    if linear.split == "k":
        k, uncut = -(-k // cut.tensor), "k" if k % cut.tensor else ""
    elif linear.split == "n":
        n = _columns(linear, shape, cut.tensor)
        uncut = "n" if (linear.n - linear.kv_features) % cut.tensor else ""
    elif cut.sequence:
        tokens = -(-tokens // cut.tensor)
    on_rank: float = linear.count
    if linear.kind == "expert":
        tokens = max(round(tokens * linear.tokens_share * cut.expert), 1)
        on_rank /= cut.expert
    if linear.kind != "head":
        on_rank /= cut.pipeline
    after_norm = linear.split == "n" and linear.kind in ("attention", "mlp")
    return Gemm(linear.name, linear.kind, linear.count, on_rank, k, n, tokens, linear.bias, uncut, after_norm)


def _columns(linear: Linear, shape: ModelShape, ways: int) -> int:
    """Features of one GPU's part: at least one whole key and one whole value head, which are then copied."""
    keys = linear.kv_features
    own = -(-(linear.n - keys) // ways)
    return own + (keys // min(ways, shape.kv_heads) if keys else 0)


def _check(shape: ModelShape, micro_batch: int, sequence: int, cut: Parallelism) -> None:
    numbers = {"micro_batch": micro_batch, "sequence": sequence}
    for name, value in numbers.items():
        if not 1 <= value <= MOST_TOKENS:
            raise ModelConfigError(f"{name}: expected a whole number from 1 to {MOST_TOKENS:,}, got {value}")
    for name in ("tensor", "pipeline", "context", "expert", "data"):
        ways = getattr(cut, name)
        if not 1 <= ways <= MOST_WAYS:
            raise ModelConfigError(f"{name} parallel: expected 1 to {MOST_WAYS:,}, got {ways}")
    where = f"{shape.source}: {shape.name}"
    if shape.heads % cut.tensor:
        raise ModelConfigError(
            f"{where}: tensor parallel {cut.tensor} does not divide its {shape.heads} heads; use a divisor"
        )
    if shape.kv_heads % cut.tensor and cut.tensor % shape.kv_heads:
        raise ModelConfigError(
            f"{where}: tensor parallel {cut.tensor} is neither a divisor nor a multiple of its "
            f"{shape.kv_heads} key and value heads; use one that is"
        )
    if cut.pipeline > shape.layers:
        raise ModelConfigError(
            f"{where}: pipeline parallel {cut.pipeline} is more than its {shape.layers} layers"
        )
    if cut.expert > 1 and (not shape.experts or shape.experts % cut.expert):
        raise ModelConfigError(
            f"{where}: expert parallel {cut.expert} does not divide its {shape.experts} experts"
        )
