"""``floatscope diagnose``: what is wrong in a training log, since when, where, and what to do."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence

from floatscope_diagnostics.command import FOUND, OK, UNREADABLE, run_command
from floatscope_diagnostics.diagnose import Baseline, Diagnosed, diagnose_paths, document, read_baseline
from floatscope_diagnostics.gather import Reading, Unread
from floatscope_diagnostics.options import UsageError, check, mapping_of, parser
from floatscope_diagnostics.readers.formats import readers
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.reports.html import page
from floatscope_diagnostics.reports.markdown import summary
from floatscope_diagnostics.reports.output import STDOUT, OutputError, check_target, write
from floatscope_diagnostics.reports.progress import progress
from floatscope_diagnostics.reports.terminal import plain, style_of
from floatscope_diagnostics.reports.text import report
from floatscope_diagnostics.rule_settings import RuleSettings
from floatscope_diagnostics.rule_settings_file import RulesFileError, read_settings
from floatscope_diagnostics.verdict import STATUSES
from floatscope_diagnostics.watch import Ends, watch

NAME = "floatscope diagnose"


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code and never raises."""
    return run_command(parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    if args.formats:
        width = max(len(r.name) for r in readers())
        print("\n".join(f"{r.name:<{width}}  {r.title}" for r in readers()))
        return OK
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold anything
    try:
        check(args)
        reading = Reading(format_name=args.format, mapping=mapping_of(args.map))
        settings = None if args.rules is None else read_settings(args.rules)
        for option in ("html", "markdown"):
            if getattr(args, option) is not None:
                check_target(getattr(args, option), option=f"--{option}")
    except (UsageError, OutputError, RulesFileError) as error:
        print(f"{NAME}: {plain(str(error))}", file=sys.stderr)
        return UNREADABLE
    baseline = None
    if args.baseline is not None:
        try:
            baseline = read_baseline(args.baseline, format_name=args.format)
        except UnreadableLog as error:
            return _report([], [Unread(args.baseline, str(error))], args)
    done, unread = _judge(args, reading, baseline, settings)
    return _report(done, unread, args)


def _judge(
    args: argparse.Namespace, reading: Reading, baseline: Baseline | None, settings: RuleSettings | None
) -> tuple[list[Diagnosed], list[Unread]]:
    if args.watch:
        ends = Ends(after_s=args.watch_for, idle_s=args.watch_idle)
        told = sys.stderr if _prints(args) else sys.stdout
        return watch(args.paths, reading=reading, baseline=baseline, ends=ends, told=told, settings=settings)
    with progress(args.paths, reading, stream=sys.stderr) as watched:
        return diagnose_paths(args.paths, baseline=baseline, reading=watched, settings=settings)


def _prints(args: argparse.Namespace) -> bool:
    """Whether standard output belongs to a document."""
    return bool(args.json or STDOUT in (args.html, args.markdown))


def _report(done: Sequence[Diagnosed], unread: Sequence[Unread], args: argparse.Namespace) -> int:
    """Prints what was found and what could not be read; returns the exit code."""
    code = exit_code(done, unread, fail_on=args.fail_on)
    for u in unread:
        print(f"{NAME}: {plain(u.path)}: {plain(u.error)}", file=sys.stderr)
    try:
        if args.html is not None:
            write(args.html, page(done, unread, code=code), option="--html")
        if args.markdown is not None:
            write(args.markdown, summary(done, unread), option="--markdown")
    except OutputError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        code = UNREADABLE
    if args.json:
        print(json.dumps(document(done, unread), ensure_ascii=not _unicode(), allow_nan=False))
    elif not _prints(args) and done:
        style = style_of(sys.stdout, os.environ)
        print(report(done, style, everything=args.full), end="")
        page_at = f"Page: {args.html}" if args.html else "As a page: --html report.html"
        last = f"Exit code {code}. As JSON: --json. {page_at}"
        print("\n" + style.paint(last, "faint"))
    sys.stdout.flush()
    return code


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


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
