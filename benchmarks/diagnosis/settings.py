"""What a run of the library is made of besides its fault: model shape, precision recipe, seed, and the
optimizer settings that the seed draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from floatscope_trainer.config import ModelConfig, OptimConfig, PrecisionConfig, TrainConfig

LIBRARY_VERSION = 1
"""Raised when stored runs no longer mean what the code says; every version has its own folder in the
cache."""

FIRST_TUNING_SEED, SECOND_TUNING_SEED, FIRST_UNSEEN_SEED = 10, 1000, 2000
"""Seeds 0 to 9 belong to the demo. Below 2000 one may look at runs and tune on them, from 2000 on never.
Seeds 1000 to 1999 reported the first version and were looked at since; they are made last."""
FIRST_REPORT_SEED, SEEDS_A_PART = 2004, 6
"""From 2000 on six seeds, one of each flavour, are for the report and six for the calibration in turn: 2004
to 2009 report."""

SHAPES: Mapping[str, ModelConfig] = {
    "small": ModelConfig(layers=2, width=64, heads=2, hidden=160, context=64),
    "demo": ModelConfig(),
    "minimal": ModelConfig(layers=1, width=32, heads=2, hidden=64, context=16),
}
"""small: most runs.  demo: the trainer's default.  minimal: for tests."""

RECIPES: Mapping[str, PrecisionConfig] = {
    "bf16": PrecisionConfig(precision="bf16"),
    "delayed-max-32": PrecisionConfig(amax_history_len=32),
    "current": PrecisionConfig(recipe="current"),
    "delayed-recent-16": PrecisionConfig(amax_history_len=16, amax_compute_algo="most_recent"),
    "fp16": PrecisionConfig(precision="fp16"),
    "delayed-max-16": PrecisionConfig(amax_history_len=16),
    "block": PrecisionConfig(recipe="block"),
    "delayed-recent-32": PrecisionConfig(amax_history_len=32, amax_compute_algo="most_recent"),
    "mxfp8": PrecisionConfig(recipe="mxfp8"),
}
"""In the order in which a seed's runs are made; bf16 first, since it is the others' reference."""


Pairing = Literal["none", "ref_loss", "baseline"]
"""ref_loss: as a scalar of the run's own rows.  baseline: as another run."""


@dataclass(frozen=True)
class Flavour:
    """What makes a healthy run easy or hard.

    batch: sequences a step.  label_noise: share of labels that are random from the first step on.  lr_times:
    factor on the drawn peak learning rate.  clip: largest gradient norm.
    """

    name: str
    batch: int = 4
    label_noise: float = 0.0
    lr_times: float = 1.0
    clip: float = 1.0


FLAVOURS: tuple[Flavour, ...] = (
    Flavour("plain"),
    Flavour("noisy_labels", label_noise=0.05),
    Flavour("plain"),
    Flavour("batch_of_one", batch=1),
    Flavour("plain"),
    Flavour("clipped", lr_times=2.0, clip=0.1),
)
"""Taken in turn by seed; one seed has the same flavour under every recipe."""


@dataclass(frozen=True)
class Base:
    """A healthy run from scratch, and the stock that faulty runs are forked from.

    shape, recipe: keys of SHAPES and RECIPES.  steps: its length, which is also that of the learning-rate
    decay.
    """

    shape: str
    recipe: str
    seed: int
    steps: int

    @property
    def id(self) -> str:
        return f"{self.shape}-{self.recipe}-s{self.seed}-n{self.steps}"

    @property
    def split(self) -> str:
        """``tune``, ``calibrate`` or ``report``."""
        return split_of(self.seed)

    @property
    def flavour(self) -> Flavour:
        return FLAVOURS[self.seed % len(FLAVOURS)]

    @property
    def pairing(self) -> Pairing:
        """How the diagnosis gets the loss of the bf16 run on the same batches; half of the seeds do not."""
        if self.recipe == "bf16":
            return "none"
        by_seed: tuple[Pairing, ...] = ("baseline", "ref_loss", "none", "none")
        return by_seed[self.seed % len(by_seed)]

    def config(self, *, vocab_size: int) -> TrainConfig:
        """The training's settings. Seeds differ in learning rate, warm-up, decay and evaluation."""
        draw = np.random.default_rng([self.seed, 20_260])
        flavour = self.flavour
        lr = float(draw.choice([5e-4, 1e-3, 2e-3])) * flavour.lr_times
        optim = OptimConfig(
            lr=lr,
            min_lr=float(draw.choice([0.02, 0.1, 0.3])),
            warmup=int(draw.choice([20, 40, 100])),
            clip=flavour.clip,
        )
        model = SHAPES[self.shape]
        shape = ModelConfig(
            layers=model.layers,
            width=model.width,
            heads=model.heads,
            hidden=model.hidden,
            context=model.context,
            vocab_size=vocab_size,
        )
        return TrainConfig(
            model=shape,
            precision=RECIPES[self.recipe],
            optim=optim,
            steps=self.steps,
            batch=flavour.batch,
            seed=self.seed,
            eval_every=10 if self.seed % 2 == 0 else 0,
            init_loss_scale=2.0 ** int(draw.choice([12, 16, 24])),  # 24: a long search downwards at the start
            growth_interval=int(draw.choice([40, 100])),
        )


def split_of(seed: int) -> str:
    """``tune``, ``calibrate`` or ``report``. Raises ValueError for a seed of the demo."""
    if seed < FIRST_TUNING_SEED:
        raise ValueError(
            f"seed: expected {FIRST_TUNING_SEED} or more, since lower ones are the demo's, got {seed}"
        )
    if seed < FIRST_UNSEEN_SEED:
        return "tune"
    return "calibrate" if (seed - FIRST_REPORT_SEED) // SEEDS_A_PART % 2 else "report"
