"""Follows logs that grow: reads and judges them again when they have grown, and says what is new.

Reading anew is right for every format (gzip, JSON, several runs), and the identity of a finding is the same
in each reading. It is rare enough to cost a twentieth of a core.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from types import FrameType
from typing import BinaryIO, TextIO

from floatscope_diagnostics.diagnose import Baseline, Diagnosed, diagnose_paths
from floatscope_diagnostics.gather import Reading, Unread, files_of
from floatscope_diagnostics.reports import words
from floatscope_diagnostics.reports.numbers import count, number
from floatscope_diagnostics.reports.terminal import Style, plain, style_of
from floatscope_diagnostics.rule_settings import RuleSettings
from floatscope_diagnostics.verdict import Judged

SHARE_OF_A_CORE = 0.05  # that watching may cost
POLL_S = 0.5  # a look at the size of a file costs microseconds
SHORTEST_S = 1.0  # between two readings
COPY_BYTES = 1 << 16
SIGNS = {"critical": "▲", "warning": "▲", "info": "●"}

Key = tuple[str, int, str]
Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class Ends:
    """When watching ends by itself, s; None: not for this reason."""

    after_s: float | None = None
    idle_s: float | None = None


@dataclass(frozen=True)
class Sinks:
    """told: takes the lines about findings.  status: takes the quiet line on a terminal."""

    told: TextIO
    status: TextIO


def watch(
    paths: Sequence[str],
    *,
    reading: Reading,
    baseline: Baseline | None,
    ends: Ends,
    told: TextIO,
    status: TextIO | None = None,
    settings: RuleSettings | None = None,
) -> tuple[list[Diagnosed], list[Unread]]:
    """Follows the inputs until Ctrl-C, the end of standard input or ``ends``; returns the last diagnosis."""
    with _standard_input(paths) as (followed, piped), _stopped_by_signals() as stop:
        watcher = _Watcher(followed, piped, reading, baseline, Sinks(told, status or sys.stderr), settings)
        return watcher.run(ends, stop)


class _Watcher:
    def __init__(
        self,
        paths: Sequence[str],
        piped: _Pipe | None,
        reading: Reading,
        baseline: Baseline | None,
        sinks: Sinks,
        settings: RuleSettings | None,
    ) -> None:
        self._paths = paths
        self._piped = piped
        self._reading = reading
        self._baseline = baseline
        self._sinks = sinks
        self._settings = settings
        self._style = style_of(sinks.told, os.environ)
        self._known: dict[Key, Judged] = {}
        self._done: list[Diagnosed] = []
        self._unread: list[Unread] = []
        self._seen: Signature | None = None
        self._gone: set[str] = set()
        self._drawn = 0

    def run(self, ends: Ends, stop: threading.Event) -> tuple[list[Diagnosed], list[Unread]]:
        begun = grown = time.monotonic()
        not_before = begun
        while True:
            now = time.monotonic()
            over = self._is_over(ends, stop, now, begun=begun, grown=grown)
            signature = self._look()
            if signature != self._seen and (now >= not_before or over):
                grown = now
                not_before = now + self._read(signature)
            if over:
                self._clear()
                return self._done, self._unread
            self._show_status(time.monotonic() - grown)
            stop.wait(POLL_S if ends.after_s is None else min(POLL_S, max(ends.after_s, 0.01)))

    def _look(self) -> Signature:
        """The files as they are; one that is gone stands as it was last, until it is there again."""
        now = {entry[0]: entry for entry in _signature(self._paths)}
        gone = [entry for entry in self._seen or () if entry[0] not in now]
        for path in sorted({entry[0] for entry in gone} - self._gone):
            self._say(f"{plain(path)} is gone: what it held counts until it is there again")
        self._gone = {entry[0] for entry in gone}
        return tuple(sorted((*now.values(), *gone)))

    def _is_over(self, ends: Ends, stop: threading.Event, now: float, *, begun: float, grown: float) -> bool:
        """Asked before the last reading, so that nothing written before the end is missed."""
        late = ends.after_s is not None and now - begun >= ends.after_s
        idle = ends.idle_s is not None and now - grown >= ends.idle_s
        return stop.is_set() or late or idle or (self._piped is not None and self._piped.ended.is_set())

    def _read(self, signature: Signature) -> float:
        """Reads and judges; returns the seconds to leave until the next time."""
        if self._seen is not None:
            self._say_what_was_replaced(self._seen, signature)
        self._seen = signature
        began, used = time.monotonic(), time.process_time()
        done, unread = diagnose_paths(
            self._paths, baseline=self._baseline, reading=self._reading, settings=self._settings
        )
        self._done = [_labelled(d, self._piped) for d in done]
        self._unread = [replace(u, path="-") if self._is_pipe(u.path) else u for u in unread]
        self._tell()
        cost = max(time.process_time() - used, 0.0)
        took = time.monotonic() - began
        return max(SHORTEST_S, took + cost * (1.0 / SHARE_OF_A_CORE - 1.0))

    def _is_pipe(self, path: str) -> bool:
        return self._piped is not None and path == self._piped.path

    def _say_what_was_replaced(self, before: Signature, now: Signature) -> None:
        old = {path: (inode, size) for path, inode, size, _ in before}
        for path, inode, size, _ in now:
            if path in old and (old[path][0] != inode or old[path][1] > size):
                self._say(f"{plain(path)} was rotated or truncated: what it held before is no longer judged")
                self._known = {k: v for k, v in self._known.items() if k[0] != path}

    def _tell(self) -> None:
        """Says what is new or changed since the last reading."""
        names = words.names_of(self._done)
        now: dict[Key, Judged] = {}
        for d, name in zip(self._done, names, strict=True):
            for judged in d.verdict.findings:
                if judged.state != "replaced":
                    key = (d.verdict.source.path or "", d.number, judged.id)
                    now[key] = judged
                    self._tell_of(judged, self._known.get(key), name if len(names) > 1 else "")
        for key, judged in self._known.items():
            if key not in now:
                self._say(f"● no longer found: {plain(judged.finding.summary)}")
        self._known = now

    def _tell_of(self, judged: Judged, before: Judged | None, name: str) -> None:
        f = judged.finding
        change = _change(judged, before)
        if change is None:
            return
        where = f"{name}: " if name else ""
        sign = self._style.paint(self._style.fit(SIGNS[f.severity]) + f" {f.severity}{change}", f.severity)
        self._say(f"{sign}  {where}step {f.onset:,}: {plain(f.summary)} ({words.sure(f)})")

    def _say(self, text: str) -> None:
        self._clear()
        time_of_day = datetime.now().astimezone().strftime("%H:%M:%S")
        self._sinks.told.write(f"{self._style.paint(time_of_day, 'faint')}  {self._style.fit(text)}\n")
        self._sinks.told.flush()

    def _show_status(self, quiet_s: float) -> None:
        """One line that is drawn over, only on a terminal."""
        if not self._sinks.status.isatty():
            return
        self._clear()
        line = _status(self._done, self._unread, len(self._known), quiet_s)
        line = line[: style_of(self._sinks.status, os.environ).width - 1]
        self._sinks.status.write(Style(colour=self._style.colour).paint(line, "faint"))
        self._sinks.status.flush()
        self._drawn = len(line)

    def _clear(self) -> None:
        if self._drawn:
            self._sinks.status.write("\r" + " " * self._drawn + "\r")
            self._sinks.status.flush()
            self._drawn = 0


def _change(judged: Judged, before: Judged | None) -> str | None:
    """What to say beside the severity; None if there is nothing new."""
    f = judged.finding
    if before is None:
        return ""
    b = before.finding
    if judged.state == "recovered" and before.state != "recovered":
        return ", over now"
    if f.severity != b.severity:
        return f", was {b.severity}"
    if (f.cause, f.kind) != (b.cause, b.kind):
        return f", was {b.cause}"
    return None


def _status(done: Sequence[Diagnosed], unread: Sequence[Unread], known: int, quiet_s: float) -> str:
    if not done:
        why = plain(unread[0].error) if unread else "nothing written yet"
        return f"watching: {why}"
    d = done[-1]
    loss = d.curves.series.get("loss")
    last = f", loss {number(loss.last_value)}" if loss is not None else ""
    runs = f"{count(len(done), 'run')}, " if len(done) > 1 else ""
    step = d.verdict.source.last_step
    return (
        f"watching: {runs}step {0 if step is None else step:,}{last}, {count(known, 'finding')}, grew "
        f"{quiet_s:.0f} s ago. Ctrl-C ends with the report"
    )


def _signature(paths: Sequence[str]) -> Signature:
    """Name, inode, size and time of each file there is."""
    found = []
    for path in files_of(paths):
        with contextlib.suppress(OSError, ValueError):
            info = os.stat(path)
            found.append((path, info.st_ino, info.st_size, info.st_mtime_ns))
    return tuple(found)


def _labelled(d: Diagnosed, piped: _Pipe | None) -> Diagnosed:
    """A run that came by standard input is called so."""
    if piped is None or d.verdict.source.path != piped.path:
        return d
    return replace(d, verdict=replace(d.verdict, source=replace(d.verdict.source, path="-")))


@dataclass(frozen=True)
class _Pipe:
    """Standard input on its way into a file. ended: it was closed."""

    path: str
    ended: threading.Event


@contextmanager
def _standard_input(paths: Sequence[str]) -> Iterator[tuple[list[str], _Pipe | None]]:
    """The paths with ``-`` replaced by a temporary file that takes standard input as it comes."""
    if "-" not in paths:
        yield list(paths), None
        return
    with tempfile.NamedTemporaryFile(prefix="floatscope-", suffix=".log") as spool:
        pipe = _Pipe(spool.name, threading.Event())
        source: BinaryIO = sys.stdin.buffer
        threading.Thread(target=_copy, args=(source, spool, pipe.ended), daemon=True).start()
        yield [spool.name if path == "-" else path for path in paths], pipe


def _copy(source: BinaryIO, spool: tempfile._TemporaryFileWrapper[bytes], ended: threading.Event) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed, or the disk is full: what is there is judged
        while data := os.read(source.fileno(), COPY_BYTES):
            spool.write(data)
            spool.flush()
    ended.set()


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C interrupts at once."""
    stop = threading.Event()

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before: Mapping[int, Callable[..., object] | int | None] = {}
    if threading.current_thread() is threading.main_thread():
        before = {n: signal.signal(n, asked) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
