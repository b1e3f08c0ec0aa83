"""Training runs whose gap to BF16 has a known place, and healthy ones.

Two families. In the *format* family nothing is broken: the values do not suit the format, the recipe is set
badly or the cast rounds badly. In the *injected* family a fault sits at chosen quantisers; it vanishes when
the layer leaves FP8, because a BF16 layer has no quantiser, so these show only whether the right layers are
found.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.advisor.prepared_models import (
    Prepare,
    all_of,
    outlier_input,
    outlier_swiglu,
    outlier_value,
    outlier_weight_column,
)


@dataclass(frozen=True)
class Shape:
    """Of a model of the bundled trainer, and its sequences a step."""

    layers: int
    width: int
    heads: int
    hidden: int
    batch: int

    def options(self) -> tuple[str, ...]:
        """For ``floatscope train``."""
        named = {"layers": self.layers, "width": self.width, "heads": self.heads, "hidden": self.hidden,
                 "batch": self.batch}  # fmt: skip
        return tuple(word for name, value in named.items() for word in (f"--{name}", str(value)))


SMALL = Shape(layers=3, width=64, heads=2, hidden=160, batch=2)
DEEP = Shape(layers=5, width=48, heads=2, hidden=128, batch=2)
WIDE = Shape(layers=2, width=128, heads=4, hidden=352, batch=2)


@dataclass(frozen=True)
class Scenario:
    """options: of ``floatscope train``, for the FP8 run.  bad: layers that are meant to be bad, empty for all
    or none.  prepare: changes the model before the first step, in FP8 and BF16 alike.  family: "format",
    "injected" or "healthy".  base: names what the BF16 run of the scenario is trained with.
    """

    name: str
    family: str
    what: str
    options: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    prepare: Prepare | None = None
    shape: Shape = SMALL
    base: str = "plain"


CURRENT = ("--recipe", "current")
DELAYED = ("--recipe", "delayed", "--amax-history-len", "16")
MXFP8 = ("--recipe", "mxfp8")
BLOCK = ("--recipe", "block")
HUGE = 2.0**20


def layers_of(parts: tuple[str, ...], blocks: range) -> tuple[str, ...]:
    """Names of layers."""
    return tuple(f"blocks.{block}.{part}" for block in blocks for part in parts)


ALL = range(SMALL.layers)
FC1_AND_QKV = layers_of(("attn.qkv", "mlp.fc1"), ALL)
FC2_AND_PROJ = layers_of(("attn.proj", "mlp.fc2"), ALL)
FC1_AND_FC2 = layers_of(("mlp.fc1", "mlp.fc2"), ALL)
QKV_AND_PROJ = layers_of(("attn.qkv", "attn.proj"), ALL)


def _inputs(blocks: range, times: float) -> Prepare:
    return all_of(*(outlier_input(b, part, times) for b in blocks for part in ("attn.qkv", "mlp.fc1")))


def _at(fault: str, tensors: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for tensor in tensors for word in ("--inject", f"{fault}:{tensor}"))


SCENARIOS = (
    Scenario(
        "outlier-six",
        "format",
        "outlier channels in front of every qkv and fc1",
        CURRENT,
        FC1_AND_QKV,
        _inputs(ALL, HUGE),
        base="outlier-six",
    ),
    Scenario(
        "outlier-mxfp8",
        "format",
        "the same in MXFP8: half of the values share their scale with the outlier",
        MXFP8,
        FC1_AND_QKV,
        _inputs(ALL, HUGE),
        base="outlier-six",
    ),
    Scenario(
        "outlier-two",
        "format",
        "an outlier channel in front of qkv and fc1 of one block of three",
        CURRENT,
        layers_of(("attn.qkv", "mlp.fc1"), range(1, 2)),
        _inputs(range(1, 2), HUGE),
        base="outlier-two",
    ),
    Scenario(
        "outlier-deep",
        "format",
        "five blocks of width 48, outlier channels in front of qkv and fc1 of two of them",
        CURRENT,
        layers_of(("attn.qkv", "mlp.fc1"), range(1, 3)),
        _inputs(range(1, 3), HUGE),
        DEEP,
        "outlier-deep",
    ),
    Scenario(
        "weight-columns",
        "format",
        "a column of 2^20 in the weight of every fc1",
        CURRENT,
        layers_of(("mlp.fc1",), ALL),
        all_of(*(outlier_weight_column(b, "mlp.fc1", HUGE) for b in ALL)),
        base="weight-columns",
    ),
    Scenario(
        "outlier-swiglu",
        "format",
        "a SwiGLU channel that is amplified in every block: fc1's weight and fc2's input",
        DELAYED,
        FC1_AND_FC2,
        all_of(*(outlier_swiglu(b, HUGE) for b in ALL)),
        base="outlier-swiglu",
    ),
    Scenario(
        "swiglu-wide",
        "format",
        "two blocks of width 128, the amplified SwiGLU channel in both",
        CURRENT,
        layers_of(("mlp.fc1", "mlp.fc2"), range(2)),
        all_of(*(outlier_swiglu(b, HUGE) for b in range(2))),
        WIDE,
        "swiglu-wide",
    ),
    Scenario(
        "outlier-value",
        "format",
        "a channel of the values of attention amplified in every block: qkv's weight and proj's input",
        DELAYED,
        QKV_AND_PROJ,
        all_of(*(outlier_value(b, HUGE) for b in ALL)),
        base="outlier-value",
    ),
    Scenario("margin-17", "format", "a margin of 17 bits: scales far too low", (*DELAYED, "--margin", "17")),
    Scenario("rtz", "format", "casts that round toward zero, everywhere", (*CURRENT, "--cast", "rtz")),
    Scenario(
        "gradients-six",
        "injected",
        "the gradient scales of every proj and fc2 are constants far too low",
        (*DELAYED, *_at("gradient_underflow@10", tuple(f"{name}/grad_output" for name in FC2_AND_PROJ))),
        FC2_AND_PROJ,
    ),
    Scenario(
        "frozen-scales",
        "injected",
        "the scales of every input of proj and fc2 stop at step 1 and clip as the values grow",
        (*DELAYED, *_at("scale_frozen@1", tuple(f"{name}/input" for name in FC2_AND_PROJ))),
        FC2_AND_PROJ,
    ),
    Scenario("healthy-current", "healthy", "current scaling, nothing wrong", CURRENT),
    Scenario("healthy-delayed", "healthy", "delayed scaling, nothing wrong", DELAYED),
    Scenario("healthy-block", "healthy", "scales of blocks, nothing wrong", BLOCK),
    Scenario("healthy-mxfp8", "healthy", "MXFP8, nothing wrong", MXFP8),
)
