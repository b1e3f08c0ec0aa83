"""The programs that are measured, the peers each in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PEERS = Path.home() / ".cache" / "floatscope" / "peers"
_OWN_IMPORTS = (
    "import numpy, pandas, floatscope_diagnostics.cli as c, floatscope_diagnostics.diagnose; "
    "from floatscope_diagnostics.readers.formats import readers; readers(); "
    "from floatscope_diagnostics.rules import load_rules; load_rules()"
)
_GRADSNITCH = (
    "import sys, gradsnitch\nfor f in gradsnitch.lint_csv(sys.argv[1]): print(f.code, f.severity, f.evidence)"
)


@dataclass(frozen=True)
class Tool:
    """reads: formats.  bare: command that only imports what ``command`` needs.  said: words of the line of
    its output that tells what was found."""

    name: str
    reads: tuple[str, ...]
    bare: list[str]
    command: Callable[[Path], list[str]]
    said: tuple[str, ...]


def tools() -> tuple[list[Tool], list[str]]:
    """floatscope and the peers that can be had, and why the others cannot."""
    own = [sys.executable, "-m", "floatscope.cli", "diagnose", "--fail-on", "never"]
    out = [
        Tool(
            "floatscope",
            ("csv", "jsonl", "megatron"),
            [sys.executable, "-c", _OWN_IMPORTS],
            lambda path: [*own, str(path)],
            ("CRITICAL", "WARNING", "WATCH", "HEALTHY"),
        )
    ]
    missing = []
    for name in ("gradsnitch", "losslint", "runmedic"):
        python = PEERS / name / "bin" / "python"
        why = _install(name, python)
        if why is not None:
            missing.append(f"{name} could not be installed: {why}")
            continue
        out.append(_peer(name, python))
    return out, missing


def _peer(name: str, python: Path) -> Tool:
    bare = [str(python), "-c", f"import {name}"]
    if name == "gradsnitch":
        run = [str(python), "-c", _GRADSNITCH]
        return Tool(name, ("csv",), bare, lambda path: [*run, str(path)], ("GS0",))
    word = {"losslint": "check", "runmedic": "diagnose"}[name]
    said = {"losslint": ("error", "warning", "info", "finding"), "runmedic": ("1. [", "Found", "No ")}[name]
    program = str(python.parent / name)
    return Tool(name, ("csv", "jsonl"), bare, lambda path: [program, word, str(path)], said)


def _install(name: str, python: Path) -> str | None:
    """None once the package can be imported, else the last line of what pip said."""
    if not python.exists():
        venv.create(python.parent.parent, with_pip=True)
    if subprocess.run([str(python), "-c", f"import {name}"], capture_output=True).returncode == 0:
        return None
    command = [str(python), "-m", "pip", "install", "--quiet", name]
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
