"""The ``floatscope`` command: finds the part of the product that does the work and hands over to it.

The parts live behind extras, so this module loads them late and by name (`importlib`); it and ``local.py``
are the only files that may. A command whose extra is not installed says which one it needs.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_USAGE = 2


@dataclass(frozen=True)
class Command:
    """One command:

    the module whose ``main(argv) -> int`` runs it, the extra it needs (empty: none), one line of help.
    """

    module: str
    extra: str
    help: str


COMMANDS = {
    "preflight": Command(
        "floatscope.preflight.cli",
        "",
        "check whether this machine and a model can train in FP8, before the run",
    ),
    "plan": Command(
        "floatscope_diagnostics.plan.cli",
        "diagnostics",
        "predict memory, step time and cost of a model in BF16 and in each FP8 recipe",
    ),
    "serve": Command(
        "floatscope_server.cli", "server", "start the server: ingest, live diagnosis, dashboard, alerts"
    ),
    "db": Command(
        "floatscope_server.dbtool.cli",
        "server",
        "look after a server's database: status, backup, verify, move, schema",
    ),
    "train": Command(
        "floatscope_trainer.cli",
        "trainer",
        "train the bundled model in any precision, with or without a fault",
    ),
    "replay": Command(
        "floatscope_trainer.replay.cli",
        "trainer",
        "run a step of a run of train again, without FP8 and with one layer without it",
    ),
    "demo": Command(
        "floatscope_trainer.demo.cli",
        "all",
        "train healthy and faulty runs against a server and show the verdicts",
    ),
    "diagnose": Command("floatscope_diagnostics.cli", "diagnostics", "say what went wrong in a training log"),
    "compare": Command(
        "floatscope_diagnostics.compare.cli",
        "diagnostics",
        "say how far a run is from a baseline, since when and where",
    ),
    "what-if": Command(
        "floatscope_diagnostics.whatif.cli",
        "diagnostics",
        "say what another number format would do to a run's tensors",
    ),
    "advise": Command(
        "floatscope_diagnostics.advisor.cli",
        "diagnostics",
        "name the layers of a run that should leave FP8, as settings to paste",
    ),
    "facts": Command(
        "floatscope_trainer.facts.cli",
        "trainer",
        "measure what is true of FP8 on this machine, one claim at a time",
    ),
    "recorder": Command(
        "floatscope_diagnostics.recorder.cli",
        "diagnostics",
        "say how a run died and what went wrong before, from its flight recorder",
    ),
    "import": Command(
        "floatscope_diagnostics.importing.cli",
        "diagnostics",
        "send a training log to a server as a run with all its steps",
    ),
    "export": Command(
        "floatscope.exporting.cli", "", "fetch a run from a server as a training log that diagnose reads"
    ),
    "alerts": Command("floatscope.alerts.cli", "", "list a server's alerts, and acknowledge or resolve one"),
    "resend": Command(
        "floatscope.resend.cli", "", "deliver what a run could not deliver before its process ended"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code; 2 for wrong usage or a missing extra."""
    args = list(sys.argv[1:] if argv is None else argv)
    _escape_what_does_not_fit()
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if args else EXIT_USAGE
    if args[0] in ("-V", "--version"):
        print(f"floatscope {importlib.import_module('floatscope').__version__}")
        return 0
    command = COMMANDS.get(args[0])
    if command is None:
        print(f"floatscope: there is no command {args[0]!r}\n\n{usage()}", file=sys.stderr)
        return EXIT_USAGE
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if _is_ours(error.name):
            raise
        print(missing_extra(args[0], command.extra, error.name), file=sys.stderr)
        return EXIT_USAGE
    try:
        code = int(module.main(args[1:]))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # what a shell reports
    except BrokenPipeError:  # whoever read our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"floatscope {args[0]}: nothing more can be written: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE


def _escape_what_does_not_fit() -> None:
    """A name that the encoding of the output lacks is written as \\xe9 or \\u6a21, as on standard error, in
    place of a traceback: Python's default for output of ASCII or another small encoding is to raise.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors == "strict":
        out.reconfigure(errors="backslashreplace")


def usage() -> str:
    """The text of ``floatscope --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: floatscope COMMAND [options]",
            "",
            "Watches low-precision (FP8) training runs and says what goes wrong, since when and where.",
            "",
            *lines,
            "",
            "floatscope COMMAND --help shows the options and examples of one command.",
        ]
    )


def missing_extra(name: str, extra: str, missing: str | None) -> str:
    """What a user reads whose installation lacks the packages of a command."""
    needs = f"floatscope {name} needs the package {missing!r}, which is not installed here"
    return f"{needs}: pip install 'floatscope[{extra}]'"


def _is_ours(module: str | None) -> bool:
    return module is not None and module.partition(".")[0].startswith("floatscope")


if __name__ == "__main__":
    sys.exit(main())
