"""What ``floatscope compare`` promises and what it keeps: coverage of the band, false separations, power.

    python benchmarks/diagnosis/compare_coverage.py [--series N] [--cache FOLDER]

On AR(1) noise whose truth is known, and on the healthy pairs of the tuning split of the diagnosis library
(``~/.cache/floatscope/diagnosis``), of which only seeds below 2000 are read. Not timed; a few minutes.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.diagnosis.plan import FULL, entries
from benchmarks.diagnosis.store import Store, StoredRun
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.compare.bootstrap import mean_band
from floatscope_diagnostics.compare.judge import Comparison, Settings, compare
from floatscope_diagnostics.compare.separation import separations
from floatscope_diagnostics.compare.shape import shape_of
from floatscope_diagnostics.compare.side import Side, side_of
from floatscope_diagnostics.detectors.pairs import PairedLoss
from floatscope_diagnostics.readers.run_log import RunLog, Tally

Float64 = NDArray[np.float64]

PHIS = (0.0, 0.3, 0.7, 0.9)
LENGTHS = (50, 200, 1000, 4000)
EFFECTS_NATS = (0.01, 0.03, 0.1)
PAIR_SD_NATS = 0.02  # of healthy pairs whose trajectories have parted
STEPS = 2000
OPENS = 1000


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=200, help="simulated series a cell (200)")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/floatscope/diagnosis")
    args = parser.parse_args()
    coverage(args.series)
    false_separations(args.series)
    power(max(args.series // 4, 10))
    healthy(Store(args.cache))


def autoregressive(n: int, phi: float, draw: np.random.Generator) -> Float64:
    """AR(1) of variance 1 and mean 0."""
    shocks = draw.normal(size=n) * np.sqrt(1.0 - phi * phi)
    out, level = np.empty(n), float(draw.normal())
    for k in range(n):
        level = phi * level + float(shocks[k])
        out[k] = level
    return out


def coverage(series: int) -> None:
    """How often the 95 % band holds the true mean, and how wide it is against the ideal one."""
    print(f"Coverage of the 95 % band in %, {series} AR(1) series each (mean half width / ideal)")
    print(f"{'phi':>5}" + "".join(f"{'n = ' + str(n):>16}" for n in LENGTHS))
    for phi in PHIS:
        cells = []
        for n in LENGTHS:
            draw = np.random.default_rng([n, int(100 * phi)])
            hits, width = 0, 0.0
            for _ in range(series):
                band = mean_band(autoregressive(n, phi, draw), confidence=0.95)
                hits += band.low <= 0.0 <= band.high
                width += min(band.half, 1e6)
            ideal = 1.96 * np.sqrt((1.0 + phi) / (1.0 - phi) / n)
            cells.append(f"{100 * hits / series:8.1f} ({width / series / ideal:.2f})")
        print(f"{phi:>5}" + "".join(f"{c:>16}" for c in cells))


def false_separations(series: int) -> None:
    """How often noise alone is called a separation, at any step of the series."""
    print(f"\nFalse separations in % (95 % confidence, both sides, all steps together), {series} series each")
    print(f"{'phi':>5}" + "".join(f"{'n = ' + str(n):>10}" for n in LENGTHS))
    for phi in PHIS:
        cells = []
        for n in LENGTHS:
            draw = np.random.default_rng([n, int(100 * phi), 7])
            found = sum(bool(separations(autoregressive(n, phi, draw), alpha=0.05)) for _ in range(series))
            cells.append(100 * found / series)
        print(f"{phi:>5}" + "".join(f"{c:>10.1f}" for c in cells))


def power(series: int) -> None:
    """Delay of a separation and the shape named, for gaps that open at OPENS of STEPS."""
    print(
        f"\nPower: sd {PAIR_SD_NATS} nats, {STEPS} pairs, the gap opens at {OPENS}; {series} series each. "
        "Offsets in nats, slopes in nats reached at the end"
    )
    print(
        f"{'phi':>5}{'gap':>8}{'kind':>9}{'found %':>9}{'delay':>7}{'onset error':>13}{'right shape %':>15}"
    )
    for phi, nats, kind in itertools.product((0.0, 0.3, 0.9), EFFECTS_NATS, ("offset", "slope")):
        draw = np.random.default_rng([int(100 * phi), int(1000 * nats), len(kind)])
        late = np.maximum(np.arange(STEPS) - OPENS, 0)
        gap = nats * (late > 0) if kind == "offset" else nats * late / (STEPS - OPENS)
        delays, errors, shapes, found = [], [], 0, 0
        for _ in range(series):
            values = gap + PAIR_SD_NATS * autoregressive(STEPS, phi, draw)
            parted = [s for s in separations(values, alpha=0.05) if s.sign > 0]
            if not parted:
                continue
            found += 1
            delays.append(parted[0].proven - OPENS)
            errors.append(parted[0].onset - OPENS)
            steps = np.arange(parted[0].onset, STEPS)
            shape = shape_of(steps, values[steps[0] :], confidence=0.95, apart=True)
            shapes += shape.kind == ("constant" if kind == "offset" else "widening")
        delay = f"{np.median(delays):.0f}" if delays else "-"
        error = f"{np.median(errors):+.0f}" if errors else "-"
        right = f"{100 * shapes / found:.0f}" if found else "-"
        print(f"{phi:>5}{nats:>8}{kind:>9}{100 * found / series:>9.0f}{delay:>7}{error:>13}{right:>15}")


def healthy(store: Store) -> None:
    """What is said of pairs of healthy runs: none should be worse, none should have a parted tensor."""
    pairs = list(healthy_pairs(store))
    print(f"\nHealthy pairs of one seed, {len(pairs)}: two recipes, the same batches")
    said: dict[str, list[Comparison]] = {"bf16": [], "other": []}
    streamed = 0
    for run, base in pairs:
        kind = "bf16" if "bf16" in base.label else "other"
        said[kind].append(compare(run, base, Settings()))
        streamed += stream(run, base) + stream(base, run)
    for kind, found in said.items():
        if not found:
            continue
        means = [abs(c.last.band.mean) for c in found if c.last is not None]
        decisions = {d: sum(c.decision == d for c in found) for d in ("same", "worse", "better", "undecided")}
        print(
            f"  against {kind}: {len(found)} pairs, {decisions}; told apart from 0 at some step "
            f"{sum(c.parting is not None for c in found)}, proven beyond 0.02 nats "
            f"{sum(c.beyond_margin is not None for c in found)}; a tensor parts in "
            f"{sum(bool(c.tensors.first) for c in found)}; last-quarter difference at most {max(means):.4f} "
            f"nats, median {np.median(means):.4f}"
        )
    print(f"  live drift (paired_gap) on the {2 * len(pairs)} ordered pairs: {streamed} findings")


def healthy_pairs(store: Store) -> Iterator[tuple[Side, Side]]:
    """Whole healthy runs of the tuning split with the same shape and seed, BF16 as the baseline."""
    by_seed: dict[tuple[str, int], list[tuple[str, StoredRun]]] = {}
    for entry in entries(FULL):
        base = entry.base
        if base.split != "tune" or not store.is_complete(base):
            continue
        run = store.load_base(base)
        if run is not None:
            by_seed.setdefault((base.shape, base.seed), []).append((base.id, run))
    for runs in by_seed.values():
        runs.sort(key=lambda r: "bf16" not in r[0])
        for (name_b, b), (name_a, a) in itertools.combinations(runs, 2):
            yield as_side(name_a, a), as_side(name_b, b)


def as_side(name: str, run: StoredRun) -> Side:
    """A stored run as a side of a comparison."""
    return side_of(name, RunLog(run.info, "stored", iter([(0, run.batch)]), Tally()))


def stream(run: Side, base: Side) -> int:
    """Findings of the live paired drift, fed step by step."""
    watch = PairedLoss()
    watch.add_baseline(base.step, base.loss, None)
    for step, loss in zip(run.step.tolist(), run.loss.tolist(), strict=True):
        watch.add_own(step, loss, float("nan"), None, declared=True)
    return sum(s.signal == "paired_gap" for s in watch.symptoms(Columns(run.run)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
