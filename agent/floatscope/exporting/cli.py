"""``floatscope export``: a run of a server as a training log."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from floatscope.api import Api, ApiError, BadAddress, NotFound, Refused, server_of
from floatscope.exporting.writing import whole_file

OK, FAILED = 0, 2
NAME = "floatscope export"
_EXAMPLES = """examples:
  floatscope export qwen2-7b-fp8 > run.jsonl
  floatscope export qwen2-7b-fp8 -o run.jsonl.gz --rank all
  floatscope export qwen2-7b-fp8 --from 4000 --to 5000 --server https://floatscope.example.org
  floatscope export qwen2-7b-fp8 | floatscope diagnose -

The log is the JSONL that floatscope diagnose, compare and import read. A connection that breaks is taken up
again where it broke. FILE gets its name when it is whole; until then, and after Ctrl-C, there is nothing new.
The token is --token, else FLOATSCOPE_TOKEN, else the one a server on this machine keeps in its data folder.

exit codes: 0 all steps were written, 2 they were not"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope export``."""
    p = argparse.ArgumentParser(
        prog=NAME,
        description="Fetches a run from a floatscope server as a training log (JSONL).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("run", metavar="RUN", help="id of the run")
    p.add_argument(
        "-o", "--output", metavar="FILE", help="write there, compressed if it ends in .gz (default: print)"
    )
    p.add_argument("--from", dest="first", type=_step, metavar="STEP", help="first step, included")
    p.add_argument("--to", dest="last", type=_step, metavar="STEP", help="last step, included")
    p.add_argument("--rank", type=_rank, help="a rank, or all (default: the lowest there is)")
    p.add_argument(
        "--segment", type=_step, help="the run as it was before it went back (default: newest of each step)"
    )
    p.add_argument("--server", metavar="URL", help="the server (default: FLOATSCOPE_URL, else this machine)")
    p.add_argument("--token", help="the server's token")
    p.add_argument("--json", action="store_true", help="with --output: say in JSON what was written")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    try:
        args = parser().parse_args(list(argv))
    except SystemExit as stop:
        return OK if stop.code in (0, None) else FAILED
    if args.json and args.output in (None, "-"):
        return _say("--json needs --output: the log itself is printed otherwise")
    try:
        with Api(server_of(os.environ, url=args.server, token=args.token), user_agent=NAME) as api:
            return _export(api, args)
    except BadAddress as error:
        return _say(str(error))
    except Refused as error:
        hint = "set FLOATSCOPE_TOKEN or --token; a server on this machine keeps its own in <data dir>/token"
        return _say(f"the server refuses the token: {error}; {hint}")
    except NotFound as error:
        return _say(f"{error.detail or error}")
    except ApiError as error:
        return _say(
            f"{error}; nothing was kept" if args.output else f"{error}; what was printed is not whole"
        )
    except BrokenPipeError:
        raise
    except OSError as error:
        return _say(f"{error.filename or args.output}: {error.strerror or error}")


def _export(api: Api, args: argparse.Namespace) -> int:
    lines = api.lines(args.run, first=args.first, last=args.last, rank=args.rank, segment=args.segment)
    if args.output in (None, "-"):
        _print(lines)
        return OK
    path = Path(args.output)
    count = size = 0
    with whole_file(path) as file:
        for count, line in enumerate(lines):  # noqa: B007  # the first line is not a step
            file.write(line + b"\n")
            size += len(line) + 1
    if args.json:
        print(json.dumps({"run_id": args.run, "path": str(path), "steps": count, "bytes": size}))
    else:
        print(f"{path}: {count:,} steps of run {args.run}")
    return OK


def _print(lines: Iterator[bytes]) -> None:
    out = sys.stdout.buffer
    for line in lines:
        out.write(line + b"\n")
    out.flush()


def _say(text: str) -> int:
    print(f"{NAME}: {text}", file=sys.stderr)
    return FAILED


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 up, got {text!r}")
    return int(text)


def _rank(text: str) -> str:
    return text if text == "all" else str(_step(text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
