"""How the diagnosis does on synthetic curves: recall and onset error by symptom, false alarms by kind.

Run: python -m benchmarks.curves [--split tune|report] [--each N] [--only KIND] [--show]
Thresholds are chosen on the seeds of ``tune`` only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.curves import faults, healthy
from benchmarks.curves.curve import SyntheticCurve
from benchmarks.curves.twelve import twelve
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine

SEEDS = {"tune": 0, "report": 1_000_000}


@dataclass(frozen=True)
class Outcome:
    """What was said of one curve. top: symptom of the gravest alarm, "healthy" without one."""

    curve: SyntheticCurve
    top: str
    severity: str
    symptoms: tuple[str, ...]
    onset_error: float | None
    seconds: float

    @property
    def right(self) -> bool:
        return self.top in self.curve.want if self.curve.want else self.top == "healthy"


def judged(curve: SyntheticCurve) -> Outcome:
    """Diagnoses one curve."""
    engine = Engine(RunInfo())
    begin = time.process_time()
    engine.feed(curve.batch())
    document: dict[str, Any] = engine.verdict().to_json()
    seconds = time.process_time() - begin
    severities = ("info", "warning", "critical")
    found = sorted(document["findings"], key=lambda f: (-severities.index(f["severity"]), -f["confidence"]))
    loud = [f for f in found if f["severity"] != "info"]
    error = None
    for f in loud:
        if f["symptom"] in curve.want and curve.onset is not None:
            true = curve.first + curve.every * curve.onset
            error = abs(f["onset_step"] - true) / curve.every / curve.rows
            break
    return Outcome(
        curve,
        loud[0]["symptom"] if loud else "healthy",
        loud[0]["severity"] if loud else "-",
        tuple(f"{f['rule']} {f['symptom']} {f['severity']} @{f['onset_step']}" for f in found),
        error,
        seconds,
    )


def samples(
    kinds: Mapping[str, Callable[[np.random.Generator], SyntheticCurve]],
    split: str,
    each: int,
    only: str | None,
) -> list[SyntheticCurve]:
    out = []
    for number, (kind, make) in enumerate(kinds.items()):
        if only not in (None, kind):
            continue
        for k in range(each):
            out.append(make(np.random.default_rng([SEEDS[split], number, k])))
    return out


def table(outcomes: list[Outcome]) -> None:
    """One line a kind."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        by_kind[o.curve.kind].append(o)
    for kind, group in by_kind.items():
        right = sum(o.right for o in group)
        wrong: dict[str, int] = defaultdict(int)
        for o in group:
            if not o.right:
                wrong[f"{o.top}/{o.severity}"] += 1
        errors = sorted(o.onset_error for o in group if o.onset_error is not None)
        onset = f"onset error {100 * errors[len(errors) // 2]:5.1f} %" if errors else ""
        said = ", ".join(f"{k} {v}" for k, v in sorted(wrong.items()))
        print(f"  {kind:<20}{right:4d}/{len(group):<4d} {onset:<22}{said}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__)
    parser.add_argument("--split", choices=sorted(SEEDS), default="tune")
    parser.add_argument("--each", type=int, default=20, help="curves of each kind (20)")
    parser.add_argument("--only", help="one kind only")
    parser.add_argument("--show", action="store_true", help="print the findings of every wrong answer")
    args = parser.parse_args(argv)
    sets = [("healthy, right is no alarm", healthy.KINDS), ("faults, right is the symptom", faults.KINDS)]
    summary = []
    for title, kinds in sets:
        outcomes = [judged(c) for c in samples(kinds, args.split, args.each, args.only)]
        if not outcomes:
            continue
        print(title)
        table(outcomes)
        right = sum(o.right for o in outcomes)
        summary.append(f"{title.partition(',')[0]} {right}/{len(outcomes)}")
        if args.show:
            for o in outcomes:
                if not o.right:
                    print("   ", o.curve.kind, o.curve.rows, "onset", o.curve.onset, o.symptoms)
    if args.only is None:
        print("twelve logs")
        outcomes = [judged(c) for c in twelve()]
        table(outcomes)
        for o in outcomes:
            print("   ", o.curve.kind, o.symptoms)
        summary.append(f"twelve {sum(o.right for o in outcomes)}/12")
    print(f"CURVES {args.split} " + ", ".join(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
