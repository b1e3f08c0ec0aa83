"""The command line of ``floatscope diagnose``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from floatscope_diagnostics.readers.formats import readers
from floatscope_diagnostics.readers.names import ALIASES
from floatscope_diagnostics.reports.output import STDOUT

FAIL_ON = ("watch", "warning", "critical", "never")
_EXAMPLES = """examples:
  floatscope diagnose train.log
  floatscope diagnose run.jsonl.gz --baseline bf16.jsonl
  floatscope diagnose metrics.csv trainer_state.json --json
  floatscope diagnose logs/ --html report.html --fail-on critical
  floatscope diagnose metrics.csv --map loss=my_objective --map step=n
  floatscope diagnose train.log --rules rules.toml
  floatscope diagnose train.log --watch
  zcat run.jsonl.gz | floatscope diagnose -

exit codes: 0 healthy or watch, 1 warning or critical (see --fail-on), 2 an input could not be read or wrong
usage, 3 internal error"""


class UsageError(Exception):
    """Options that do not go together; the message says which."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope diagnose``."""
    p = argparse.ArgumentParser(
        prog="floatscope diagnose",
        description="Reads training logs and says what is going wrong, since which step, in "
        "which layer, and what to do.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="a log file, a folder of them, a pattern, or - for standard input",
    )
    reading = p.add_argument_group("reading")
    reading.add_argument(
        "--baseline", metavar="PATH", help="log of a baseline run on the same data, compared step by step"
    )
    reading.add_argument(
        "--format", metavar="NAME", choices=[r.name for r in readers()], help="do not guess the format"
    )
    reading.add_argument(
        "--map",
        metavar="OURS=COLUMN",
        action="append",
        default=[],
        help="take COLUMN of the log as OURS (step, loss, eval_loss, grad_norm, lr, ...); may be repeated",
    )
    reading.add_argument("--formats", action="store_true", help="list the formats that are read, and end")
    judging = p.add_argument_group("judging")
    judging.add_argument(
        "--rules",
        metavar="FILE",
        help="settings of rules as TOML or JSON: off, severity, thresholds; docs/rules says what each has",
    )
    output = p.add_argument_group("output")
    output.add_argument(
        "--full", action="store_true", help="details of every run and of all that is not checked"
    )
    output.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    output.add_argument(
        "--html", metavar="FILE", help="also write the report as one page that opens offline (- prints it)"
    )
    output.add_argument(
        "--markdown", metavar="FILE", help="also write a short summary for a CI job (- prints it)"
    )
    output.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default="warning",
        help="lowest status that gives exit code 1 (default: warning)",
    )
    watching = p.add_argument_group("watching")
    watching.add_argument(
        "--watch",
        action="store_true",
        help="follow logs that grow and print findings as they come; Ctrl-C ends with the report",
    )
    watching.add_argument(
        "--watch-for", metavar="SECONDS", type=_seconds, help="end watching after so many seconds"
    )
    watching.add_argument(
        "--watch-idle", metavar="SECONDS", type=_seconds, help="end when nothing was written for so long"
    )
    return p


def check(args: argparse.Namespace) -> None:
    """Raises UsageError for options that do not go together."""
    if not args.paths:
        raise UsageError("name a log file, a folder, or - for standard input")
    if args.paths.count("-") > 1:
        raise UsageError("standard input (-) can be read once only")
    to_stdout = [o for o in ("html", "markdown") if getattr(args, o) == STDOUT] + ["json"] * args.json
    if len(to_stdout) > 1:
        raise UsageError(f"--{to_stdout[0]} and --{to_stdout[1]} both want standard output; give one a file")
    if not args.watch and (args.watch_for is not None or args.watch_idle is not None):
        raise UsageError("--watch-for and --watch-idle need --watch")


def mapping_of(given: Sequence[str]) -> Mapping[str, str] | None:
    """{column: our name} from OURS=COLUMN. Raises UsageError."""
    out: dict[str, str] = {}
    for text in given:
        ours, equals, column = text.partition("=")
        if not equals or not ours or not column:
            raise UsageError(f"--map {text!r}: expected OURS=COLUMN, for example loss=train/objective")
        if ours not in ALIASES:
            raise UsageError(f"--map {text!r}: {ours!r} is no name of ours; known are {', '.join(ALIASES)}")
        if ours in out.values():
            raise UsageError(f"--map: {ours} is given twice")
        out[column] = ours
    return out or None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, got {text!r}")
    return value
