"""Trains many runs in a few worker processes, forks after the run they start from."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

STOP_TIMEOUT_S = 10.0
WORKER = (sys.executable, "-m", "floatscope_trainer.demo.worker")
USAGE_EXIT = 2  # `floatscope train` was called wrongly


class PoolError(RuntimeError):
    """A worker broke; the message says where its output is."""


@dataclass(frozen=True)
class Job:
    """One run.

    commands: arguments of `floatscope train`; two for a run that is resumed.  after: name of the run
    that must be over before, or None.
    """

    run: str
    commands: tuple[tuple[str, ...], ...]
    after: str | None = None


class Watcher(Protocol):
    """Is told what happens, in the caller's thread."""

    def start(self, run: str) -> None: ...
    def step(self, run: str, *, step: int, loss: float) -> None: ...
    def end(self, run: str, *, code: int) -> None: ...


def train_all(
    jobs: Sequence[Job], *, workers: int, env: Mapping[str, str], log: Path, watcher: Watcher
) -> None:
    """Trains every job, each as soon as a worker is idle and the run it comes after is over.

    env: of the workers.  log: where what they print goes. Raises PoolError if a worker dies or a run cannot
    start.
    """
    waiting = list(jobs)
    over: set[str] = set()
    news: News = queue.Queue()
    with log.open("ab") as output:
        crew = [_Worker(news, env=env, output=output) for _ in range(min(workers, len(jobs)))]
    idle = list(crew)
    try:
        while waiting or len(idle) < len(crew):
            ready = [job for job in waiting if job.after is None or job.after in over]
            for job, worker in zip(ready, tuple(idle), strict=False):
                waiting.remove(job)
                idle.remove(worker)
                worker.start(job)
                watcher.start(job.run)
            worker, message = news.get()
            if message is None:
                raise PoolError(f"a training process ended by itself (see {log})")
            run = message["run"]
            if "exit" not in message:
                watcher.step(run, step=int(message["step"]), loss=float(message["loss"]))
                continue
            if message["exit"] == USAGE_EXIT:
                raise PoolError(f"run {run} could not be started (see {log})")
            over.add(run)
            idle.append(worker)
            watcher.end(run, code=int(message["exit"]))
    finally:
        for worker in crew:
            worker.stop()


class _Worker:
    """One process and the thread that reads from it."""

    def __init__(self, news: News, *, env: Mapping[str, str], output: IO[bytes]) -> None:
        self._news = news
        self._process = subprocess.Popen(  # noqa: S603  our own program
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=dict(env),
            start_new_session=True,  # Ctrl-C is for the demo, which then stops the workers itself
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, job: Job) -> None:
        """Hands over a job."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"run": job.run, "commands": job.commands}).encode() + b"\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Ends the process; a run under way is cut off."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # closing flushes, and nobody reads any more
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._news.put((self, json.loads(line)))
        self._news.put((self, None))


News = queue.Queue[tuple[_Worker, dict[str, Any] | None]]
"""(from whom, message); None when the process has ended."""
