"""How a run ended, as its flight recorder and the fault handler's file beside it tell."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.runinfo import RunInfo, text
from floatscope.recorder_notes import PHASES, Ending, Now, fault_path, is_alive
from floatscope.recorder_reading import Recording

SILENT = (
    "the process ended without a word: killed (SIGKILL, often by the out-of-memory killer or the scheduler), "
    "os._exit, or the machine lost power"
)
FAULT_BYTES = 64 * 1024  # of the fault handler's file; the stacks of some hundred threads
FRESH_S = 30.0  # a sign of life younger than this, on another machine: the run may still go on
_FAULT = re.compile(r"Fatal Python error: ([^\n]{1,200})")
_SIGNALS = {
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}


@dataclass(frozen=True)
class Story:
    """What the recorder of one rank knows beside the steps.

    status: running, finished, failed, crashed.  ended: how, in a sentence.  signal: its name or "".  fault:
    text of the fault handler.  first, last: recorded steps.  late: steps that had ended, but whose values had
    not arrived, first and last.  damage: what could not be read.
    """

    path: str
    rank: int
    run_id: str
    info: RunInfo
    status: str
    ended: str
    signal: str
    ending: Ending | None
    now: Now | None
    fault: str
    first: int | None
    last: int | None
    steps: int
    late: tuple[int, int] | None
    versions: Mapping[str, str]
    host: str
    coordinates: Mapping[str, int]
    damage: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``; what is not known is null."""
        now, ending = self.now, self.ending
        return {
            "path": self.path,
            "rank": self.rank,
            "run_id": self.run_id or None,
            "name": self.info.name,
            "status": self.status,
            "ended": self.ended,
            "signal": self.signal or None,
            "exception": None
            if ending is None or not ending.kind
            else {"type": ending.kind, "message": ending.message, "traceback": ending.traceback},
            "fault": self.fault or None,
            "last_step_begun": None if now is None else now.step,
            "last_step_ended": None if now is None else now.ended,
            "phase": None if now is None else PHASES[now.phase],
            "last_sign_of_life": None if now is None else now.time,
            "last_batch": None if now is None or not now.data_id else now.data_id,
            "recorded": {"first_step": self.first, "last_step": self.last, "steps": self.steps},
            "values_not_arrived": None if self.late is None else list(self.late),
            "recipe": dict(self.info.recipe),
            "versions": dict(self.versions),
            "host": self.host or None,
            "coordinates": dict(self.coordinates),
            "damage": list(self.damage),
        }


def tell(path: str, recording: Recording, *, steps: tuple[int | None, int | None]) -> Story:
    """The story of a recording. steps: the first and the last recorded one."""
    description = recording.description
    fault = read_fault(path)
    status, ended, signal = how_it_ended(recording, fault=fault)
    damage = list(recording.notes)
    if recording.missing:
        damage.append(f"records that are missing or damaged: {recording.missing:,}")
    left_out = description.get("left_out")
    if isinstance(left_out, list) and left_out:
        damage.append("no room for all of the run's description: " + ", ".join(map(str, left_out[:20])))
    now, last = recording.now, steps[1]
    late = None
    if now is not None and now.ended is not None and last is not None and last < now.ended:
        late = (last + 1, now.ended)
    return Story(
        path=path,
        rank=recording.rank,
        run_id=_text(description.get("run_id")),
        info=info_of(recording),
        status=status,
        ended=ended,
        signal=signal,
        ending=recording.ending,
        now=now,
        fault=fault,
        first=steps[0],
        last=last,
        steps=recording.count,
        late=late,
        versions=_texts(description.get("versions")),
        host=_text(_mapping(description.get("process")).get("host")),
        coordinates=_coordinates(recording),
        damage=tuple(damage),
    )


def how_it_ended(recording: Recording, *, fault: str) -> tuple[str, str, str]:
    """Status, a sentence, and the signal if one is known."""
    ending = recording.ending or Ending()
    signal = ending.signal
    if ending.status is not None:
        return _known(ending.status), ending.reason or ending.status, signal
    if ending.kind:
        return "crashed", f"{ending.kind}: {ending.message}" if ending.message else ending.kind, signal
    found = _FAULT.search(fault)
    if found is not None:
        named = next((s for words, s in _SIGNALS.items() if found[1].startswith(words)), "")
        return "crashed", f"{named + ': ' if named else ''}{found[0]}", named
    if signal:
        return "failed", f"the process was told to end by {signal}", signal
    alive = is_alive(_mapping(recording.description.get("process")))
    age = float("inf") if recording.now is None else time.time() - recording.now.time
    if alive or (alive is None and age < FRESH_S):
        return "running", "it has not ended" if alive else "it wrote seconds ago and may still run", ""
    return "crashed", SILENT, ""


def info_of(recording: Recording) -> RunInfo:
    """What is known of the run; a description that cannot be is left out."""
    try:
        info = RunInfo.from_json(recording.description.get("run") or {})
    except ProtocolError:
        info = RunInfo()
    run_id = _text(recording.description.get("run_id"))
    return info.merged(RunInfo(extra={"run_id": run_id})) if run_id else info


def read_fault(path: str) -> str:
    """What the fault handler has written beside a recorder; empty if there is nothing."""
    try:
        with open(fault_path(Path(path)), "rb") as file:
            return file.read(FAULT_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""


def _coordinates(recording: Recording) -> dict[str, int]:
    """What the job said of the rank's place, or the probes found."""
    found = _mapping(info_of(recording).config.get("place"))
    told = {**found, **_mapping(recording.description.get("coordinates"))}
    return {str(k): v for k, v in told.items() if type(v) is int and k != "rank"}


def _known(status: str) -> str:
    return status if status in ("finished", "failed", "crashed") else "failed"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    try:
        return text(value, field="text")[:200]
    except ProtocolError:
        return ""


def _texts(value: object) -> dict[str, str]:
    return {_text(str(k)): _text(v) for k, v in _mapping(value).items()}
