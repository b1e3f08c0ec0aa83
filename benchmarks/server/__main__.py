"""``python -m benchmarks.server``: how fast the server takes in, keeps and answers, and what others do.

python -m benchmarks.server                     # everything, small, a few minutes
python -m benchmarks.server ingest --peers /path/to/python
python -m benchmarks.server reads --full --cache /var/tmp/floatscope-bench
"""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks.server import ingest, many, reads, spike

PARTS = ("ingest", "reads", "many", "spike")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--full", action="store_true", help="the sizes that the targets are set for")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has mlflow and trackio")
    parser.add_argument("--cache", metavar="FOLDER", help="keeps the run that is read, to read it again")
    parser.add_argument("--runs", type=int, default=1, help="runs that send at once, for ingest (1)")
    parser.add_argument("--repeats", type=int, default=3, help="of each ingest; the median counts (3)")
    args = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda number, _frame: sys.exit(128 + number)
    )  # servers are stopped then too
    for part in args.parts or PARTS:
        print(f"-- {part}\n")
        if part == "ingest":
            batches, diagnosed = (512, 256) if args.full else (192, 96)
            ingest.report(
                batches=batches, diagnosed=diagnosed, repeats=args.repeats, runs=args.runs, python=args.peers
            )
        elif part == "reads":
            reads.report(steps=100_032 if args.full else 12_288, cache=args.cache, python=args.peers)
        elif part == "many":
            many.report(live=200, ended=800, batches=24 if args.full else 8)
        else:
            spike.report(steps=1_000_000)


if __name__ == "__main__":
    main()
