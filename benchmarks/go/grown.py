"""How often a gap that grows is let through, and how often one that does not is held: healthy pairs of the
bundled trainer and series like them, with a true growth added.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.drift import Drift, drift_of
from floatscope_diagnostics.compare.gate import Gate
from floatscope_diagnostics.compare.judge import Settings, compare
from floatscope_diagnostics.compare.loss_gates import drift_gate
from floatscope_diagnostics.compare.seeds import rises_of
from floatscope_diagnostics.compare.settled import Settled, settled
from floatscope_diagnostics.compare.sources import Reading, read_side

Float64 = NDArray[np.float64]
GROWTH = (0.0, 1.0, 2.0, 3.0)
"""True growth from step 0 to the last, in margins."""
MARGIN_NATS = 0.0065  # 0.25 % of a loss of 2.6
STEPS, FIRST, WARM_UP = 500, 50, 30
WANDER_NATS = 0.005
NOISE_NATS = (0.0055, 0.0065, 0.011, 0.018)  # of single steps, as four healthy pairs of seeds 21 to 25 had


def growth_rows(seed: int, series: int) -> Iterator[str]:
    """A line for each way in which simulated pairs part."""
    for name, wander in (("walks less as the rate falls", _walk), ("levels off anywhere", _levelling)):
        draw = np.random.default_rng([seed, 9])
        gaps = [wander(draw)[FIRST:] + draw.normal(size=STEPS - FIRST) * draw.choice(NOISE_NATS)
                for _ in range(series)]  # fmt: skip
        yield f"  {name + f', seed {seed}':<44}" + _singly(gaps)


def pair_rows(folder: Path, seeds: Sequence[int], kind: str = "current") -> Iterator[str]:
    """The same for real pairs, alone and three seeds together."""
    gaps = []
    for seed in seeds:
        sides = [read_side(str(folder / f"{k}-{seed}.jsonl"), Reading()) for k in (kind, "bf16")]
        gaps.append(settled(compare(sides[0], sides[1], Settings())).gap)
    names = f"{kind}, seeds {seeds[0]} to {seeds[-1]}"
    yield f"  {names:<44}" + _singly(gaps)
    cells = []
    for growth in GROWTH:
        grown = [_grown(gap, growth) for gap in gaps]
        said = [_three([grown[k] for k in trio]) for trio in itertools.permutations(range(len(gaps)), 3)
                if trio[1] < trio[2]]  # fmt: skip
        cells.append(_share([gate for gate in said if gate is not None]))
    yield f"  {'three of them, the first alone left open':<44}" + "".join(f"{cell:>16}" for cell in cells)


def _singly(gaps: Sequence[Float64]) -> str:
    cells = [_share([_gate(_grown(gap, growth)) for gap in gaps]) for growth in GROWTH]
    return "".join(f"{cell:>16}" for cell in cells)


def _share(gates: Sequence[Gate]) -> str:
    """Let through / held open / called growth, in %."""
    n = max(len(gates), 1)
    held = sum(g.state == "undecided" and g.blocks for g in gates)
    failed = sum(g.state == "fail" for g in gates)
    return " / ".join(f"{100 * k / n:.0f}" for k in (len(gates) - held - failed, held, failed))


def _three(gaps: Sequence[Float64]) -> Gate | None:
    """What three seeds say; None where the first alone is not left open."""
    alone = _gate(gaps[0])
    if alone.state != "undecided" or not alone.blocks:
        return None
    return drift_gate(_drift(gaps[0]), MARGIN_NATS, None, rises_of(gaps))


def _gate(gap: Float64) -> Gate:
    return drift_gate(_drift(gap), MARGIN_NATS, None)


def _drift(gap: Float64) -> Drift | None:
    part = Settled(np.arange(FIRST, FIRST + len(gap)), gap, 0, FIRST + len(gap) - 1, None, False, 1)
    return drift_of(part, MARGIN_NATS, planned_last_step=None)


def _grown(gap: Float64, growth: float) -> Float64:
    steps = np.arange(FIRST, FIRST + len(gap))
    grown: Float64 = gap + growth * MARGIN_NATS * steps / steps[-1]
    return grown


def _walk(draw: np.random.Generator) -> Float64:
    """Steps as large as a learning rate with warm-up and cosine."""
    at = np.arange(STEPS)
    rate = 0.05 + 0.475 * (1.0 + np.cos(np.pi * (at - WARM_UP) / (STEPS - WARM_UP)))
    rate[:WARM_UP] = at[:WARM_UP] / WARM_UP
    walk: Float64 = np.cumsum(draw.normal(size=STEPS) * rate) / np.sqrt((rate**2).sum()) * WANDER_NATS
    return walk


def _levelling(draw: np.random.Generator) -> Float64:
    """A walk that is drawn back over 50 to 300 steps."""
    keep = float(np.exp(-1.0 / draw.uniform(50.0, 300.0)))
    out = [0.0]
    for shock in draw.normal(size=STEPS - 1).tolist():
        out.append(keep * out[-1] + shock * (1.0 - keep * keep) ** 0.5 * WANDER_NATS)
    return np.array(out)
