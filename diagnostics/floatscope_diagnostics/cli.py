"""``floatscope diagnose``: what is wrong in a training log, since when, where, and what to do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from floatscope_diagnostics.command import FOUND, OK, UNREADABLE, run_command
from floatscope_diagnostics.diagnose import Diagnosed, Unread, diagnose_paths, document, read_baseline
from floatscope_diagnostics.readers.formats import readers
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.report_text import Style, plain, report
from floatscope_diagnostics.verdict import STATUSES

_EXAMPLES = """examples:
  floatscope diagnose run.jsonl
  floatscope diagnose run.jsonl.gz --baseline bf16.jsonl
  floatscope diagnose metrics.csv trainer_state.json --json
  zcat run.jsonl.gz | floatscope diagnose - --fail-on critical

exit codes: 0 healthy or watch, 1 warning or critical, 2 an input could not be read or wrong usage, 3 internal
error"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope diagnose``."""
    p = argparse.ArgumentParser(
        prog="floatscope diagnose",
        description="Reads training logs and says what is going wrong, since which step, in "
        "which layer, and what to do.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("paths", nargs="+", metavar="PATH", help="a log file, or - for standard input")
    p.add_argument(
        "--baseline", metavar="PATH", help="log of a baseline run on the same data, compared step by step"
    )
    p.add_argument(
        "--format", metavar="NAME", choices=[r.name for r in readers()], help="do not guess the format"
    )
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    p.add_argument(
        "--fail-on",
        choices=("warning", "critical", "watch", "never"),
        default="warning",
        help="lowest status that gives exit code 1 (default: warning)",
    )
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code and never raises."""
    return run_command(parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    baseline = None
    if args.baseline is not None:
        try:
            baseline = read_baseline(args.baseline, format_name=args.format)
        except UnreadableLog as error:
            return _report([], [Unread(args.baseline, str(error))], args)
    done, unread = diagnose_paths(args.paths, format_name=args.format, baseline=baseline)
    return _report(done, unread, args)


def _report(done: Sequence[Diagnosed], unread: Sequence[Unread], args: argparse.Namespace) -> int:
    """Prints what was found and what could not be read; returns the exit code."""
    for u in unread:
        print(f"floatscope diagnose: {plain(u.path)}: {plain(u.error)}", file=sys.stderr)
    if args.json:
        print(json.dumps(document(done, unread), ensure_ascii=False, allow_nan=False))
    else:
        _print_reports(done, args)
    sys.stdout.flush()
    return exit_code(done, unread, fail_on=args.fail_on)


def _print_reports(done: Sequence[Diagnosed], args: argparse.Namespace) -> None:
    style = Style(colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    for k, diagnosed in enumerate(done):
        if k:
            print("\n" + "=" * 78 + "\n")
        print(report(diagnosed, style), end="")
    if done:
        code = exit_code(done, [], fail_on=args.fail_on)
        print(f"\nExit code {code}. As JSON: --json. Confidence is {done[0].verdict.confidence_basis}.")


def exit_code(done: Sequence[Diagnosed], unread: Sequence[Unread], *, fail_on: str) -> int:
    """2 if anything could not be read, else 1 if a run's status reaches ``fail_on``, else 0."""
    if unread or not done:
        return UNREADABLE
    if fail_on == "never":
        return OK
    limit = STATUSES.index(fail_on)
    return FOUND if any(STATUSES.index(d.verdict.status) >= limit for d in done) else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
