"""``floatscope import``: sends training logs to a floatscope server, as runs with all their steps."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from floatscope.api.where import DEFAULT_URL
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import check_name, check_run_id
from floatscope_diagnostics.command import OK, UNREADABLE, run_command
from floatscope_diagnostics.gather import Gathered, Reading, Unread, visit_runs
from floatscope_diagnostics.importing.sending import Sent, Wanted, send
from floatscope_diagnostics.importing.server import ImportFailed, Server, target
from floatscope_diagnostics.options import UsageError, mapping_of
from floatscope_diagnostics.readers.formats import readers
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.reports.numbers import count
from floatscope_diagnostics.reports.progress import progress
from floatscope_diagnostics.reports.terminal import plain

NAME = "floatscope import"
_EXAMPLES = """examples:
  floatscope import train.log
  floatscope import train.log --server https://floatscope.example.org --project nightly
  floatscope import logs/*.jsonl --json
  floatscope import train.log --run-id qwen2-7b-fp8

The same command again changes nothing; when the log has grown it sends what is new. The token is --token,
else FLOATSCOPE_TOKEN, else the one a server on this machine keeps in its data directory.

exit codes: 0 all runs are on the server, 2 something could not be read or sent, 3 internal error"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope import``."""
    p = argparse.ArgumentParser(
        prog=NAME,
        description="Reads training logs of any known format and sends them to a floatscope server.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("paths", nargs="+", metavar="PATH", help="a log file, a folder, a pattern, or -")
    p.add_argument(
        "--server", metavar="URL", help=f"the server (default: FLOATSCOPE_URL, else {DEFAULT_URL})"
    )
    p.add_argument(
        "--token", help="the server's token (default: FLOATSCOPE_TOKEN, else a local server's own)"
    )
    p.add_argument("--project", help="project the runs belong to")
    p.add_argument("--name", help="name of the run (default: as logged, else the file's name)")
    p.add_argument("--run-id", help="id of the run (default: made from name and first steps)")
    p.add_argument(
        "--format", metavar="NAME", choices=[r.name for r in readers()], help="do not guess the format"
    )
    p.add_argument("--map", metavar="OURS=COLUMN", action="append", default=[], help="take COLUMN as OURS")
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code and never raises."""
    return run_command(parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    try:
        wanted = _wanted(args)
        reading = Reading(format_name=args.format, mapping=mapping_of(args.map))
        server = Server(target(args.server, args.token, os.environ))
    except (UsageError, ProtocolError, ImportFailed) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return UNREADABLE
    done: list[Sent] = []

    def visit(found: Gathered) -> None:
        if args.run_id is not None and found.number == 1 and done:
            raise UnreadableLog("--run-id names one run; import the inputs one by one")
        try:
            done.append(send(found, server, wanted))
        except (ImportFailed, ProtocolError) as error:
            raise UnreadableLog(str(error)) from error
        if not args.json:
            print(_line(done[-1]), flush=True)

    try:
        with progress(args.paths, reading, stream=sys.stderr) as watched:
            unread = visit_runs(args.paths, visit, reading=watched)
    finally:
        server.close()
    return _report(done, unread, args)


def _wanted(args: argparse.Namespace) -> Wanted:
    for option in ("project", "name"):
        if getattr(args, option) is not None:
            check_name(getattr(args, option), field=f"--{option}")
    if args.run_id is not None:
        check_run_id(args.run_id, field="--run-id")
    return Wanted(args.project, args.name, args.run_id)


def _line(sent: Sent) -> str:
    which = plain(sent.label) + (f", run {sent.number}" if sent.number > 1 else "")
    before = f" ({sent.present:,} were there already)" if sent.present else ""
    verdict = f"\n  {plain(sent.health)}: {plain(sent.summary or '')}" if sent.health else ""
    return f"{which}: {count(sent.sent, 'step')} sent{before}\n  {plain(sent.url)}{verdict}"


def _report(done: Sequence[Sent], unread: Sequence[Unread], args: argparse.Namespace) -> int:
    for u in unread:
        print(f"{NAME}: {plain(u.path)}: {plain(u.error)}", file=sys.stderr)
    if args.json:
        runs = [{("path" if k == "label" else k): v for k, v in asdict(sent).items()} for sent in done]
        print(json.dumps({"runs": runs, "unread": [asdict(u) for u in unread]}))
    sys.stdout.flush()
    return UNREADABLE if unread or not done else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
