"""Captures: the offending batch and the random states before it, saved so that its step can be run again.

The training thread keeps the last steps in memory; a finding, a crash or the user has one of them written by
a thread of its own, which may wait for a device.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from floatscope.guard import Guard
from floatscope.protocol.capture_folder import BATCH_PREFIX, INFO_FILE, TENSORS_FILE, CaptureInfo
from floatscope.protocol.judgement import BriefFinding
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps

HELD_STEPS = 256  # a finding comes seconds after its step
HELD_BYTES = 64 * 2**20  # of all held batches together; the newest step's first is held whatever its size
LAST_WRITE_S = 5.0  # longest wait for a capture that is being written when the run ends


class Kept(Protocol):
    """What a keeper holds of one step (``probes.batch_keeper.Kept``)."""

    values: dict[str, Any]
    left_out: dict[str, str]

    @property
    def nbytes(self) -> int: ...
    @property
    def random(self) -> dict[str, Any]: ...
    def write_tensors(self, path: Path) -> None: ...


@dataclass(frozen=True)
class Keeper:
    """How batches are kept: ``start`` takes the random states, ``add`` a micro-batch."""

    start: Callable[[], Kept]
    add: Callable[..., None]


@dataclass(eq=False)
class _Held:
    step: int
    kept: Kept
    data_ids: list[int | str | None] = field(default_factory=list)


class Captures:
    """Holds the last steps of one rank and writes those asked for.

    folder: where captures go, one folder each.  most: captures saved by findings and crashes.
    """

    def __init__(
        self,
        folder: Path,
        keeper: Keeper,
        *,
        run_id: str,
        rank: int,
        info: Callable[[], RunInfo],
        most: int,
        guard: Guard,
    ) -> None:
        self._folder = folder
        self._keeper = keeper
        self._run_id = run_id
        self._rank = rank
        self._info = info
        self._left = most
        self._guard = guard
        self._holding = guard.area("keeping batches", loses="captures of steps")
        self._writing = guard.area("writing a capture", loses="captures of steps")
        self._held: deque[_Held] = deque()
        self._bytes = 0
        self._asked: set[str] = set()
        self._threads: list[threading.Thread] = []

    def hold(self, batch: Any, *, step: int, data_id: int | str | None) -> None:
        """Keeps a micro-batch of a step. Called before its forward pass."""
        if self._holding.tripped:
            return
        with self._holding:
            if not self._held or self._held[-1].step != step:
                self._make_room()
                self._held.append(_Held(step, self._keeper.start()))
                self._bytes += self._held[-1].kept.nbytes
            held = self._held[-1]
            before, number = held.kept.nbytes, len(held.data_ids)
            if number == 0 or before <= HELD_BYTES:
                self._keeper.add(held.kept, batch, number=number)
            else:  # a loop lets go of each micro-batch, and so does its memory
                left = f"the micro-batches before it have {before:,} bytes, more than {HELD_BYTES:,}"
                held.kept.left_out[f"{BATCH_PREFIX}{number}"] = left
            held.data_ids.append(data_id)
            self._bytes += held.kept.nbytes - before

    def _make_room(self) -> None:
        while self._held and (len(self._held) >= HELD_STEPS or self._bytes > HELD_BYTES):
            self._bytes -= self._held.popleft().kept.nbytes

    def on_finding(self, finding: BriefFinding) -> None:
        """Saves the step where a warning or worse began, once per finding, if it is still held.

        One that is over counts too: a fault of a single step has mostly passed when it is first heard of.
        """
        if not finding.counts or finding.id in self._asked or self._left <= 0:
            return
        self._asked.add(finding.id)
        step = finding.onset_step
        held = None if step is None else next((one for one in self._held if one.step == step), None)
        if held is not None:
            self._left -= 1
            self._start(held, reason=f"finding {finding.cause}", finding=finding.to_json())

    def save(self, reason: str, step: int | None = None) -> Path | None:
        """Saves a held step, by default the last. Returns the folder it will be in, None if not held."""
        held = next((one for one in reversed(self._held) if step is None or one.step == step), None)
        return None if held is None else self._start(held, reason=reason, finding=None)

    def close(self, findings: Sequence[BriefFinding], *, crash: str | None) -> None:
        """Saves what the end of the run asks for, waits a bounded time for it, and lets the batches go.

        findings: those that came at the very end.  crash: what ended the process, None if nothing did.
        """
        for finding in findings:
            self.on_finding(finding)
        if crash is not None and self._held and self._left > 0:
            self._start(self._held[-1], reason=crash, finding=None)
        deadline = time.monotonic() + LAST_WRITE_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._held.clear()

    def _start(self, held: _Held, *, reason: str, finding: Mapping[str, Any] | None) -> Path:
        path = self._folder / f"step{held.step}-rank{self._rank}"
        info = CaptureInfo(
            run_id=self._run_id,
            rank=self._rank,
            step=held.step,
            time=time.time(),
            reason=reason,
            finding=finding,
            data_ids=tuple(held.data_ids),
            left_out=dict(held.kept.left_out),
            values=dict(held.kept.values),
            random=held.kept.random,
            run={key: value for key, value in self._info().to_json().items() if key != "tensors"},
        )
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(
            target=self._write, args=(path, held.kept, info), name="floatscope-capture", daemon=True
        )
        thread.start()
        self._threads.append(thread)
        return path

    def _write(self, path: Path, kept: Kept, info: CaptureInfo) -> None:
        with self._writing:
            unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
            try:
                unfinished.parent.mkdir(parents=True, exist_ok=True)
                unfinished.mkdir(mode=0o700)  # what a model is trained on is nobody else's business
                kept.write_tensors(unfinished / TENSORS_FILE)
                (unfinished / INFO_FILE).write_text(dumps(info.to_json()) + "\n", encoding="utf-8")
                if path.exists():
                    shutil.rmtree(path)
                os.replace(unfinished, path)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
            self._guard.say(f"kept the batch of step {info.step} and its random states in {path}")
