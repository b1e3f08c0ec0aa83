"""``python -m benchmarks.dashboard``: first text, whole page, live ticks, scrubbing, in a real browser.

python -m benchmarks.dashboard                                  # a small run, a minute
python -m benchmarks.dashboard --full --cache /var/tmp/floatscope-bench   # 405 million values, 1,000 runs
python -m benchmarks.dashboard --extremes       # server only: many histograms, 100,000 tensors
"""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks.dashboard import extremes, pages


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dashboard", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--full", action="store_true", help="the size that the targets are set for")
    parser.add_argument("--cache", metavar="FOLDER", help="keeps the run, as benchmarks.server does")
    parser.add_argument("--times", type=int, default=5, help="visits of each page; the median counts (5)")
    parser.add_argument("--extremes", action="store_true", help="the server's CPU for unusual runs")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if args.extremes:
        extremes.report(cache=args.cache)
        return
    pages.report(steps=100_032 if args.full else 12_288, cache=args.cache, times=args.times)


if __name__ == "__main__":
    main()
