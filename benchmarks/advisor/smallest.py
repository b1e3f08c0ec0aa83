"""Is the advised set of layers the smallest, and is it the right one? Trains again with one layer less, each
in turn, and with sets of the same size drawn at random.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.advisor.checking import Outcome, asked, base_run, precision_map, run_with
from benchmarks.advisor.training_runs import final_loss


@dataclass(frozen=True)
class OtherSet:
    """A run with another set in BF16.  left_out: the layer of the advice that stays in FP8; "" of a random
    set.  hits: layers of the advice among it.  loss: final, nats.  still_beyond: whether the advice for this
    run still names the layer that was left out; None of a random set.
    """

    left_out: str
    hits: int
    loss: float
    still_beyond: bool | None


def one_less(found: Outcome, *, folder: Path) -> tuple[OtherSet, ...]:
    """The advised set without each of its layers."""
    base = base_run(found.scenario, seed=found.seed, folder=folder, twin_number=0)
    out = []
    for layer in found.moved:
        rest = tuple(one for one in found.moved if one != layer)
        log = run_with(
            found.scenario,
            precision_map(rest),
            f"without-{layer}",
            seed=found.seed,
            folder=folder,
            watched=True,
        )
        named = {one["layer"] for one in asked(log, base)["layers"]}
        out.append(OtherSet(layer, len(rest), final_loss(log), layer in named))
    return tuple(out)


def at_random(found: Outcome, *, folder: Path, sets: int) -> tuple[OtherSet, ...]:
    """Sets as large as the advised one, of all layers with casts, drawn without the advice; never that set.
    None where nothing moved or all layers did.
    """
    every = layers_of_run(found)
    advised = frozenset(found.moved)
    if not advised or len(advised) == len(every):
        return ()
    draw = random.Random(f"{found.scenario.name} {found.seed}")
    out = []
    for number in range(sets):
        drawn = advised
        while drawn == advised:
            drawn = frozenset(draw.sample(every, len(advised)))
        log = run_with(
            found.scenario,
            precision_map(sorted(drawn)),
            f"random-{number}",
            seed=found.seed,
            folder=folder,
        )
        out.append(OtherSet("", len(drawn & advised), final_loss(log), None))
    return tuple(out)


def layers_of_run(found: Outcome) -> tuple[str, ...]:
    """All layers with casts."""
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    return tuple(f"blocks.{block}.{part}" for block in range(found.scenario.shape.layers) for part in parts)
