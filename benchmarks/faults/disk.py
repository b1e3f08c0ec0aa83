"""The disk is full in the middle of commits, again and again; steps wait, reads go on, nothing is lost."""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults.checks import check_messages, check_story, check_structure, settle
from benchmarks.faults.room import Room, room
from benchmarks.faults.senders import Lane, Load
from benchmarks.faults.server import Server, served
from benchmarks.faults.tally import Tally
from floatscope_server.database import Database
from tests.server.live import wait_for
from tests.server.slack import slack

BETWEEN_S = 0.6  # mean time with room between two times without
FULL_S = 0.8  # mean time without room
SOME_BATCHES = 3
READS = (
    "/healthz",
    "/api/v1/runs",
    "/api/v1/alerts",
    "/api/v1/runs/long-0",
    "/api/v1/runs/long-0/verdict",
    "/api/v1/runs/long-0/steps?to=40",
    "/api/v1/runs/long-0/heatmap?stat=amax",
    "/api/v1/runs/long-0/series?tensor=blocks.1.mlp.fc1/input&stat=amax",
    "/runs/long-0",
)


def main(args: argparse.Namespace, tally: Tally) -> None:
    """Fills the disk ``--times`` times."""
    rng = random.Random(args.seed)
    folder = Path(tempfile.mkdtemp(prefix="floatscope-disk-"))
    with room(folder, mount=args.way != "limit") as place, slack() as receiver:
        print(f"  full by: {place.way}", flush=True)
        environment = {
            "FLOATSCOPE_SLACK_WEBHOOK_URL": receiver.url,
            "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS": "1",
            "FLOATSCOPE_ALERT_GROUP_S": "1",
            "FLOATSCOPE_ALERT_FLAP_S": "0",
            "FLOATSCOPE_DISK_RESERVE_MIB": "0",  # else steps are refused long before a commit can fail
        }
        with served(place.data_dir, **environment) as server:
            server.start()
            lanes = [Lane("long", 1, None, rows=64), Lane("pairs", 2, 40), Lane("short", 1, 15)]
            load = Load(server.port, lanes, seed=args.seed, tally=tally, pause_s=0.1)
            load.start()
            wait_for(
                lambda: load.acked.get(("long-0", 0), 0) > SOME_BATCHES, seconds=60
            )  # so that all reads work
            end = time.monotonic() + args.minutes * 60
            for number in range(args.times):
                if time.monotonic() > end:
                    break
                time.sleep(min(rng.expovariate(1 / BETWEEN_S), 3 * BETWEEN_S))
                _once(number, server, place, rng, tally)
            load.stop()
            database = Database(f"sqlite:///{place.data_dir / 'floatscope.db'}")
            settle(database, tally)
            _back_up(server, folder / "after.db", tally, must=True)
            tally.holds(server.stop() == 0, "the server did not stop with 0")
            for story, ended in load.stories:
                acked = {rank: load.acked.get((story.run_id, rank), 0) for rank in range(story.ranks)}
                check_story(database, story, ended=ended, acked=acked, tally=tally)
            check_messages(database, receiver.got, tally=tally)
            check_structure(database, tally=tally)
            database.close()
            copy = Database(f"sqlite:///{folder / 'after.db'}")
            check_structure(copy, tally=tally)
            copy.close()
    if not tally.broken:
        shutil.rmtree(folder)


def _once(number: int, server: Server, place: Room, rng: random.Random, tally: Tally) -> None:
    assert server.pid is not None
    place.fill(server.pid, rng)
    tally.add("times the disk was full")
    end = time.monotonic() + min(rng.expovariate(1 / FULL_S), 3 * FULL_S)
    while time.monotonic() < end:
        path = rng.choice(READS)
        answer = server.client.get(path)
        tally.holds(answer.status == 200, f"{path} was answered {answer.status} while the disk was full")
        tally.add("reads while the disk was full")
        time.sleep(0.02)
    if number % 7 == 3:
        _back_up(server, place.data_dir / f"backup-{number}.db", tally, must=False)
    killed = number % 5 == 2
    if killed:
        server.kill()
        tally.add("kill -9 while the disk was full")
    place.free(server.pid)
    if killed:
        server.start()


def _back_up(server: Server, file: Path, tally: Tally, *, must: bool) -> None:
    """A backup succeeds, or fails and leaves nothing."""
    command = [sys.executable, "-m", "floatscope.cli", "db", "backup", str(file), "--data-dir"]
    done = subprocess.run([*command, str(server.data_dir)], capture_output=True, text=True, check=False)
    tally.add("backups made" if done.returncode == 0 else "backups that found no room")
    tally.holds(done.returncode == 0 or not must, f"no backup though there is room: {done.stderr[-500:]}")
    tally.holds(done.returncode in (0, 2), f"the backup ended with {done.returncode}: {done.stderr[-500:]}")
    left = [path.name for path in file.parent.glob(f"*{file.stem}*")]
    tally.holds(left == ([file.name] if done.returncode == 0 else []), f"the backup left {left}")
    if not must:
        file.unlink(missing_ok=True)
