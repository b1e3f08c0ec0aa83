"""What the run's page knows beside its verdict stays bounded, however many alerts and changes there are."""

from __future__ import annotations

from floatscope.protocol.runinfo import RunInfo
from floatscope_server.callers import Caller
from floatscope_server.database import Database
from floatscope_server.store import alerts, audit, runs
from floatscope_server.views.run_facts import MOST_ALERTS, run_facts
from tests.server.samples import finding

ANA = Caller("Ana", address="::1")


def test_of_thousands_of_alerts_the_leading_and_the_newest_are_read(database: Database) -> None:
    count = MOST_ALERTS + 60
    with database.write() as c:
        runs.create(c, "r", RunInfo(), summary="", now=1.0)
        run = runs.get(c, "r")
        for n in range(count):
            alerts.create(c, run.id, "r", finding(id=f"a{n:04d}"), state="firing", now=float(n))
        audit.write(c, ANA, "run.change", target="r", detail={"baseline": "b"}, now=5.0)
        for n in range(100):
            audit.write(c, ANA, "run.change", target="other", detail={"baseline": "b"}, now=10.0 + n)
    verdict = {"findings": [{"id": "a0003"}]}
    with database.read() as c:
        found = run_facts(
            c,
            run,
            curves={},
            first_broken=None,
            verdict=verdict,
            rules={},
            by=ANA,
            objects=None,
            warm=None,
        )
    ids = [alert.id for alert in found.alerts]
    assert len(ids) == MOST_ALERTS + 1
    assert ids[0] == "a0003"
    assert ids[-1] == f"a{count - 1:04d}"
    assert [(event.kind, event.by) for event in found.events] == [("baseline", "Ana")]
