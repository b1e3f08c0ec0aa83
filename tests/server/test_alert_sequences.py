"""Any sequence of findings, actions, silences and hours: one alert a finding, a whole history, and no word
about what somebody deals with.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from floatscope_server import tables
from floatscope_server.database import Database
from floatscope_server.diagnosis import Judgement
from floatscope_server.store import runs, silences
from floatscope_server.telling.notice import PASSED, RECOVERED
from floatscope_server.telling.states import ENGINE_EVENTS, PEOPLE_EVENTS, SEVERITIES, SILENCE_EVENTS, rank_of
from tests.server.samples import finding, verdict
from tests.server.telling import HOUR, MINUTE, Bench, new_bench

MOVES = set(ENGINE_EVENTS + PEOPLE_EVENTS + SILENCE_EVENTS) - {"severity_changed"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with new_bench(tmp_path) as found:
        found.channel("chief", escalate_s=20 * MINUTE, min_severity="critical", repeat_s=HOUR)
        yield found


class Story:
    """Random things that happen to a run with three findings."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.rng = random.Random(seed)
        self.run = f"run{seed}"
        self.findings: dict[str, dict[str, Any]] = {}
        self.silenced = 0

    def happens(self) -> None:
        what = self.rng.choice((self._judged, self._judged, self._acted, self._silenced, self._waited))
        before = self._states()
        seen = len(self.bench.said())
        what()
        between = self._states()
        for said in self.bench.said()[seen:]:
            for alert, event in zip(said.alerts, said.body["events"], strict=True):
                wanted = "recovered" if event in (RECOVERED, PASSED) else "firing"
                assert between[alert] == wanted, (said, before.get(alert))

    def _judged(self) -> None:
        for number in range(3):
            key = f"{self.run}-{number}"
            fate = self.rng.random()
            if fate < 0.3:
                self.findings[key] = finding(
                    id=key,
                    severity=self.rng.choice(SEVERITIES),
                    state=self.rng.choice(("raised", "confirmed", "worsened", "recovered")),
                    cause=self.rng.choice(("plateau", "data_shift")),
                )
            elif fate < 0.35:
                self.findings.pop(key, None)
        if self.rng.random() < 0.2:
            self.bench.outcome = self.bench.new_outcome()
        self.bench.verdict(*self.findings.values(), run=self.run)

    def _acted(self) -> None:
        known = sorted(self._states())
        if known:
            action = self.rng.choice(PEOPLE_EVENTS)
            after = self.bench.act(self.rng.choice(known), action, note="n")
            if action == "reopen":
                assert after.state in ("firing", "silenced", "recovered")
                assert after.state != "recovered" or after.finding_state == "recovered"

    def _silenced(self) -> None:
        name = f"{self.run}-silence{self.silenced}"
        self.silenced += 1
        critical = self.rng.random() < 0.5
        cause = self.rng.choice((None, "plateau"))
        self.bench.silence(name, run_id=self.run, cause=cause, critical=critical, ends_in=HOUR / 2)
        if self.rng.random() < 0.3:
            with self.bench.database.write() as c:
                silences.end(c, name, by="ada", now=self.bench.now + 1)

    def _waited(self) -> None:
        self.bench.pass_time(self.rng.choice((1.0, MINUTE, 15 * MINUTE)))

    def _states(self) -> dict[str, str]:
        alert = tables.alert.c
        with self.bench.database.read() as c:
            return {row.id: row.state for row in c.execute(select(alert.id, alert.state))}


@pytest.mark.parametrize("seed", range(5))
def test_any_sequence(bench: Bench, seed: int) -> None:
    story = Story(bench, seed)
    for _ in range(30):
        story.happens()
    with bench.database.read() as c:
        found = c.execute(select(tables.alert.c.id, tables.alert.c.finding_json)).all()
    assert {count for count in Counter(row.id for row in found).values()} <= {1}
    assert len(found) <= 3
    for row in found:
        state = "none"
        for line in bench.history(row.id):
            if line.event in MOVES:
                assert (line.before or "none") == state, bench.history(row.id)
                state = line.after or ""
            assert line.by == ("ada" if line.event in PEOPLE_EVENTS else "engine")
        assert state == bench.state(row.id)


@pytest.mark.parametrize("seed", range(5, 8))
def test_in_the_end_everybody_knows_what_fires(bench: Bench, seed: int) -> None:
    story = Story(bench, seed)
    for _ in range(30):
        story.happens()
    bench.pass_time(3 * HOUR)
    with bench.database.read() as c:
        firing = c.execute(
            select(tables.alert.c.id, tables.alert.c.severity).where(tables.alert.c.state == "firing")
        ).all()
        heard = {
            row.alert: row
            for row in c.execute(select(tables.telling).where(tables.telling.c.channel == "team"))
        }
    for alert, severity in firing:
        if rank_of(severity) >= rank_of("warning"):
            assert heard[alert].told == "firing"
            assert rank_of(heard[alert].severity) >= rank_of(severity)


def test_batches_people_terms_and_the_duty_do_not_lock_each_other_out(database: Database) -> None:
    bench = Bench(database)
    for number in range(3):
        bench.verdict(*(finding(id=f"run{number}-{n}") for n in range(4)), run=f"run{number}")
    errors: list[BaseException] = []

    def judge(rng: random.Random, run: str) -> None:
        found = [
            finding(
                id=f"{run}-{n}", severity=rng.choice(SEVERITIES), state=rng.choice(("raised", "recovered"))
            )
            for n in range(4)
        ]
        rng.shuffle(found)
        outcome = bench.new_outcome()
        with database.write() as c:
            record = runs.get(c, run, lock=True)
            outcome.store(c, record, Judgement(verdict(found), judged=True), now=bench.now)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        duty = bench.new_duty()
        try:
            for _ in range(12):
                bench.now += 20
                run = f"run{seed % 3}"
                judge(rng, run)
                bench.act(f"run{rng.randrange(3)}-{rng.randrange(4)}", rng.choice(PEOPLE_EVENTS), note="n")
                bench.channel("team", repeat_s=60.0 + seed)
                duty.look()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
