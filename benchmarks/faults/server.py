"""``floatscope serve`` in a process that is killed and started again on the same data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.shifted_clock import ENVIRONMENT
from tests.server.live import TOKEN, Client, free_port

START_S = 60.0


@dataclass
class Server:
    """starts: how often it was started.  Its port stays the same."""

    data_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    pid: int | None = None
    starts: int = 0
    clock: Path | None = None  # the file of a shifted clock
    _nursery: subprocess.Popen[str] | None = None

    @property
    def log(self) -> Path:
        return self.data_dir.with_suffix(".log")

    @property
    def client(self) -> Client:
        return Client(self.port)

    def launch(self) -> int:
        """Starts it and does not wait until it answers; returns its pid."""
        command = ["--port", str(self.port), "--data-dir", str(self.data_dir), *self.arguments]
        environment = {"FLOATSCOPE_TOKEN": TOKEN, **self.environment}
        asked = {"start": command, "environment": environment, "log": str(self.log)}
        self.pid = self._ask(asked)
        self.starts += 1
        return self.pid

    def start(self, *, seconds: float = START_S) -> Client:
        """Starts it, again where it ends by itself (its database may be away), until it answers."""
        end = time.monotonic() + seconds
        self.launch()
        while not self.answers():
            if time.monotonic() > end:
                raise AssertionError(f"the server does not start: {self.log.read_text()[-2000:]}")
            if not self.alive():
                self.wait()
                time.sleep(0.1)
                self.launch()
            time.sleep(0.02)
        return self.client

    def answers(self) -> bool:
        try:
            return self.client.call("GET", "/healthz", timeout=5).status == 200
        except OSError:
            return False

    def alive(self) -> bool:
        """Whether the process still runs (one that nobody waited for yet does not)."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z"

    def kill(self) -> None:
        """kill -9: nothing gets a chance to be tidied up."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Asks it to stop and returns its exit code."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        code = self._ask({"wait": self.pid})
        self.pid = None
        return code

    def close(self) -> None:
        if self.pid is not None:
            self.kill()
        if self._nursery is not None:
            with self._nursery:  # closes its pipes, which ends it, and waits for that
                self._nursery = None

    def _ask(self, asked: object) -> int:
        if self._nursery is None:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.faults.nursery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | ({} if self.clock is None else {ENVIRONMENT: str(self.clock)}),
            )
        stdin, stdout = self._nursery.stdin, self._nursery.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        return int(stdout.readline())


@contextmanager
def served(data_dir: Path, *arguments: str, **environment: str) -> Iterator[Server]:
    """A server, not started yet, that is gone at the end whatever happened."""
    server = Server(data_dir, environment, arguments)
    try:
        yield server
    finally:
        server.close()


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has just ended
                continue
            parents.setdefault(parent, []).append(int(folder.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found
