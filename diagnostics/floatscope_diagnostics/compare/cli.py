"""``floatscope compare``: how far apart two runs are, since when, where, and how sure that is."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence

from floatscope_diagnostics.command import FOUND, OK, UNREADABLE, run_command
from floatscope_diagnostics.compare.document import document
from floatscope_diagnostics.compare.judge import (
    DEFAULT_CONFIDENCE,
    DEFAULT_MARGIN_NATS,
    Comparison,
    Settings,
    compare,
)
from floatscope_diagnostics.compare.pairing import NotComparable
from floatscope_diagnostics.compare.report import report
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.sources import Reading, read_side, server_from
from floatscope_diagnostics.readers.formats import readers
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.reports.terminal import plain, style_of

DESCRIPTION = (
    "Compares the loss and the tensors of a run with those of a baseline: how large the difference is, "
    "with a confidence band, since which step, in which tensor first, constant or widening, and how many "
    "more steps a decision needs."
)
_EXAMPLES = """examples:
  floatscope compare fp8.jsonl bf16.jsonl
  floatscope compare fp8.jsonl.gz bf16.jsonl --margin 0.01 --json
  floatscope compare fp8.csv bf16.csv --from 1000           # without the warm-up
  floatscope compare qwen-fp8 qwen-bf16 --server http://host:8321
  zcat fp8.jsonl.gz | floatscope compare - bf16.jsonl

A name that is a file is read as one; any other is a run id on the server of --server or FLOATSCOPE_URL
(token: --token or FLOATSCOPE_TOKEN). With --server both names are run ids.

The margin is the difference in nats that matters. Two healthy runs on the same batches, one in BF16 and one
in FP8, end up to 0.02 apart by chance alone; that is the default.

exit codes: 0 no difference beyond the margin, or too little data to tell (see "decision" in --json), 1 a
difference beyond the margin, either way, 2 an input could not be read, the runs share no steps, or wrong
usage, 3 internal error"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope compare``."""
    p = argparse.ArgumentParser(
        prog="floatscope compare",
        description=DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("run", metavar="RUN", help="a log file, - for standard input, or a run id")
    p.add_argument("baseline", metavar="BASELINE", help="a log file or a run id")
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    p.add_argument("--server", metavar="URL", help="server of the run ids (default: FLOATSCOPE_URL)")
    p.add_argument("--token", metavar="T", help="its token (default: FLOATSCOPE_TOKEN)")
    p.add_argument(
        "--confidence",
        type=_confidence,
        default=DEFAULT_CONFIDENCE,
        metavar="C",
        help=f"of the bands and tests, from 0.5 to 0.9999 (default: {DEFAULT_CONFIDENCE})",
    )
    p.add_argument(
        "--margin",
        type=_margin,
        default=DEFAULT_MARGIN_NATS,
        metavar="NATS",
        help=f"the difference that matters (default: {DEFAULT_MARGIN_NATS})",
    )
    p.add_argument("--from", dest="first", type=_step, metavar="STEP", help="compare from this step on")
    p.add_argument("--to", dest="last", type=_step, metavar="STEP", help="compare up to this step")
    p.add_argument(
        "--format", metavar="NAME", choices=[r.name for r in readers()], help="do not guess the files' format"
    )
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code and never raises."""
    return run_command(parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    try:
        server = server_from(os.environ, url=args.server, token=args.token)
    except ValueError as error:
        return _refused(str(error))
    if args.run == args.baseline == "-":
        return _refused("only one of the two can be standard input")
    reading = Reading(server, args.server is not None, args.first, args.last, args.format)
    sides: list[Side] = []
    for name in (args.run, args.baseline):
        try:
            sides.append(read_side(name, reading))
        except UnreadableLog as error:
            return _refused(f"{name}: {error}")
    try:
        found = compare(sides[0], sides[1], Settings(args.confidence, args.margin))
    except NotComparable as error:
        return _refused(str(error))
    code = exit_code(found)
    if args.json:
        print(json.dumps(document(found), ensure_ascii=False, allow_nan=False))
    else:
        style = style_of(sys.stdout, os.environ)
        print(report(found, style), end="")
        print(f"\nExit code {code}. As JSON: --json.")
    sys.stdout.flush()
    return code


def exit_code(found: Comparison) -> int:
    """1 for a difference beyond the margin, else 0."""
    return FOUND if found.decision in ("worse", "better") else OK


def _refused(why: str) -> int:
    print(f"floatscope compare: {plain(why)}", file=sys.stderr)
    return UNREADABLE


def _confidence(text: str) -> float:
    value = float(text)
    if not 0.5 <= value <= 0.9999:
        raise argparse.ArgumentTypeError(f"expected a number from 0.5 to 0.9999, got {text}")
    return value


def _margin(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected nats from 0 on, got {text}")
    return value


def _step(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a step from 0 on, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
