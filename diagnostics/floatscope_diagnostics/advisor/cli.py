"""``floatscope advise``: which layers of a run should leave FP8, and what that brings and costs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields

from floatscope.hardware.gpu_lookup import UnknownGpuError
from floatscope_diagnostics.advisor.advice import FRAMEWORKS, Advice, Framework, Limits
from floatscope_diagnostics.advisor.advise import DEFAULT_GPU, DEFAULT_RECIPES, RECIPES, advise
from floatscope_diagnostics.advisor.limits import BadLimit, default_limits, limits_with
from floatscope_diagnostics.advisor.report import report
from floatscope_diagnostics.advisor.sources import read_gaps, read_run, reference_gap
from floatscope_diagnostics.command import FOUND, OK, UNREADABLE, refused, run_command
from floatscope_diagnostics.compare.sources import Reading, server_from
from floatscope_diagnostics.readers.formats import readers
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.reports.terminal import style_of

PROG = "floatscope advise"
DESCRIPTION = (
    "Names the smallest set of layers that should leave FP8, or take a finer scaling, so that every problem "
    "of a cast is below its limit; what that should bring and cost; and the settings to paste. Says so where "
    "the fault is not the precision of layers."
)
_EXAMPLES = """examples:
  floatscope advise fp8.jsonl
  floatscope advise fp8.jsonl --baseline bf16.jsonl --framework te
  floatscope advise fp8.jsonl --baseline bf16.jsonl --baseline bf16-twin.jsonl
  floatscope advise fp8.jsonl --level grad_underflow_pct=2 --recipes bf16 --max-layers 4
  floatscope advise qwen-fp8 --baseline qwen-bf16 --server http://host:8321 --json

A name that is a file is read as one; any other is a run id on the server of --server or FLOATSCOPE_URL
(token: --token or FLOATSCOPE_TOKEN). With --server both names are run ids.

exit codes: 0 keep all layers as they are, 1 layers should change or something else must be mended, 2 an input
could not be read, nothing could be decided, or wrong usage, 3 internal error"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope advise``."""
    p = argparse.ArgumentParser(
        prog=PROG,
        description=DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    limits = default_limits().to_json()
    p.add_argument("run", metavar="RUN", help="a log file, - for standard input, or a run id")
    p.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="B",
        help="a log file or a run id of the same data in BF16; repeat it for twins, BF16 runs that differ by "
        "chance only: they tell how large a gap must be to be one",
    )
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    p.add_argument("--server", metavar="URL", help="server of the run ids (default: FLOATSCOPE_URL)")
    p.add_argument("--token", metavar="T", help="its token (default: FLOATSCOPE_TOKEN)")
    p.add_argument(
        "--level",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="limit of a problem, repeatable; defaults: "
        + ", ".join(f"{name}={value:g}" for name, value in limits.items()),
    )
    p.add_argument(
        "--recipes",
        default=",".join(DEFAULT_RECIPES),
        metavar="LIST",
        help=f"what a layer may get, of {', '.join(RECIPES)} (default: all)",
    )
    p.add_argument("--max-layers", type=_whole, metavar="N", help="change at most so many layers")
    p.add_argument(
        "--framework",
        choices=[*FRAMEWORKS, "all"],
        help="whose settings are shown, and what a single layer can get (default: the run's); all shows "
        "every framework's",
    )
    p.add_argument(
        "--gpu",
        default="",
        metavar="NAME",
        help=f"for the price and what it can run (default: {DEFAULT_GPU}, price only)",
    )
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
        limits = limits_of(args.level)
        recipes = recipes_of(args.recipes)
    except (ValueError, BadLimit) as error:
        return refused(PROG, str(error))
    if [args.run, *args.baseline].count("-") > 1:
        return refused(PROG, "only one of the runs can be standard input")
    reading = Reading(server, args.server is not None, format_name=args.format)
    try:
        run = read_run(args.run, reading)
    except UnreadableLog as error:
        return refused(PROG, f"{args.run}: {error}")
    try:
        gap = read_gaps(run, args.baseline, reading) if args.baseline else reference_gap(run)
    except UnreadableLog as error:
        return refused(PROG, str(error))
    framework: Framework | None = next((f for f in FRAMEWORKS if f == args.framework), None)
    try:
        advice = advise(
            run.info,
            run.batches,
            name=run.name,
            limits=limits,
            framework=framework,
            recipes=recipes,
            max_layers=args.max_layers,
            gap=gap,
            verdict=run.verdict,
            gpu=args.gpu,
            histograms=run.histograms,
        )
    except UnknownGpuError as error:
        return refused(PROG, f"--gpu: {error}")
    if args.json:
        print(json.dumps(advice.to_json(), allow_nan=False))
    else:
        style = style_of(sys.stdout, os.environ)
        print(report(advice, style, every_framework=args.framework == "all"), end="")
        print(f"\nExit code {exit_code(advice)}. As JSON: --json.")
    sys.stdout.flush()
    return exit_code(advice)


def exit_code(advice: Advice) -> int:
    """0 to keep all layers, 1 for a change of layers or of something else, 2 if nothing could be said."""
    if advice.decision == "cannot_say":
        return UNREADABLE
    return OK if advice.decision == "keep_fp8" else FOUND


def limits_of(given: Sequence[str]) -> Limits:
    """Limits from "name=number". Raises BadLimit."""
    found: dict[str, float] = {}
    names = ", ".join(field.name for field in fields(Limits))
    for text in given:
        name, equals, number = text.partition("=")
        if not equals:
            raise BadLimit(f"--level {text!r}: expected NAME=NUMBER; names are {names}")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise BadLimit(f"--level {text!r}: {number!r} is not a number") from None
    return limits_with(found)


def recipes_of(text: str) -> tuple[str, ...]:
    """Recipes from a list with commas. Raises ValueError for one that is not known, and for an empty list."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in RECIPES]
    if unknown or not names:
        wrong = f"{unknown[0]!r} is none" if unknown else "the list is empty"
        raise ValueError(f"--recipes: {wrong}; recipes are {', '.join(RECIPES)}")
    return names


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
