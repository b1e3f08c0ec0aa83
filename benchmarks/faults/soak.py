"""Some minutes of everything at once: runs, rewriting, deletes, alerts, reads; what grows is printed."""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.checks import check_messages, check_story, check_structure, settle
from benchmarks.faults.memory import descriptors, rss_mib, threads
from benchmarks.faults.senders import Lane, Load
from benchmarks.faults.server import Server, served
from benchmarks.faults.story import Story
from benchmarks.faults.tally import Tally
from floatscope_server.database import Database
from tests.server.slack import slack

LOOK_S = 5.0
READ_PAUSE_S = 0.05
DELETE_EVERY_S = 3.0
SETTLED = 0.25  # share of the time after which growth is measured
GROWTH_MIB = 200
GROWTH_DESCRIPTORS = 60
GROWTH_THREADS = 60
MOST_WAL_MIB = 128


@dataclass
class Look:
    """The process at one moment."""

    at_s: float
    rss_mib: int
    descriptors: int
    threads: int
    wal_mib: float
    read_ms: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        cut = statistics.quantiles(self.read_ms, n=20) if len(self.read_ms) > 1 else [0.0] * 19
        return (
            f"  {self.at_s:5.0f} s: {self.rss_mib} MiB, {self.descriptors} descriptors, "
            f"{self.threads} threads, log {self.wal_mib:.0f} MiB, "
            f"reads {cut[9]:.0f} ms median, {cut[18]:.0f} ms p95 of {len(self.read_ms)}"
        )


def main(args: argparse.Namespace, tally: Tally) -> None:
    """Runs for ``--minutes``."""
    folder = Path(tempfile.mkdtemp(prefix="floatscope-soak-"))
    with slack() as receiver:
        environment = {
            "FLOATSCOPE_SLACK_WEBHOOK_URL": receiver.url,
            "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS": "1",
            "FLOATSCOPE_ALERT_GROUP_S": "1",
            "FLOATSCOPE_ALERT_FLAP_S": "0",
        }
        with served(folder / "data", **environment) as server:
            server.start()
            lanes = [Lane("long", 1, None, rows=64), Lane("pairs", 2, 60), Lane("threes", 3, 30)]
            lanes += [Lane(f"short{n}", 1, 12) for n in range(4)]
            load = Load(server.port, lanes, seed=args.seed, tally=tally, pause_s=args.pause_s)
            load.start()
            deleted: set[str] = set()
            looks = _watch(args, server, load, deleted, tally)
            load.stop()
            _judge(looks, tally)
            database = Database(f"sqlite:///{server.data_dir / 'floatscope.db'}")
            settle(database, tally)
            tally.holds(server.stop() == 0, "the server did not stop with 0")
            _check(database, load, deleted, tally)
            if not deleted:
                check_messages(database, receiver.got, tally=tally)
            check_structure(database, tally=tally)
            database.close()
    if not tally.broken:
        shutil.rmtree(folder)


def _check(database: Database, load: Load, deleted: set[str], tally: Tally) -> None:
    for story, ended in load.stories:
        if story.run_id in deleted:
            continue
        acked = {rank: load.acked.get((story.run_id, rank), 0) for rank in range(story.ranks)}
        check_story(database, story, ended=ended, acked=acked, tally=tally)


def _watch(
    args: argparse.Namespace, server: Server, load: Load, deleted: set[str], tally: Tally
) -> list[Look]:
    rng = random.Random(args.seed)
    began, looks = time.monotonic(), []
    reads: list[float] = []
    ended = threading.Event()
    others = [
        threading.Thread(
            target=_repeatedly, args=(ended, READ_PAUSE_S, lambda: _read(server, load, rng, reads, tally))
        ),
        threading.Thread(
            target=_repeatedly, args=(ended, DELETE_EVERY_S, lambda: _delete(server, load, deleted, tally))
        ),
    ]
    for thread in others:
        thread.start()
    while time.monotonic() - began < args.minutes * 60:
        time.sleep(min(LOOK_S, args.minutes * 60))
        assert server.pid is not None
        wal = server.data_dir / "floatscope.db-wal"
        size = wal.stat().st_size / 2**20 if wal.exists() else 0.0
        taken, reads[:] = list(reads), []
        look = Look(
            *(time.monotonic() - began, rss_mib(server.pid), descriptors(server.pid), threads(server.pid)),
            *(size, taken),
        )
        print(look, flush=True)
        looks.append(look)
    ended.set()
    for thread in others:
        thread.join()
    return looks


def _repeatedly(ended: threading.Event, pause_s: float, work: Callable[[], None]) -> None:
    while not ended.wait(pause_s):
        work()


def _read(server: Server, load: Load, rng: random.Random, reads: list[float], tally: Tally) -> None:
    stories = load.stories
    if not stories:
        return
    run = rng.choice([stories[0][0], rng.choice(stories)[0]]).run_id
    path = rng.choice([
        "/api/v1/runs", "/api/v1/alerts", "/", f"/runs/{run}", f"/api/v1/runs/{run}/verdict",
        f"/api/v1/runs/{run}/frame", f"/api/v1/runs/{run}/heatmap?stat=amax", f"/api/v1/runs/{run}/scalars",
        f"/api/v1/runs/{run}/series?tensor=blocks.1.mlp.fc1/input&stat=amax",
        f"/api/v1/runs/{run}/steps?to=200",
    ])  # fmt: skip
    began = time.perf_counter()
    answer = server.client.get(path)
    reads.append(1e3 * (time.perf_counter() - began))
    tally.add(f"reads answered {answer.status}")
    tally.holds(answer.status in (200, 303, 404), f"{path} was answered {answer.status}: {answer.text[:200]}")


def _delete(server: Server, load: Load, deleted: set[str], tally: Tally) -> None:
    """Deletes the oldest run that ended, as retention would."""
    ended: list[Story] = [story for story, status in load.stories if status is not None]
    found = [story.run_id for story in ended if story.run_id not in deleted]
    if len(found) > 3:
        deleted.add(found[0])
        answer = server.client.call("DELETE", f"/api/v1/runs/{found[0]}")
        tally.holds(answer.status == 200, f"delete of {found[0]}: {answer.status} {answer.text[:200]}")
        tally.add("runs deleted")


def _judge(looks: list[Look], tally: Tally) -> None:
    first, last = looks[int(len(looks) * SETTLED)], looks[-1]
    for name, before, after, most in (
        ("resident memory, MiB", first.rss_mib, last.rss_mib, GROWTH_MIB),
        ("descriptors", first.descriptors, last.descriptors, GROWTH_DESCRIPTORS),
        ("threads", first.threads, last.threads, GROWTH_THREADS),
    ):
        tally.most(f"{name}, at first", before)
        tally.most(f"{name}, at last", after)
        tally.holds(after - before <= most, f"{name} grew from {before} to {after}")
    largest = max(look.wal_mib for look in looks)
    tally.most("largest log of SQLite, MiB", round(largest))
    tally.holds(largest < MOST_WAL_MIB, f"the log of SQLite grew to {largest:.0f} MiB")
