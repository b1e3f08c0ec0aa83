"""A PostgreSQL whose processes are killed: one backend, the postmaster alone, or all at once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.faults.server import descendants
from tests.server import postgres
from tests.server.live import free_port, wait_for

START_S = 60.0


class Cluster:
    """One database server with durable commits and checksums on its pages."""

    def __init__(self) -> None:
        found = postgres.programs()
        if found is None:
            raise SystemExit(postgres.WHAT_TO_DO)
        self.programs = found
        self.folder = Path(tempfile.mkdtemp(prefix="floatscope-faults-pg-"))
        self.port = free_port()
        self.user = self._owner()
        self._postmaster: subprocess.Popen[bytes] | None = None
        made = ["-D", self.data, "-U", "floatscope", "-A", "trust", "-E", "UTF8", "--data-checksums"]
        self.run("initdb", *made)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        return f"postgresql://floatscope@127.0.0.1:{self.port}/postgres"

    def run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs; AssertionError if it fails."""
        done = subprocess.run(
            [self.programs / program, *map(str, arguments)],
            capture_output=True, text=True, user=self.user, cwd="/", check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{program}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done

    def start(self) -> None:
        """Starts it and waits until it answers; what outlived a killed postmaster must end first."""
        end = time.monotonic() + START_S
        while True:
            self._launch()
            assert self._postmaster is not None
            while self._postmaster.poll() is None:
                if self.answers():
                    return
                assert time.monotonic() < end, "PostgreSQL does not come back"
                time.sleep(0.02)
            assert time.monotonic() < end, f"PostgreSQL does not start: {self.log_tail()}"
            time.sleep(0.1)

    def kill_backend(self, rng: random.Random) -> bool:
        """kill -9 of one process that serves a connection; PostgreSQL ends all others and recovers."""
        try:
            with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as c:
                query = (
                    "select pid from pg_stat_activity where backend_type = 'client backend' "
                    "and application_name like 'floatscope%' order by pid"
                )
                pids = [row[0] for row in c.execute(query).fetchall()]
        except psycopg.OperationalError:
            return False
        return bool(pids) and _kill(rng.choice(pids))

    def kill_helper(self, rng: random.Random) -> bool:
        """kill -9 of a process of PostgreSQL's own: checkpointer, writer, autovacuum."""
        assert self._postmaster is not None
        own = []
        for pid in descendants(self._postmaster.pid):
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if any(name in title for name in (b"checkpointer", b"writer", b"autovacuum")):
                own.append(pid)
        return bool(own) and _kill(rng.choice(own))

    def kill_postmaster(self) -> None:
        """kill -9 of the postmaster alone; the others notice and end."""
        assert self._postmaster is not None
        self._postmaster.send_signal(signal.SIGKILL)
        self._postmaster.wait()

    def kill_all(self) -> None:
        """kill -9 of every process at once, as when the machine's memory killer is at work."""
        assert self._postmaster is not None
        everyone = [self._postmaster.pid, *descendants(self._postmaster.pid)]
        for pid in everyone:
            _kill(pid)
        self._postmaster.wait()

    def stop(self) -> None:
        """Stops it in good order, so that its files can be looked at."""
        if self._postmaster is not None and self._postmaster.poll() is None:
            self._postmaster.send_signal(signal.SIGINT)
            self._postmaster.wait(timeout=60)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def wait(self) -> None:
        wait_for(self.answers, seconds=START_S)

    def log_tail(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-1500:]

    def close(self) -> None:
        if self._postmaster is not None and self._postmaster.poll() is None:
            self.kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        command: list[str | Path] = [self.programs / "postgres", "-D", self.data, *options.split()]
        with (self.folder / "log").open("ab") as log:
            self._postmaster = subprocess.Popen(
                command, stdout=log, stderr=log, user=self.user, cwd=self.folder, start_new_session=True
            )

    def _owner(self) -> str | None:
        if os.getuid() != 0:
            return None
        for name in postgres.UNPRIVILEGED:
            try:
                shutil.chown(self.folder, name)
            except LookupError:
                continue
            return name
        raise AssertionError(f"none of the users {postgres.UNPRIVILEGED} exists to run PostgreSQL as")


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A database server that is started already."""
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.close()


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
