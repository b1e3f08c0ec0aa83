"""What-if predictions beside true casts: errors by kind of data, and whether invalid cases are flagged.

    python -m benchmarks.whatif [--split tune|report|fresh] [--each N] [--no-real] [--variants] [--write]

Thresholds and models were chosen on the seeds of ``tune`` only. ``--write`` puts the largest error of each
format and class of data, synthetic and real, into the product's own_errors.json: whether predictions keep to
the errors that they name is a question to ``fresh`` seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.whatif.checking import Miss, check, sample_misses, torch_misses
from benchmarks.whatif.data import CHECKED_FLAGS, KINDS
from benchmarks.whatif.real import tensors

SEEDS = {"tune": 0, "report": 1_000, "fresh": 5_000}
OWN_ERRORS = (
    Path(__file__).parents[2] / "diagnostics" / "floatscope_diagnostics" / "whatif" / "own_errors.json"
)
STEPS, DUMPED = 26, frozenset({0, 5, 25})
SAMPLE_EVERY = 4


def main() -> int:
    """Prints the tables; 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", choices=sorted(SEEDS), default="report")
    parser.add_argument("--each", type=int, default=3, help="tensors of a kind (3)")
    parser.add_argument("--no-real", action="store_true", help="synthetic data only")
    parser.add_argument("--variants", action="store_true", help="also the worst by format")
    parser.add_argument("--write", action="store_true", help="write own_errors.json")
    args = parser.parse_args()
    began = time.perf_counter()
    misses: list[Miss] = []
    samples: list[Miss] = []
    exact: list[Miss] = []
    flags: dict[str, Counter[str]] = defaultdict(Counter)
    for k, kind in enumerate(KINDS):
        for n in range(args.each):
            made = np.random.default_rng([SEEDS[args.split] + n, k])
            values = np.asarray(kind.make(made), np.float32)
            found = check(kind.name, values)
            misses += found.misses
            flags[kind.name].update(found.flags)
            exact += torch_misses(kind.name, values)
            samples += sample_misses(kind.name, values, SAMPLE_EVERY)
    real = 0
    if not args.no_real:
        for name, values in tensors(SEEDS[args.split], steps=STEPS, dumped=DUMPED):
            if np.count_nonzero(values) and np.isfinite(values).all():
                found = check(f"real {name.split(' ')[0].rpartition('/')[2]}", values)
                misses += found.misses
                flags["real"].update(found.flags)
                real += 1
    _by_kind(misses, "predicted from the histogram")
    print("\n  as flagged:")
    for kind in KINDS:
        print(f"  {kind.name:22} {dict(flags[kind.name]) or '-'} of {args.each}")
    print(f"  {'real':22} {dict(flags['real'])} of {real}")
    if args.variants:
        _by_variant(misses)
    _by_kind(samples, f"one row in {SAMPLE_EVERY} cast, for the whole")
    _kept(misses)
    failed = _targets(misses, exact, flags, args.each)
    if args.write:
        _write(misses, args)
    print(f"\n{time.perf_counter() - began:.0f} s")
    return failed


def _by_kind(misses: Sequence[Miss], what: str) -> None:
    print(f"\n{what}: largest errors, in points and dB, of valid answers")
    print(
        f"  {'data':22} {'underflow':>20} {'overflow':>9} {'SQNR tensor':>12} {'SQNR blocks':>28} {'bulk':>6}"
    )
    for kind in dict.fromkeys(miss.kind for miss in misses):
        mine = [miss for miss in misses if miss.kind == kind and miss.is_valid]
        one = [miss for miss in mine if "tensor" in miss.key or miss.key == "bf16"]
        blocks = [miss for miss in mine if miss not in one]
        under, where = _worst(mine, "underflow_pct")
        sqnr, which = _worst(blocks, "sqnr_db")
        print(
            f"  {kind:22} {under:6.2f} {where:>13.13} {_worst(mine, 'overflow_pct')[0]:9.2f} "
            f"{_worst(one, 'sqnr_db')[0]:12.2f} {sqnr:8.2f} {which:>19.19} "
            f"{_worst(mine, 'bulk_sqnr_db')[0]:6.2f}"
        )


def _worst(misses: Iterable[Miss], what: str) -> tuple[float, str]:
    """The largest error and whose it is; FP4 and FP6 of the log-normal 3 and such included."""
    known = [(abs(getattr(miss, what)), miss.key) for miss in misses if getattr(miss, what) is not None]
    return max(known, default=(0.0, "-"))


def _by_variant(misses: Sequence[Miss]) -> None:
    print("\nby format and class of data: underflow, SQNR, how many")
    for (key, data_class), mine in sorted(_grouped(misses).items()):
        under, sqnr = _worst(mine, "underflow_pct")[0], _worst(mine, "sqnr_db")[0]
        print(f"  {key:22} {data_class:30} {under:7.2f} {sqnr:7.2f} {len(mine):5}")


def _grouped(misses: Sequence[Miss]) -> dict[tuple[str, str], list[Miss]]:
    out: dict[tuple[str, str], list[Miss]] = defaultdict(list)
    for miss in misses:
        if miss.is_valid:
            out[miss.key, miss.data_class].append(miss)
    return out


def _kept(misses: Sequence[Miss]) -> None:
    """How many errors lie within those that were named, and how far chance alone goes."""
    print("\nerrors within the one that the prediction named, of valid answers")
    for what, is_here in (("power not in a few", False), ("power concentrated", True)):
        mine = [m for m in misses if m.is_valid and m.data_class.endswith("concentrated") == is_here]
        under = [m for m in mine if m.told_underflow_pct is not None]
        sqnr = [m for m in mine if m.told_sqnr_db is not None and m.sqnr_db is not None]
        inside = sum(abs(m.underflow_pct) <= (m.told_underflow_pct or 0.0) + 5e-4 for m in under)
        within = sum(abs(m.sqnr_db or 0.0) <= (m.told_sqnr_db or 0.0) + 5e-4 for m in sqnr)
        print(f"  {what:20} underflow {inside} of {len(under)}, SQNR {within} of {len(sqnr)}")
    for kind in ("log-normal 2", "log-normal 3"):
        mine = [m for m in misses if m.kind == kind and m.is_valid and m.chance_db is not None]
        off = [m.sqnr_db or 0.0 for m in mine]
        told = [m.chance_db or 0.0 for m in mine]
        beyond = sum(abs(a) > 1.0 for a in off)
        print(
            f"  {kind}: SQNR root mean square error {_rms(off):.2f} dB, of which chance {_rms(told):.2f}; "
            f"{beyond} of {len(off)} beyond 1 dB"
        )


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values else 0.0


def _targets(misses: Sequence[Miss], exact: Sequence[Miss], flags: dict[str, Counter[str]], each: int) -> int:
    group = {kind.name: kind.group for kind in KINDS}
    fp = [miss for miss in misses if group.get(miss.kind) == "target" and miss.is_valid]
    outliers = [miss for miss in misses if group.get(miss.kind) == "outliers" and miss.is_valid]
    real = [miss for miss in misses if miss.kind.startswith("real") and miss.is_valid]
    lines = [
        ("histogram, Gaussian and log-normal 1, 2: underflow, points", _worst(fp, "underflow_pct"), 1.0),
        ("histogram, Gaussian and log-normal 1, 2: SQNR, dB", _worst(fp, "sqnr_db"), 1.0),
        ("histogram, outlier channels: underflow, points", _worst(outliers, "underflow_pct"), 3.0),
        (
            "stored values, beside torch's casts of them: underflow, points",
            _worst(exact, "underflow_pct"),
            0.5,
        ),
        ("stored values, beside torch's casts of them: SQNR, dB", _worst(exact, "sqnr_db"), 1.0),
    ]
    print("\ntargets")
    failed = 0
    for what, (value, key), limit in lines:
        failed |= value > limit
        print(f"  {'met   ' if value <= limit else 'MISSED'} {what}: {value:.2f} ({key}), limit {limit:g}")
    for what, stat in (("underflow, points", "underflow_pct"), ("SQNR, dB", "sqnr_db")):
        value, key = _worst(real, stat)
        print(f"         real tensors, {what}: {value:.2f} ({key})")
    hits = wanted = false = clean = 0
    for kind in KINDS:
        for code in CHECKED_FLAGS:
            if code in kind.flags:
                wanted, hits = wanted + each, hits + flags[kind.name][code]
            elif kind.group != "outliers" and not (
                kind.name == "log-normal 2" and code == "power_concentrated"
            ):
                clean, false = clean + each, false + flags[kind.name][code]
    print(f"  flags: {hits} of {wanted} invalid cases flagged, {false} of {clean} others flagged")
    return int(failed)


def _write(misses: Sequence[Miss], args: argparse.Namespace) -> None:
    errors: dict[str, dict[str, dict[str, float]]] = {}
    for (key, data_class), mine in sorted(_grouped(misses).items()):
        errors.setdefault(key, {})[data_class] = {
            stat: round(_worst(mine, stat)[0], 3)
            for stat in ("underflow_pct", "overflow_pct", "sqnr_db", "bulk_sqnr_db")
        } | {"tensors": len(mine)}
    source = f"python -m benchmarks.whatif --split {args.split} --each {args.each} --write"
    OWN_ERRORS.write_text(json.dumps({"source": source, "errors": errors}, indent=1) + "\n", "utf-8")
    print(f"\nwrote {OWN_ERRORS}")


if __name__ == "__main__":
    sys.exit(main())
