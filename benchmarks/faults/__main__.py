"""Faults on purpose: processes killed, disks full, clocks that jump, clients that misbehave; then every
promise is checked.

    python -m benchmarks.faults kill --kills 300                          # SQLite
    python -m benchmarks.faults kill --kills 200 --database postgresql
    python -m benchmarks.faults kill --kills 100 --database postgresql --workers 2
    python -m benchmarks.faults fuzz --requests 10000
    python -m benchmarks.faults disk
    python -m benchmarks.faults clock
    python -m benchmarks.faults loris
    python -m benchmarks.faults soak --minutes 10

Prints counts; exit code 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.faults import clock, disk, fuzz, kill, loris, soak
from benchmarks.faults.tally import Tally


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    tally = Tally()
    print(f"{args.command}: seed {args.seed}", flush=True)
    began, cpu = time.monotonic(), time.process_time()
    try:
        args.run(args, tally)
    finally:
        print("\n".join(tally.lines()), flush=True)
    print(
        f"  {time.monotonic() - began:.0f} s, of them {time.process_time() - cpu:.0f} s CPU of this process"
    )
    return 1 if tally.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: object, about: str, *, minutes: float) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("--seed", type=int, default=1, help="all that is random follows from it")
        command.add_argument(
            "--minutes", type=float, default=minutes, help="ends after this time (%(default)s)"
        )
        command.set_defaults(run=run)
        return command

    killing = add("kill", kill.main, "kill -9 of server and database under load", minutes=12)
    killing.add_argument("--kills", type=int, default=50)
    killing.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    killing.add_argument("--workers", type=int, default=1, help="processes of the server, on PostgreSQL")
    killing.add_argument("--pause-s", type=float, default=0.15, help="mean pause between batches of a rank")
    fuzzing = add("fuzz", fuzz.main, "requests made to hurt, over every route", minutes=8)
    fuzzing.add_argument("--requests", type=int, default=10_000)
    fuzzing.add_argument("--only", type=int, help="send only the request of this number and print the answer")
    filling = add("disk", disk.main, "a disk that is full in the middle of commits", minutes=4)
    filling.add_argument("--times", type=int, default=60, help="how often it is full")
    filling.add_argument("--way", choices=["auto", "limit"], default="auto", help="limit: without mounting")
    jumping = add("clock", clock.main, "a clock that jumps by hours and days", minutes=4)
    jumping.add_argument("--jumps", type=int, default=60)
    slow = add("loris", loris.main, "hundreds of clients that never finish", minutes=4)
    slow.add_argument("--connections", type=int, default=150, help="of each kind")
    slow.add_argument("--batches", type=int, default=150, help="measured before, among and after them")
    slow.add_argument(
        "--no-wait", dest="wait", action="store_false", help="not to wait until the server has closed them"
    )
    soaking = add("soak", soak.main, "everything at once for some minutes", minutes=3)
    soaking.add_argument("--pause-s", type=float, default=0.1, help="mean pause between batches of a rank")
    return parser


if __name__ == "__main__":
    sys.exit(main())
