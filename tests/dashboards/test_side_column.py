"""What stands beside the loss chart: events go below the evidence where they fit, else below the pictures."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from floatscope_dashboards.pictures_view import PicturesView, RanksView
from floatscope_dashboards.run_facts import AlertFacts, AlertLine, RunFacts
from tests.dashboards.sample import NOW, finding, run_view, verdict
from tests.dashboards.showing import Shown

GPU = PicturesView(ranks=RanksView(("gpu_util_pct",), 8))


def order(html: str) -> list[str]:
    """Ids of the cards in the order of the page."""
    ids = ("loss-h", "evidence-h", "events-h", "heat-h", "ranks-h")
    return sorted(ids, key=lambda name: html.index(f'id="{name}"'))


def page(evidence: int, notes: int, pictures: PicturesView) -> str:
    lines = tuple(AlertLine(NOW - timedelta(minutes=n), "note", "x", "") for n in range(notes))
    alert = AlertFacts("a1", "f1", "firing", "critical", "S", 3, lines=lines)
    seen = [{"signal": "loss", "value": 1.0, "step": n} for n in range(evidence)]
    found = verdict(finding(evidence=seen, alternatives=[]))
    view = replace(run_view(found, facts=RunFacts(alerts=(alert,))), pictures=pictures)
    return Shown().run(view)


@pytest.mark.parametrize(
    ("evidence", "notes", "beside", "shown"),
    [(2, 1, True, 2), (2, 40, True, 8), (7, 40, True, 3), (12, 40, False, 8)],
)
def test_events_take_the_room_below_the_evidence(evidence: int, notes: int, beside: bool, shown: int) -> None:
    html = page(evidence, notes, GPU)
    expected = ["loss-h", "evidence-h", "events-h", "heat-h", "ranks-h"]
    assert order(html) == (expected if beside else ["loss-h", "evidence-h", "heat-h", "ranks-h", "events-h"])
    events = html[html.index('id="events-h"') :]
    assert events[: events.index("</ul>")].count("<li>") == shown


def test_ranks_that_have_nothing_to_show_take_one_line() -> None:
    html = page(2, 1, PicturesView(ranks=RanksView((), 1)))
    card = html[html.index('id="ranks"') :]
    assert "neither the use of its GPUs" in card[: card.index("</header>")]
    assert 'class="card solo oneline"' in html
    assert "rank-map" not in html
