"""``floatscope resend``: delivers steps that a run could not deliver before its process ended."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from floatscope.client import Answer, HttpTransport, Transport, TransportError
from floatscope.config import from_env
from floatscope.protocol.strict_json import dumps
from floatscope.resend.spools import Resent, resend_all, spools_in, waiting
from floatscope.version import version

EXIT_LEFT, EXIT_USAGE = 1, 2

EXAMPLES = """\
examples:
  floatscope resend                                   everything under FLOATSCOPE_SPOOL_DIR
  floatscope resend --list                            what lies there, without sending it
  floatscope resend /scratch/fs --server http://host:8321
  floatscope resend ~/.local/state/floatscope/my-run-1a2b3c4d

What the server has already is not doubled: each batch goes out under the number and with the bytes that were
written down. What a living process still works with is left alone. A run whose process ended without a word
is marked as crashed, unless it has ended or somebody else goes on with it.

Exit code 0 if nothing is left, 1 if something is, 2 for wrong usage. The token is FLOATSCOPE_TOKEN.
"""


class _NoServer:
    """Stands in for a connection where no address is known."""

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        raise TransportError("no server is known: give --server or set FLOATSCOPE_URL")

    def close(self) -> None:
        return None

    def abort(self) -> None:
        return None


def main(argv: Sequence[str]) -> int:
    """Runs the command. Returns its exit code."""
    options = _options(argv)
    try:
        given = {"run": "resend", "mode": "off", "url": options.server, "spool_dir": options.folder}
        settings, complaints = from_env(given)
    except ValueError as error:
        print(f"floatscope resend: {str(error).removeprefix('floatscope.watch(): ')}", file=sys.stderr)
        return EXIT_USAGE
    for complaint in complaints:
        print(f"floatscope: {complaint}", file=sys.stderr)
    folder = settings.spool_dir
    if options.folder is not None and not folder.is_dir():
        print(
            f"floatscope resend: {folder}: there is no such folder; give one that holds spools",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if options.list:
        return _list(folder, as_json=options.json)

    def connect(noted: str | None) -> Transport:
        url = settings.url or noted
        if url is None:
            return _NoServer()
        agent = f"floatscope/{version()} python/{platform.python_version()}"
        return HttpTransport(
            url, token=settings.token, timeout_s=settings.request_timeout_s, user_agent=agent
        )

    found: list[Resent] = []
    for resent in resend_all(folder, connect=connect):
        found.append(resent)
        if not options.json:
            print(_line(resent), flush=True)
    if options.json:
        left, steps = sum(r.left for r in found), sum(r.steps for r in found)
        print(dumps({"delivered": steps, "left": left, "spools": [r.to_json() for r in found]}))
    elif not found:
        print(f"floatscope resend: nothing waits in {folder}")
    return EXIT_LEFT if any(r.state not in ("delivered", "busy") for r in found) else 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="floatscope resend",
        description="Deliver what runs could not deliver before their process ended.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="DIR",
        help="the folder of all runs, of one run, or one spool (default: FLOATSCOPE_SPOOL_DIR)",
    )
    parser.add_argument(
        "--server", metavar="URL", help="default: FLOATSCOPE_URL, else the server that the run was sent to"
    )
    parser.add_argument("--list", action="store_true", help="only show what waits")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    return parser.parse_args(argv)


def _list(folder: Path, *, as_json: bool) -> int:
    spools = [waiting(path) for path in spools_in(folder)]
    if as_json:
        print(dumps({"spools": [spool.to_json() for spool in spools]}))
        return 0
    for spool in spools:
        print(_line(spool))
    if not spools:
        print(f"floatscope resend: nothing waits in {folder}")
    return 0


def _line(resent: Resent) -> str:
    whose = f"{resent.run_id or resent.path} rank {'?' if resent.rank is None else resent.rank}"
    if resent.state == "busy":
        return f"{whose}: a living process works with it; left alone"
    if resent.state == "waiting":
        return f"{whose}: {resent.left:,} steps wait in {resent.path}"
    if resent.state == "delivered":
        ending = f", the run is marked {resent.ending}" if resent.ending else ""
        return f"{whose}: {resent.steps:,} steps delivered{ending}"
    sent = f"{resent.steps:,} steps delivered, " if resent.steps else ""
    return (
        f"{whose}: {sent}{resent.left:,} steps still wait in {resent.path} ({resent.state}: {resent.detail})"
    )
