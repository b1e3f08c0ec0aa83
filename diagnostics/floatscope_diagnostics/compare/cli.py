"""``floatscope compare``: how far apart two runs are, since when, where, and how sure that is."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence

from floatscope_diagnostics.command import FOUND, OK, UNREADABLE, refused, run_command
from floatscope_diagnostics.compare.document import document, with_go
from floatscope_diagnostics.compare.eval_files import UnreadableEvals, read_evals
from floatscope_diagnostics.compare.gate import Go
from floatscope_diagnostics.compare.go import decide
from floatscope_diagnostics.compare.go_options import add_options, limits_of
from floatscope_diagnostics.compare.go_page import go_page
from floatscope_diagnostics.compare.judge import (
    DEFAULT_CONFIDENCE,
    DEFAULT_MARGIN_NATS,
    Comparison,
    Settings,
    compare,
)
from floatscope_diagnostics.compare.judging import health_by_name
from floatscope_diagnostics.compare.limits import BadLimits
from floatscope_diagnostics.compare.pairing import NotComparable
from floatscope_diagnostics.compare.report import report
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.sources import Reading, read_side, server_from
from floatscope_diagnostics.readers.formats import readers
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.reports.output import STDOUT, OutputError, check_target, write
from floatscope_diagnostics.reports.terminal import style_of
from floatscope_diagnostics.verdict import plain_object

PROG = "floatscope compare"
DESCRIPTION = (
    "Compares the loss and the tensors of a run with those of a baseline: how large the difference is, "
    "with a confidence band, since which step, in which tensor first, constant or widening, and how many "
    "more steps a decision needs. Then says go, no-go or not yet: is the loss as good, is a critical finding "
    "open, does the speed pay."
)
_EXAMPLES = """examples:
  floatscope compare fp8.jsonl bf16.jsonl
  floatscope compare fp8.jsonl.gz bf16.jsonl --margin 0.01 --json
  floatscope compare fp8.csv bf16.csv --from 1000           # without the warm-up
  floatscope compare qwen-fp8 qwen-bf16 --server http://host:8321
  floatscope compare fp8.jsonl bf16.jsonl --preset megatron --preset throughput-30 --fail-on not-yet
  floatscope compare fp8.jsonl bf16.jsonl --price-ratio 1.4 --min-saving 15 --planned-tokens 2T
  floatscope compare fp8.jsonl bf16.jsonl --evals fp8_results/ bf16_results/ --html decision.html
  zcat fp8.jsonl.gz | floatscope compare - bf16.jsonl

A name that is a file is read as one; any other is a run id on the server of --server or FLOATSCOPE_URL
(token: --token or FLOATSCOPE_TOKEN). With --server both names are run ids.

The margin is the difference in nats that matters. Two healthy runs on the same batches, one in BF16 and one
in FP8, end up to 0.02 apart by chance alone; that is the default for same, worse and better. The decision
go / no-go asks for more: by default the smaller of 0.01 nats and 0.25 % of the baseline's loss. --margin sets
both.

exit codes: 0 no difference beyond the margin, or too little data to tell (see "decision" in --json), 1 a
difference beyond the margin, either way, 2 the pair cannot be decided (other batches, tokenizer, model; no
steps in common), an input could not be read, or wrong usage, 3 internal error. 0 and 1 do NOT say go or
no-go: a no-go may exit with 0. A script that waits for the decision needs --fail-on no-go (1 for no-go, else
0) or --fail-on not-yet (0 for go alone); 2 and 3 stay."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope compare``."""
    p = argparse.ArgumentParser(
        prog=PROG,
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
        metavar="NATS",
        help=f"the difference that matters (default: {DEFAULT_MARGIN_NATS}; of the decision, see below)",
    )
    p.add_argument("--from", dest="first", type=_step, metavar="STEP", help="compare from this step on")
    p.add_argument("--to", dest="last", type=_step, metavar="STEP", help="compare up to this step")
    p.add_argument(
        "--format", metavar="NAME", choices=[r.name for r in readers()], help="do not guess the files' format"
    )
    add_options(p)
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code and never raises."""
    return run_command(parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    try:
        server = server_from(os.environ, url=args.server, token=args.token)
    except ValueError as error:
        return refused(PROG, str(error))
    if args.run == args.baseline == "-":
        return refused(PROG, "only one of the two can be standard input")
    try:
        limits = limits_of(args)
        if args.html:
            check_target(args.html, option="--html")
        evals = None if args.evals is None else (read_evals(args.evals[0]), read_evals(args.evals[1]))
    except (BadLimits, OutputError, UnreadableEvals) as error:
        return refused(PROG, str(error))
    if args.html == STDOUT and args.json:
        return refused(PROG, "--html - and --json both want standard output; name a file for one")
    reading = Reading(server, args.server is not None, args.first, args.last, args.format)
    settings = Settings(args.confidence, DEFAULT_MARGIN_NATS if args.margin is None else args.margin)
    try:
        found, *pairs = [
            _compared(a, b, reading, settings) for a, b in ((args.run, args.baseline), *args.pair)
        ]
        nulls = [_compared(a, b, reading, settings) for a, b in args.null]
        health = health_by_name(args.run, reading), health_by_name(args.baseline, reading)
        go = decide(found, limits, health=health, evals=evals, more_pairs=pairs, nulls=nulls)
    except (UnreadableLog, NotComparable, BadLimits) as error:
        return refused(PROG, str(error))
    code = exit_code(found, go, args.fail_on)
    if args.html:
        try:
            write(args.html, go_page(found, go), option="--html")
        except OutputError as error:
            return refused(PROG, str(error))
    if args.json:
        print(json.dumps(with_go(document(found), plain_object(go.to_json())), allow_nan=False))
    elif args.html != STDOUT:
        style = style_of(sys.stdout, os.environ)
        print(report(found, style, go), end="")
        print(f"\nExit code {code}. {_meant(go, args.fail_on)} As JSON: --json.")
    sys.stdout.flush()
    return code


def _compared(run: str, base: str, reading: Reading, settings: Settings) -> Comparison:
    """Raises UnreadableLog and NotComparable, which name the run."""
    sides: list[Side] = []
    for name in (run, base):
        try:
            sides.append(read_side(name, reading))
        except UnreadableLog as error:
            raise UnreadableLog(f"{name}: {error}") from error
    return compare(sides[0], sides[1], settings)


def exit_code(found: Comparison, go: Go, fail_on: str | None) -> int:
    """1 for a difference beyond the margin, else 0; with ``fail_on`` 1 for the verdicts it names. UNREADABLE
    for a pair that cannot be decided.
    """
    if not go.decidable:
        return UNREADABLE
    if fail_on is not None:
        return FOUND if go.verdict == "no_go" or (fail_on == "not-yet" and go.verdict != "go") else OK
    return FOUND if found.decision in ("worse", "better") else OK


def _meant(go: Go, fail_on: str | None) -> str:
    """What the exit code is that of."""
    if not go.decidable:
        return "This pair cannot be decided."
    of = "decision" if fail_on else "difference; --fail-on makes it that of the decision"
    return f"It is that of the {of}."


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
