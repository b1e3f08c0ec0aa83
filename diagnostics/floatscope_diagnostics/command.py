"""What the commands share: exit codes, and a way to run one that never raises."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from floatscope_diagnostics.reports.terminal import plain

OK, FOUND, UNREADABLE, INTERNAL = 0, 1, 2, 3


def run_command(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], argv: Sequence[str]
) -> int:
    """Parses the words and runs the command. Returns the exit code, INTERNAL if it raised."""
    try:
        args = parser.parse_args(list(argv))
    except SystemExit as stop:
        return OK if stop.code in (0, None) else UNREADABLE
    try:
        return run(args)
    except BrokenPipeError:
        # The reader of our output has gone: keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        sys.stderr.write(f"{parser.prog}: interrupted\n")
        return UNREADABLE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            sys.stderr.write(f"{parser.prog}: nothing more can be written: {error.strerror}\n")
            return UNREADABLE
        traceback.print_exc()
        sys.stderr.write(f"{parser.prog}: internal error; please report it with the lines above\n")
        return INTERNAL


def refused(prog: str, why: str) -> int:
    """Says on standard error why a command cannot answer. Returns UNREADABLE."""
    print(f"{prog}: {plain(why)}", file=sys.stderr)  # noqa: T201
    return UNREADABLE
