"""Error rates of the decision of ``floatscope compare``, on pairs whose truth is known.

    python -m benchmarks.go [--series N] [--pairs FOLDER]

Simulated AR(1) differences over autocorrelation, length and true gap; throughput ratios with skewed,
correlated step times; evaluations. With --pairs: what is said of logs of the bundled trainer in FOLDER, named
KIND-SEED.jsonl with a bf16-SEED.jsonl each (``--train`` makes them, several minutes on two cores).

No constant of the decision was fitted on the simulated series. The emulated pairs were all looked at: a rise
that may be chance and casts that lose too much leave the decision open since then.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.go.grown import GROWTH, growth_rows, pair_rows
from benchmarks.go.pairs import KEPT, KINDS, TUNED, train, verdicts
from benchmarks.go.simulated import autoregressive, evals_row, settled_gap, speed_band
from floatscope_diagnostics.compare.drift import drift_of
from floatscope_diagnostics.compare.equivalence import judge_loss
from floatscope_diagnostics.compare.seeds import MIN_SEEDS

MARGIN_NATS = 0.01
PHIS = (0.0, 0.3, 0.7, 0.9)
LENGTHS = (200, 1000)
GAPS = (0.0, 0.5, 1.0, 1.5)  # of the margin
SD_NATS = 0.02  # paired runs whose trajectories have parted


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=240, help="simulated series a cell (240)")
    parser.add_argument("--pairs", type=Path, help="folder with logs of the bundled trainer")
    parser.add_argument("--train", action="store_true", help="train those that are missing there")
    parser.add_argument("--only-pairs", action="store_true", help="no simulations")
    args = parser.parse_args()
    if not args.only_pairs:
        loss(args.series)
        growth(args.series // 2)
        parting(args.series)
        speed(args.series)
        evals(args.series)
    if args.pairs is not None:
        if args.train:
            train(args.pairs)
        emulated(args.pairs)
        grown(args.pairs)


def loss(series: int) -> None:
    """What the loss gate says, in percent: pass / fail / undecided."""
    print(f"Loss gate on AR(1) differences, sd {SD_NATS} nats, margin {MARGIN_NATS}; {series} series a cell")
    print(
        "pass / fail / undecided in %. At a gap of the margin or more a pass is false, below it a failure is."
    )
    print(f"{'phi':>4}{'n':>6}" + "".join(f"{'gap ' + format(g, 'g') + ' m':>17}" for g in GAPS))
    for phi, n in itertools.product(PHIS, LENGTHS):
        cells = []
        for gap in GAPS:
            draw = np.random.default_rng([int(100 * phi), n, int(10 * gap), 5])
            said: Counter[str] = Counter()
            for _ in range(series):
                values = gap * MARGIN_NATS + SD_NATS * autoregressive(n, phi, draw)
                answer = judge_loss(settled_gap(values), MARGIN_NATS).answer
                said["pass" if answer in ("equivalent", "non_inferior") else answer] += 1
            shares = [100 * said[k] / series for k in ("pass", "worse", "undecided")]
            cells.append(" / ".join(f"{v:.1f}" if v else "0" for v in shares))
        print(f"{phi:>4}{n:>6}" + "".join(f"{c:>17}" for c in cells), flush=True)


def growth(series: int) -> None:
    """How often growth is shown and how often a rise is left open, by true growth at the last step."""
    print(f"\nDrift gate: growth shown / a rise left open, in % of {series} series")
    print(f"{'phi':>4}{'n':>6}{'none':>14}{'1 m':>14}{'3 m':>14}   at the last step")
    for phi, n in itertools.product(PHIS, LENGTHS):
        cells = []
        for end in (0.0, 1.0, 3.0):
            draw = np.random.default_rng([int(100 * phi), n, int(10 * end), 6])
            named = rose = 0
            for _ in range(series):
                values = SD_NATS * autoregressive(n, phi, draw)
                values += np.linspace(0.0, end * MARGIN_NATS, n)
                found = drift_of(settled_gap(values), MARGIN_NATS, planned_last_step=None)
                if found is not None and (found.grows or found.may_grow):
                    shown = found.grows and found.steady
                    named, rose = named + shown, rose + (not shown)
            cells.append(f"{100 * named / series:.1f} / {100 * rose / series:.1f}")
        print(f"{phi:>4}{n:>6}" + "".join(f"{c:>14}" for c in cells), flush=True)


PARTING_SEEDS = 1, 2  # the first was tuned on


def parting(series: int) -> None:
    """Pairs that part by chance and level off, with a true growth added."""
    print(f"\nDrift gate on {series} pairs that part by chance: let through / held open / called growth in %")
    print(f"  {'true growth to the last step':<44}" + "".join(f"{format(g, 'g') + ' m':>16}" for g in GROWTH))
    for seed in PARTING_SEEDS:
        for row in growth_rows(seed, series):
            print(row, flush=True)


def grown(folder: Path) -> None:
    """The same for the healthy pairs of the folder, in the groups that were looked at and kept back."""
    print(f"\nDrift gate on the pairs in {folder}, true growth added: let through / held open / growth in %")
    for seeds in (TUNED, KEPT):
        have = [s for s in seeds if all((folder / f"{k}-{s}.jsonl").exists() for k in ("current", "bf16"))]
        if len(have) >= MIN_SEEDS:
            for row in pair_rows(folder, have):
                print(row, flush=True)


def speed(series: int) -> None:
    """Coverage of the ratio of median step times, and how often a lower bound lies above the truth."""
    print(f"\nThroughput ratio, skewed step times with 3 % outliers; {series} pairs a cell")
    print(f"{'phi':>4}{'n':>6}{'in the 90 % interval':>22}{'truth below the lower bound (nominal 5)':>42}")
    for phi, n in itertools.product((0.0, 0.5, 0.9), (200, 1000)):
        draw = np.random.default_rng([int(100 * phi), n, 7])
        bands = [speed_band(n, phi, draw) for _ in range(series)]
        inside = 100 * sum(low <= truth <= high for low, high, truth in bands) / series
        above = 100 * sum(truth < low for low, _high, truth in bands) / series
        print(f"{phi:>4}{n:>6}{inside:>22.1f}{above:>42.1f}")


def evals(series: int) -> None:
    """What is said of evaluations with 5 % of the answers turned, by true loss in points."""
    print(f"\nEvaluations, margin 1 point; {series} pairs a cell: pass / fail / undecided in %")
    print(f"{'questions':>10}{'no loss':>18}{'loses 1 point':>18}{'loses 2 points':>18}")
    for n in (300, 1300, 14_000):
        cells = []
        for lost in (0.0, 1.0, 2.0):
            draw = np.random.default_rng([n, int(lost), 8])
            said = Counter(evals_row(n, lost, draw).state for _ in range(series))
            shares = [100 * said[k] / series for k in ("pass", "fail", "undecided")]
            cells.append(" / ".join(f"{v:.1f}" if v else "0" for v in shares))
        print(f"{n:>10}" + "".join(f"{c:>18}" for c in cells))


def emulated(folder: Path) -> None:
    """What is said of real pairs. Speed and cost are left out: emulated FP8 is no faster."""
    print(f"\nEmulated pairs in {folder} (KIND against BF16 of the same seed); {', '.join(KINDS)}")
    for row in verdicts(folder):
        print(row)


if __name__ == "__main__":
    main()
