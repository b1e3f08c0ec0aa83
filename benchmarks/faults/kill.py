"""kill -9 at random moments, of the server and of PostgreSQL, while steps come in; then all is checked."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.agent import agent
from benchmarks.faults.checks import check_messages, check_story, check_structure, settle
from benchmarks.faults.cluster import Cluster, cluster
from benchmarks.faults.senders import Lane, Load
from benchmarks.faults.server import Server, descendants, served
from benchmarks.faults.tally import Tally
from floatscope_server.database import Database
from tests.server.live import wait_for
from tests.server.slack import FakeSlack, slack

MOST_BATCHES = 10  # acknowledged between two kills, a random number up to that
ORPHANS_S = 60.0
LONGEST_LIFE_S = 6.0  # or after this time
KINDS = {
    "sqlite": {"server": 0.8, "server while it starts": 0.2},
    "postgresql": {
        "server": 0.25,
        "server while it starts": 0.05,
        "backend of PostgreSQL": 0.35,
        "other process of PostgreSQL": 0.1,
        "postmaster alone": 0.1,
        "all of PostgreSQL": 0.15,
    },
    "workers": {
        "worker": 0.35,
        "server": 0.1,
        "backend of PostgreSQL": 0.35,
        "postmaster alone": 0.05,
        "all of PostgreSQL": 0.15,
    },
}


@dataclass
class Scene:
    """What is killed. cluster: None on SQLite."""

    server: Server
    cluster: Cluster | None
    rng: random.Random
    tally: Tally

    def kill(self, kind: str) -> bool:
        """Kills once and brings back what does not come back by itself; whether anything was killed."""
        if kind == "server":
            assert self.server.pid is not None
            workers = descendants(self.server.pid)
            self.server.kill()
            self._wait_until_gone(workers)
            self.server.start()
        elif kind == "server while it starts":
            self.server.kill()
            self.server.launch()
            time.sleep(self.rng.random() * 0.8)
            self.server.kill()
            self.tally.add("kills: server")
            self.server.start()
        elif kind == "worker":
            assert self.server.pid is not None
            workers = [pid for pid in descendants(self.server.pid) if _is_worker(pid)]
            if not workers:
                return False
            os.kill(self.rng.choice(workers), signal.SIGKILL)
        else:
            return self._kill_database(kind)
        return True

    def _wait_until_gone(self, workers: list[int]) -> None:
        """Workers whose supervisor was killed hold its port until they have noticed and ended."""
        end = time.monotonic() + ORPHANS_S
        while any(_is_worker(pid) for pid in workers) and time.monotonic() < end:
            time.sleep(0.05)
        self.tally.holds(not any(map(_is_worker, workers)), "workers outlive the process that watched them")

    def _kill_database(self, kind: str) -> bool:
        assert self.cluster is not None
        if kind == "backend of PostgreSQL":
            return self.cluster.kill_backend(self.rng)
        if kind == "other process of PostgreSQL":
            return self.cluster.kill_helper(self.rng)
        if kind == "postmaster alone":
            self.cluster.kill_postmaster()
        else:
            self.cluster.kill_all()
        time.sleep(self.rng.random() * 0.3)
        self.cluster.start()
        return True


def main(args: argparse.Namespace, tally: Tally) -> None:
    """Runs what the arguments ask for on one database and checks it."""
    rng = random.Random(args.seed)
    folder = Path(tempfile.mkdtemp(prefix="floatscope-faults-"))
    try:
        with ExitStack() as stack:
            receiver = stack.enter_context(slack(*[(500, {}), (429, {"Retry-After": "1"})] * 3))
            environment = {
                "FLOATSCOPE_SLACK_WEBHOOK_URL": receiver.url,
                "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS": "1",
                "FLOATSCOPE_ALERT_GROUP_S": "1",
                "FLOATSCOPE_ALERT_FLAP_S": "0",
            }
            arguments: list[str] = []
            database = stack.enter_context(cluster()) if args.database == "postgresql" else None
            if database is not None:
                environment["FLOATSCOPE_DATABASE_URL"] = database.url
                arguments += ["--workers", str(args.workers)] if args.workers > 1 else []
            server = stack.enter_context(served(folder / "data", *arguments, **environment))
            _under_load(args, Scene(server, database, rng, tally), folder, receiver)
    except BaseException:
        print(f"  kept for a look: {folder}")
        raise
    if tally.broken:
        print(f"  kept for a look: {folder}")
    else:
        shutil.rmtree(folder)


def _under_load(args: argparse.Namespace, scene: Scene, folder: Path, receiver: FakeSlack) -> None:
    tally, server = scene.tally, scene.server
    server.start()
    lanes = [
        Lane("long", 1, None, rows=64),
        Lane("pairs", 2, 60),
        Lane("threes", 3, 25),
        Lane("short", 1, 20),
    ]
    load = Load(server.port, lanes, seed=args.seed, tally=tally, pause_s=args.pause_s)
    url = f"http://127.0.0.1:{server.port}"
    began = time.monotonic()
    with agent("agent", seed=args.seed, url=url, spool_dir=folder / "spool") as job:
        load.start()
        _kill_again_and_again(args, scene, began)
        if scene.cluster is not None:
            scene.cluster.wait()
        load.stop()
        job.stop(tally)
    tally.add("seconds under fire", round(time.monotonic() - began))
    wait_for(server.answers, seconds=60)
    opened = Database(_url(scene))
    try:
        settle(opened, tally)
        tally.holds(server.stop() == 0, "the server did not stop with 0")
        for story, ended in load.stories:
            acked = {rank: load.acked.get((story.run_id, rank), 0) for rank in range(story.ranks)}
            check_story(opened, story, ended=ended, acked=acked, tally=tally)
        job.check(opened, tally)
        check_messages(opened, receiver.got, tally=tally)
        check_structure(opened, tally=tally)
    finally:
        opened.close()
    if scene.cluster is not None:
        scene.cluster.run(
            *("pg_amcheck", "-h", "127.0.0.1", "-p", str(scene.cluster.port), "-U", "floatscope"),
            *("--install-missing", "--heapallindexed", "postgres"),
        )
        scene.cluster.stop()
        scene.cluster.run("pg_checksums", "--check", "-D", scene.cluster.data)
        tally.add("pg_amcheck and pg_checksums found nothing")
    _read_log(server, tally)


def _kill_again_and_again(args: argparse.Namespace, scene: Scene, began: float) -> None:
    kinds = KINDS["workers" if args.workers > 1 else args.database]
    killed, end = 0, began + args.minutes * 60
    while killed < args.kills and time.monotonic() < end:
        _wait_for_progress(scene)
        kind = scene.rng.choices(list(kinds), weights=list(kinds.values()))[0]
        if scene.kill(kind):
            killed += 1 + (kind == "server while it starts")
            scene.tally.add(f"kills: {kind}")
    scene.tally.add("kills", killed)
    scene.tally.add("starts of the server", scene.server.starts)


def _wait_for_progress(scene: Scene) -> None:
    """Waits for a random number of batches, so that kills hit work, and then for a random part of another."""
    wanted = scene.tally["batches acknowledged"] + scene.rng.randrange(MOST_BATCHES + 1)
    end = time.monotonic() + LONGEST_LIFE_S
    while scene.tally["batches acknowledged"] < wanted and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(scene.rng.random() * 0.1)


def _read_log(server: Server, tally: Tally) -> None:
    text = server.log.read_text(errors="replace")
    tally.add("engines brought back from what is stored", text.count("was brought back"))
    for fault in ("Server fault", "diagnosis of run", "could not be stored"):
        tally.add(f"log lines with '{fault}'", text.count(fault))


def _url(scene: Scene) -> str:
    if scene.cluster is None:
        return f"sqlite:///{scene.server.data_dir / 'floatscope.db'}"
    return scene.cluster.url.replace("postgresql://", "postgresql+psycopg://")


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
