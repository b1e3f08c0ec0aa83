"""Writes the page of the agent's settings from their docstrings: ``python -m tests.repo.settings_docs FILE``.

It stands beside the tests of the repository because only these may read the agent's own modules.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from floatscope import config
from floatscope.config import MonitorConfig

GENERATED = "<!-- written by tests.repo.settings_docs from agent/floatscope/config.py; do not edit -->"
INTRO = """# Settings of the agent

Everything that `floatscope.watch(model, optimizer, run="name", ...)` takes, by keyword. The callbacks and
one-liners of [the integrations](integrations.md) take the same. What is given as `None` counts as not
given. A wrong argument raises when `watch` is called, a wrong environment variable is reported and
ignored. Names that end in `_s` are in seconds, in `_bytes` in bytes; `_steps` are steps of the optimizer.
Settings of the server: [server-settings.md](server-settings.md)."""
SECTIONS = {
    "run": "The run and where it goes",
    "stats_every": "What is measured",
    "check_format": "FP8, formats and ranks",
    "diagnose": "Findings, captures, flight recorder",
    "spool": "Delivery",
}
"""First field of a section -> its title."""
LEFT_OUT = ("launch",)  # made from the environment, not an argument
UNSAID = {"mode": "`server` with a url, else `local`", "rank": "of the launcher, or `0`"}
"""What ``watch`` takes where the field's own default is not what counts."""
VARIABLES = {
    "FLOATSCOPE_URL": "`url`. With it `mode` is `server` by default",
    "FLOATSCOPE_TOKEN": "`token`",
    "FLOATSCOPE_RUN_ID": "`run_id`: identity of the run; the same id resumes it",
    "FLOATSCOPE_SPOOL_DIR": "`spool_dir`, also where `floatscope resend` looks",
    "FLOATSCOPE_COORDINATES": "`coordinates`, such as `dp=1,tp=0`",
    "FLOATSCOPE_PREFLIGHT": "`preflight`: a file that `floatscope preflight --json` wrote",
    "RANK": "rank, as torchrun says it",
    "LOCAL_RANK": "which process of its machine",
    "WORLD_SIZE": "number of ranks",
    "TORCHELASTIC_RUN_ID": "torchrun's job, from which the run id is made where none is given",
    "MASTER_ADDR": "with MASTER_PORT the same, if no launcher names its job",
    "MASTER_PORT": "see MASTER_ADDR",
    "SLURM_JOB_ID": "SLURM's job, the same after a requeue, from which the run id is made as above",
    "SLURM_PROCID": "rank, under SLURM",
    "SLURM_LOCALID": "which process of its machine, under SLURM",
    "SLURM_NTASKS": "number of ranks, under SLURM",
    "OMPI_COMM_WORLD_RANK": "rank, under Open MPI",
    "OMPI_COMM_WORLD_LOCAL_RANK": "which process of its machine, under Open MPI",
    "OMPI_COMM_WORLD_SIZE": "number of ranks, under Open MPI",
}
"""Environment variable -> what it sets."""


def page() -> str:
    """The whole page. Raises ValueError for a field without a docstring or a variable without a meaning."""
    said = docstrings()
    lines = [GENERATED, INTRO]
    for field in fields(MonitorConfig):
        if field.name in SECTIONS:
            lines += [
                "",
                f"## {SECTIONS[field.name]}",
                "",
                "| setting | type | default | what it does |",
                "|---|---|---|---|",
            ]
        if field.name not in LEFT_OUT:
            lines.append(_row(field, said))
    if unknown := variables_read() ^ VARIABLES.keys():
        raise ValueError(f"VARIABLES and the agent differ in {', '.join(sorted(unknown))}")
    lines += ["", "## Environment", "", "An argument of `watch` wins over its variable.", ""]
    lines += ["| variable | sets |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join(lines) + "\n"


def docstrings() -> Mapping[str, str]:
    """Name of a field of the agent's configuration -> the string below it in the source."""
    return docstrings_of(config, MonitorConfig.__name__)


def docstrings_of(module: ModuleType, name: str) -> Mapping[str, str]:
    """Name of a field of that class -> the string below it in the source."""
    tree = ast.parse(inspect.getsource(module))
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    found = {}
    for node, after in pairwise(body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[node.target.id] = " ".join(str(after.value.value).split())
    return found


def variables_read() -> set[str]:
    """Environment variables that the agent's configuration names, its only module that reads them."""
    constants = (
        n.value for n in ast.walk(ast.parse(inspect.getsource(config))) if isinstance(n, ast.Constant)
    )
    return {c for c in constants if isinstance(c, str) and c.isupper() and c.replace("_", "").isalpha()}


def _row(field: Field[Any], said: Mapping[str, str]) -> str:
    if field.name not in said:
        raise ValueError(f"MonitorConfig.{field.name} has no docstring")
    kind = str(field.type).replace("|", "\\|").replace("BriefFinding", "finding")
    text = said[field.name].replace("|", "\\|").replace("``", "`")
    return f"| `{field.name}` | {kind} | {UNSAID.get(field.name) or default_of(field)} | {text} |"


def default_of(field: Field[Any]) -> str:
    """The default as a reader would write it, with its unit."""
    value = field.default
    if field.default_factory is not MISSING:
        value = field.default_factory()
    if value is MISSING:
        return "required"
    if field.name.endswith("_bytes") and isinstance(value, int):
        return f"{value // 2**30} GiB" if value >= 2**30 else f"{value // 2**20} MiB"
    if field.name.endswith("_s") and isinstance(value, float):
        return f"{value:g} s"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{value}`"


def main(argv: Sequence[str]) -> int:
    """Writes the page to each file named."""
    for name in argv:
        Path(name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
