"""``floatscope recorder``: what a flight recorder knows of a run that died, and what its steps say."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence

from floatscope_diagnostics.cli import exit_code
from floatscope_diagnostics.command import UNREADABLE, run_command
from floatscope_diagnostics.diagnose import Diagnosed, diagnose_paths, document
from floatscope_diagnostics.gather import Reading, Unread
from floatscope_diagnostics.options import FAIL_ON
from floatscope_diagnostics.readers.flight_recorder import FORMAT
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.recorder.export import lines
from floatscope_diagnostics.recorder.files import find, read_stories
from floatscope_diagnostics.recorder.report import section, terminal
from floatscope_diagnostics.recorder.story import Story
from floatscope_diagnostics.reports.html import page
from floatscope_diagnostics.reports.output import STDOUT, OutputError, check_target, write
from floatscope_diagnostics.reports.terminal import plain, style_of
from floatscope_diagnostics.reports.text import report

NAME = "floatscope recorder"
SCHEMA = "floatscope.recorder/1"
_EXAMPLES = """examples:
  floatscope recorder ~/.local/state/floatscope/gpt-fp8-1a2b3c4d       # all ranks of a run
  floatscope recorder rank3.recorder --json
  floatscope recorder rank0.recorder.1                                 # the life before the last restart
  floatscope recorder rank*.recorder --html crash.html
  floatscope recorder rank0.recorder --export run.jsonl                # as a floatscope log

Works on the recorder of a process that was killed, that aborted, or that still runs; several ranks of one run
are judged together. The file may come from another machine.

exit codes: 0 healthy or watch, 1 warning or critical (see --fail-on), 2 a file could not be read or wrong
usage, 3 internal error"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope recorder``."""
    p = argparse.ArgumentParser(
        prog=NAME,
        description="Reads the flight recorder that a run leaves on the disk of its machine: how it ended, "
        "the step and batch it died in, the exception, recipe and versions, and what its last steps show.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("paths", nargs="+", metavar="PATH", help="a recorder, or a folder of a run with its ranks")
    p.add_argument("--full", action="store_true", help="every rank, and all that is not checked")
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    p.add_argument("--html", metavar="FILE", help="also write the report as one page (- prints it)")
    p.add_argument("--export", metavar="FILE", help="also write the steps as a floatscope log (- prints it)")
    p.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default="warning",
        help="lowest status that gives exit code 1 (default: warning)",
    )
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code and never raises."""
    return run_command(parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold anything
    wanted = [o for o in ("html", "export") if getattr(args, o) == STDOUT] + ["json"] * args.json
    if len(wanted) > 1:
        print(
            f"{NAME}: --{wanted[0]} and --{wanted[1]} both want standard output; give one a file",
            file=sys.stderr,
        )
        return UNREADABLE
    try:
        for option in ("html", "export"):
            if getattr(args, option) is not None:
                check_target(getattr(args, option), option=f"--{option}")
    except OutputError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return UNREADABLE
    files, unread = find(args.paths)
    stories, strange = read_stories(files)
    known = [story.path for story in stories]
    done: list[Diagnosed] = []
    unjudged: list[Unread] = []
    if known:
        done, unjudged = diagnose_paths(known, reading=Reading(format_name=FORMAT))
    return _report(args, stories, done, [*unread, *strange, *unjudged], prints=bool(wanted))


def _report(
    args: argparse.Namespace,
    stories: Sequence[Story],
    done: Sequence[Diagnosed],
    unread: Sequence[Unread],
    *,
    prints: bool,
) -> int:
    """Prints and writes; prints: whether standard output belongs to a document. Returns the exit code."""
    code = exit_code(done, unread, fail_on=args.fail_on)
    for u in unread:
        print(f"{NAME}: {plain(u.path)}: {plain(u.error)}", file=sys.stderr)
    try:
        if args.html is not None:
            write(args.html, page(done, unread, code=code, preface=section(stories)), option="--html")
        if args.export is not None and stories:
            text = "".join(line + "\n" for line in lines([story.path for story in stories]))
            write(args.export, text, option="--export")
    except (OutputError, UnreadableLog) as error:
        print(f"{NAME}: {plain(str(error))}", file=sys.stderr)
        code = UNREADABLE
    if args.json:
        told = {
            "schema": SCHEMA,
            "recorders": [story.to_json() for story in stories],
            "diagnosis": document(done, unread),
        }
        print(json.dumps(told, ensure_ascii=True, allow_nan=False))
    elif not prints and stories:
        style = style_of(sys.stdout, os.environ)
        print(terminal(stories, style, everything=args.full))
        print(report(done, style, everything=args.full), end="")
        print("\n" + style.paint(f"Exit code {code}. As JSON: --json. As a log: --export run.jsonl", "faint"))
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
