"""A process that has loaded the server's program and forks one that serves whenever it is asked to.

A start takes a fraction of a second instead of seconds, so that hundreds of them fit into minutes. The
process that serves is a real one: it opens the database, listens, and can be killed with -9.

Lines of JSON on standard input, {"start": arguments, "environment": {...}, "log": path} or {"wait": pid}; the
answer to each is one line, the pid or the exit code (minus the signal's number).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.faults import shifted_clock

if shifted_clock.ENVIRONMENT in os.environ:
    shifted_clock.install(Path(os.environ[shifted_clock.ENVIRONMENT]))

from floatscope_server import cli  # after the clock, which its modules keep a reference to


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            print(_start(asked), flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)


def _start(asked: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for theirs, ours in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(theirs, ours)
        for name in [name for name in os.environ if name.startswith("FLOATSCOPE_")]:
            del os.environ[name]
        os.environ.update(asked["environment"])
        code = cli.main(asked["start"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing of the parent's is tidied up here


if __name__ == "__main__":
    main()
