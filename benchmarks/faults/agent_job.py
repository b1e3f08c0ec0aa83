"""A training job that records itself with floatscope's own agent, until its standard input ends."""

from __future__ import annotations

import argparse
import math
import random
import sys
import threading
from pathlib import Path

import floatscope

STEP_S = 0.01


def scalars(seed: int, step: int) -> dict[str, float]:
    """What the job logs at a step; follows from the seed."""
    rng = random.Random(seed * 1_000_003 + step)
    found = {"loss": 4 - 1e-4 * step + rng.gauss(0, 0.02), "lr": 1e-3, "draw": rng.random()}
    if rng.random() < 0.5:
        found["odd"] = rng.choice([math.nan, math.inf, -math.inf, 0.0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--spool-dir", type=Path, required=True)
    args = parser.parse_args()
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    monitor = floatscope.watch(
        run=args.run_id, run_id=args.run_id, mode="server", url=args.url, token=args.token,
        spool_dir=args.spool_dir, gpu=False, rank=0,
    )  # fmt: skip
    step = 0
    while not ended.wait(STEP_S):
        monitor.step(step, **scalars(args.seed, step))
        step += 1
    monitor.finish()
    print(step)


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main()
