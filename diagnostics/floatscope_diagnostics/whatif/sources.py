"""Answers a question about a run, a log or a file of values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from floatscope.api import Server
from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.whatif.document import TensorWhatIf
from floatscope_diagnostics.whatif.flags import Flag
from floatscope_diagnostics.whatif.log_reading import read_log
from floatscope_diagnostics.whatif.measure import measured
from floatscope_diagnostics.whatif.selecting import Selection, check_found
from floatscope_diagnostics.whatif.server_reading import read_server
from floatscope_diagnostics.whatif.stored import what_if
from floatscope_diagnostics.whatif.values_files import is_values_file, names_in, read_values
from floatscope_diagnostics.whatif.variant import Variant

_RUN_ID = re.compile(f"{RUN_ID_PATTERN}\\Z")


@dataclass(frozen=True)
class Asked:
    """name: of a file or run.  server: where run ids are looked up, None for files only.  is_id: never look
    for a file."""

    name: str
    selection: Selection
    wanted: Sequence[Variant]
    server: Server | None = None
    is_id: bool = False


@dataclass(frozen=True)
class Answered:
    """What was found out.  source: "histogram" are predictions, "sample" true casts."""

    run: str
    tensors: tuple[TensorWhatIf, ...]
    source: Literal["histogram", "sample"]
    notes: tuple[str, ...] = ()


def ask(asked: Asked) -> Answered:
    """The answer. Raises UnreadableLog with what to do."""
    path = Path(asked.name)
    is_there = not asked.is_id and path.exists()
    if is_there and is_values_file(path):
        return _of_values(path, asked)
    if not is_there and asked.server is None:
        raise UnreadableLog("no such file, and no server to ask for a run of this id: --server URL")
    if is_there:
        found = read_log(asked.name, asked.selection)
    elif asked.server is not None and _RUN_ID.match(asked.name):
        found = read_server(asked.name, asked.server, asked.selection)
    else:
        raise UnreadableLog("is neither a file nor a run id (letters, digits, . _ -; at most 128)")
    tensors = tuple(
        what_if(
            one.name,
            one.counts,
            one.stats,
            one.facts,
            step=one.step,
            stats_step=one.stats_step,
            variants=asked.wanted,
        )
        for one in found.tensors
    )
    return Answered(found.run, tensors, "histogram", (*_steps(asked.selection, tensors), *found.notes))


def _steps(selection: Selection, tensors: Sequence[TensorWhatIf]) -> list[str]:
    steps = sorted({one.step for one in tensors if one.step is not None})
    if selection.step is None or steps == [selection.step]:
        return []
    when = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return [f"Histograms are sampled: those nearest to step {selection.step} are of {when}."]


def _of_values(path: Path, asked: Asked) -> Answered:
    if asked.selection.step is not None:
        raise UnreadableLog("a file of values has no steps: leave --step out")
    names = names_in(path)
    chosen = tuple(name for name in names if asked.selection.takes(name))
    check_found(chosen, names, asked.selection)
    tensors = []
    for one in read_values(path, chosen):
        found = measured(one.values, asked.wanted, whole_amax=one.whole_amax)
        flags = list(found.flags)
        if one.every > 1:
            flags.append(Flag("rows_sampled", f"About one value in {one.every} was cast, in whole rows."))
        tensors.append(TensorWhatIf(one.name, found.found, tuple(flags), amax=found.amax))
    return Answered(path.name, tuple(tensors), "sample", ("Measured by casting the stored values.",))
