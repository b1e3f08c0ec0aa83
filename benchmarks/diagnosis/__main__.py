"""How good the diagnosis is, and how often it cries wolf: makes a library of runs and judges it on them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.diagnosis.calibration import calibration_table
from benchmarks.diagnosis.evaluate import evaluate
from benchmarks.diagnosis.fit import fit_and_write
from benchmarks.diagnosis.labelled_logs import UnreadableFolder, judge_logs
from benchmarks.diagnosis.metrics import false_alarms, share
from benchmarks.diagnosis.outcome import Judged
from benchmarks.diagnosis.plan import FULL, SMALL, Entry, entries
from benchmarks.diagnosis.report import by_group, confusion_table, mistakes, table
from benchmarks.diagnosis.simulate import run_base, run_fork
from benchmarks.diagnosis.store import CacheBusy, Store

DEFAULT_CACHE = Path("~/.cache/floatscope/diagnosis")
EXAMPLES = """examples:
  python -m benchmarks.diagnosis small          make a small library and judge it, under 3 minutes
  python -m benchmarks.diagnosis run            add to the full library until it is done; stop it any time
  python -m benchmarks.diagnosis status         how far it is
  python -m benchmarks.diagnosis evaluate --split tune --mistakes wrong.md
  python -m benchmarks.diagnosis evaluate       all splits
  python -m benchmarks.diagnosis fit --jobs 2   calibrate the confidences on the split for it
  python -m benchmarks.diagnosis logs FOLDER    judge labelled logs: FOLDER/EXPECTED.csv names the answers
"""
SPLITS = ("tune", "calibrate", "report")
COMMANDS = ("small", "run", "evaluate", "fit", "status", "logs")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0, 1 below ``--at-least``, 2 if a cache is in use or a folder unreadable."""
    parser = _parser()
    args = parser.parse_args(argv)
    if (args.command == "logs") != (args.folder is not None):
        parser.error("a folder goes with the command logs, and logs needs one")
    if args.command == "logs":
        return judge_folder(args.folder)
    store = Store(args.cache.expanduser())
    size = SMALL if args.command == "small" else FULL
    library = list(entries(size))
    try:
        if args.command in ("run", "small"):
            mine, of = args.part
            with store.writing(part=f"-{mine}-of-{of}" if of > 1 else ""):
                make(
                    store,
                    library[mine - 1 :: of],
                    deadline=time.monotonic() + args.minutes * 60 if args.minutes else None,
                )
    except CacheBusy as error:
        print(error, file=sys.stderr)
        return 2
    if args.command == "status":
        show_status(store, library)
    if args.command == "fit":
        fit_and_write(store, size, jobs=args.jobs)
    if args.command in ("evaluate", "small"):
        runs = list(evaluate(store, size, split=args.split, jobs=args.jobs))
        show(runs, splits=SPLITS if args.split is None else (args.split,))
        if args.mistakes is not None:
            wrong = [r for r in runs if r.split == "tune"]
            args.mistakes.write_text("\n".join(mistakes(wrong)) + "\n", encoding="utf-8")
        if args.at_least is not None:
            return enough(runs, percent=args.at_least)
    return 0


def enough(runs: Sequence[Judged], *, percent: float) -> int:
    """0 if so many answers name the right cause and no freshly trained healthy step raised an alarm, else 1
    with a line that says what fell short.
    """
    right = share([r.cause_ok for r in runs]).percent
    alarms = false_alarms(runs).alarms
    short = [
        *([f"cause right in {right:.1f} %, at least {percent:g} % wanted"] if (right or 0) < percent else []),
        *([f"{alarms} false alarms, none wanted"] if alarms else []),
    ]
    for line in short:
        print(f"not good enough: {line}", file=sys.stderr)
    return 1 if short else 0


def part_of(text: str) -> tuple[int, int]:
    """``K/N`` as (K, N). Raises ArgumentTypeError unless 1 <= K <= N."""
    first, _, count = text.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected K/N with K from 1 to N, for example 1/2, got {text!r}")
    return int(first), int(count)


def judge_folder(folder: Path) -> int:
    """Judges labelled logs. Returns 0, or 2 if the folder cannot be read."""
    try:
        runs = list(judge_logs(folder))
    except UnreadableFolder as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join([*table(str(folder), runs), *confusion_table(runs), *by_group(runs, of="recipe")]))
    print("\n".join(mistakes(runs)))
    return 0


def make(store: Store, library: Iterable[Entry], *, deadline: float | None) -> None:
    """Trains what is not stored yet, in order. Stops between two runs after the deadline (monotonic
    seconds).
    """
    for entry in library:
        base = entry.base
        began, steps = time.monotonic(), run_base(base, store)
        forks = 0
        for scenario in entry.scenarios:
            if deadline is not None and time.monotonic() > deadline:
                return
            if not store.fork_path(base, scenario.id).exists():
                steps += run_fork(base, scenario, store)
                forks += 1
        if steps:
            seconds = time.monotonic() - began
            print(f"{base.id}: {steps:,} steps, {forks} forks, {steps / seconds:.0f} steps/s", flush=True)


def show(runs: Sequence[Judged], *, splits: Sequence[str]) -> None:
    """Prints the tables."""
    for split in splits:
        part = [r for r in runs if r.split == split]
        if not part:
            continue
        known = [r for r in part if not r.held_back]
        title = "tuning split" if split == "tune" else f"{split} split, severities also in the tuning split"
        lines = [*table(title, known), *confusion_table(known), *by_group(known, of="recipe")]
        lines += [*by_group(known, of="flavour"), *calibration_table(known)]
        held = [r for r in part if r.held_back]
        if held:
            lines += [*table(f"{split} split, severities held back", held), *confusion_table(held)]
            lines += calibration_table(held)
            lines += table(f"{split} split, all", part)
        print("\n".join(lines) + "\n", flush=True)


def show_status(store: Store, library: Sequence[Entry]) -> None:
    """Prints how many steps and forks are stored."""
    for split in SPLITS:
        mine = [e for e in library if e.base.split == split]
        steps = sum(max(store.chunks(e.base), default=0) for e in mine)
        total = sum(e.base.steps for e in mine)
        stored = sum(store.fork_path(e.base, s.id).exists() for e in mine for s in e.scenarios)
        wanted = sum(len(e.scenarios) for e in mine)
        print(f"{split}: {steps:,} of {total:,} healthy steps, {stored} of {wanted} forks")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diagnosis",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", default="small", choices=COMMANDS, help="(%(default)s)")
    parser.add_argument("folder", nargs="?", type=Path, help="of labelled logs, with the command logs")
    parser.add_argument(
        "--cache", type=Path, default=DEFAULT_CACHE, help="folder of stored runs (%(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=0, help="stop making runs after so long (0: when done)"
    )
    parser.add_argument(
        "--part",
        type=part_of,
        default=(1, 1),
        metavar="K/N",
        help="make every N-th run only, from the K-th on; for several processes beside each other",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="processes that judge beside each other (%(default)s)",
    )
    parser.add_argument(
        "--at-least",
        type=float,
        metavar="PERCENT",
        help="exit 1 if fewer runs have the right cause, or if a healthy step raised an alarm",
    )
    parser.add_argument("--split", choices=SPLITS, help="judge only this split")
    parser.add_argument(
        "--mistakes", type=Path, metavar="FILE", help="write what was wrong on the tuning split, run by run"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
