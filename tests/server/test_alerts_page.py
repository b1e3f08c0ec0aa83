"""The alerts page: what the store gives it, on both databases, and its answers over HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest

from floatscope_dashboards.alert_filters import Asked, asked
from floatscope_dashboards.alerts_view import AlertsView
from floatscope_dashboards.family_words import FAMILIES
from floatscope_server.database import Database
from floatscope_server.errors import AlertNotFound
from floatscope_server.store import alert_lines, removal, runs
from floatscope_server.views import alerts as page_of
from tests.server.conftest import Serve
from tests.server.live import Client
from tests.server.samples import faulty_run, finding, send
from tests.server.telling import HOUR, Bench

HTML = {"Accept": "text/html,application/xhtml+xml"}
HOSTILE = "<script>window.stolen=1</script>\"'&{{7*7}}"


def view(bench: Bench, wanted: Asked | None = None, opened: str | None = None) -> AlertsView:
    with bench.database.read() as c:
        return page_of.alerts_view(c, wanted or Asked(), rules={}, now=bench.now, opened=opened)


def states(found: AlertsView) -> dict[str, str]:
    """Lead of each incident -> its state."""
    return {incident.lead.id: incident.state for incident in found.incidents}


def test_alerts_come_with_onset_owner_and_state(database: Database) -> None:
    bench = Bench(database)
    bench.verdict(
        finding(id="a", onset_step=40),
        finding(id="b", onset_step=90, tensor="t2", severity="warning"),
        finding(id="c", onset_step=9_000, rule=None),
        finding(id="d", onset_step=None, family="hardware", cause="stall"),
    )
    bench.verdict(finding(id="e", onset_step=40, segment=3), run="other", project="q")
    bench.now += HOUR
    bench.act("c", "acknowledge", note="mine")
    bench.act("e", "resolve")
    found = view(bench)
    assert [sorted(alert.id for alert in one.alerts) for one in found.incidents] == [
        ["d"],
        ["a", "b"],
        ["c"],
        ["e"],
    ]
    assert states(found) == {"d": "firing", "a": "firing", "c": "acknowledged", "e": "resolved"}
    by_id = {alert.id: alert for one in found.incidents for alert in one.alerts}
    assert (by_id["c"].owner, by_id["c"].rule, by_id["e"].segment, by_id["a"].rule) == ("ada", "", 3, "FS201")
    assert (by_id["e"].owner, by_id["a"].owner) == ("ada", "")
    assert {run.project for run in found.runs.values()} == {"p", "q"}
    assert set(found.findings) == {"a", "c", "d", "e"}, "only what is shown in words is read whole"
    assert (found.alerts, found.cut, found.ever, found.channels) == (5, False, True, 1)


def test_what_was_resolved_stays_a_day_and_can_be_opened_for_ever(database: Database) -> None:
    bench = Bench(database)
    bench.verdict(finding(id="a"))
    bench.act("a", "resolve", note="fixed")
    bench.now += 23 * HOUR
    assert states(view(bench)) == {"a": "resolved"}
    bench.now += 2 * HOUR
    found = view(bench)
    assert (found.incidents, found.ever) == ((), True)
    opened = view(bench, opened="a")
    assert opened.detail is not None
    assert [(line.event, line.by, line.note) for line in opened.detail.history] == [
        ("raised", "engine", ""),
        ("resolve", "ada", "fixed"),
    ]
    assert [(told.channel, told.event, told.state) for told in opened.detail.told] == [
        ("team", "raised", "pending")
    ]
    with pytest.raises(AlertNotFound):
        view(bench, opened="none")


def test_the_detail_knows_silence_mute_and_what_explains_it(database: Database) -> None:
    bench = Bench(database)
    bench.verdict(finding(id="a"), finding(id="b", cause="bad_batch"))
    bench.act("a", "acknowledge", sets_mute=True, mute_until=bench.now + HOUR)
    bench.verdict(finding(id="a"), finding(id="b", cause="bad_batch", state="replaced", replaced_by="a"))
    bench.silence("quiet", ends_in=HOUR, critical=True, note="maintenance", cause="plateau")
    bench.verdict(finding(id="s", cause="plateau", family="optimization", onset_step=5), run="two")
    muted, replaced, held = (view(bench, opened=one).detail for one in ("a", "b", "s"))
    assert muted is not None
    assert muted.muted_until is not None
    assert replaced is not None
    assert (replaced.replaced_by, replaced.line.state) == ("a", "resolved")
    assert held is not None
    assert held.silence is not None
    assert (held.silence.note, held.silence.by, held.line.state) == ("maintenance", "ada", "silenced")
    bench.now += 2 * HOUR
    later = view(bench, opened="a").detail
    assert later is not None
    assert later.muted_until is None


def test_alerts_of_a_run_that_is_being_deleted_are_gone(database: Database) -> None:
    bench = Bench(database)
    bench.verdict(finding(id="a"))
    bench.verdict(finding(id="b"), run="stays")
    with database.write() as c:
        removal.mark(c, runs.get(c, "r").id, "r", now=bench.now)
    assert states(view(bench)) == {"b": "firing"}
    with pytest.raises(AlertNotFound):
        view(bench, opened="a")


def test_a_run_with_very_many_alerts_is_one_incident_and_little_is_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(database)
    bench.verdict(*(finding(id=f"f{n}", onset_step=100 + n, tensor=f"t{n}") for n in range(300)))
    found = view(bench)
    assert [len(one.alerts) for one in found.incidents] == [300]
    assert len(found.findings) == 1
    (incident,) = found.incidents
    unfolded = view(bench, Asked(unfolded=(incident.key,)))
    assert len(unfolded.findings) == 20
    monkeypatch.setattr(page_of, "MOST_ALERTS", 50)
    cut = view(bench, opened="f0")
    assert (cut.cut, cut.alerts, sum(len(one.alerts) for one in cut.incidents)) == (True, 300, 50)
    assert cut.detail is not None
    with database.read() as c:
        assert alert_lines.count(c, resolved_since=0.0) == alert_lines.count_all(c) == 300


def test_mine_is_what_the_reader_acknowledged(database: Database) -> None:
    bench = Bench(database)
    bench.verdict(finding(id="a", onset_step=1), finding(id="b", onset_step=9_000))
    bench.act("b", "acknowledge")
    wanted = asked([("mine", "1")], families=FAMILIES, reader="ada")
    assert [one.lead.id for one in view(bench).incidents if wanted.wanted.takes(one)] == ["b"]


@pytest.fixture
def faulty(client: Client) -> dict[str, Any]:
    """An alert of a run whose name is markup."""
    described, steps = faulty_run(96, fault_at=64)
    client.open_run("bad", **{**described, "name": HOSTILE, "project": "x" * 256})
    send(client, "bad", steps, size=16)
    (alert,) = client.get("/api/v1/alerts?run=bad").json["items"]
    found: dict[str, Any] = alert
    return found


def html(client: Client, path: str, status: int = 200) -> str:
    answer = client.call("GET", path, headers=HTML)
    assert (answer.status, answer.headers["content-type"][:9]) == (status, "text/html"), answer.text[:300]
    return answer.text


def test_the_list_and_the_detail_over_http(client: Client, faulty: dict[str, Any]) -> None:
    listed = html(client, "/alerts")
    assert re.search(r"<title>▲ 1 incident needs someone – Alerts", listed)
    assert f'href="/alerts/{faulty["id"]}"' in listed
    assert HOSTILE not in listed
    opened = html(client, f"/alerts/{faulty['id']}?severity=critical&lang=zh-CN")
    assert f'href="/runs/bad?at={faulty["onset_step"]}"' in opened
    assert f'href="/rules#{faulty["rule"]}"' in opened
    assert HOSTILE not in opened
    assert 'lang="zh-CN"' in opened
    assert "severity=critical&amp;lang=zh-CN" in opened, "what the list shows stays when the detail is closed"


@pytest.mark.parametrize(
    "query",
    [
        "state=x&severity=%00&show=zzz",
        "unfold=%ff&run=../..&mine=",
        "family=data&family=,,&rule=%F0%9F%98%80",
    ],
)
def test_any_query_shows_the_page(client: Client, faulty: dict[str, Any], query: str) -> None:
    html(client, f"/alerts?{query}")
    html(client, f"/alerts/{faulty['id']}?{query}")


def test_what_is_not_there_is_a_page_that_says_so(client: Client, faulty: dict[str, Any]) -> None:
    for path in ("/alerts/none", "/alerts/%3Cscript%3E", "/alerts/" + "a" * 2000):
        assert "<script>" not in html(client, path, 404)
    assert client.call("DELETE", "/api/v1/runs/bad").status == 200
    html(client, f"/alerts/{faulty['id']}", 404)
    assert "bad" not in re.findall(r'data-run="([^"]*)"', html(client, "/alerts"))


def test_reading_changes_nothing_and_a_reader_is_offered_no_action(
    client: Client, faulty: dict[str, Any]
) -> None:
    made = client.call("POST", "/api/v1/tokens", {"name": "reader", "scopes": ["read"]}).json
    reader = Client(client.port, token=made["token"])
    path = f"/alerts/{faulty['id']}?action=acknowledge"
    opened = html(reader, path)
    assert "data-do=" not in opened
    assert "Your token may read" in opened
    assert "data-do=" in html(client, path)
    again = client.get(f"/api/v1/alerts/{faulty['id']}").json
    assert (again["state"], len(again["history"])) == ("firing", len(faulty["history"]))


def test_before_the_first_alert_the_page_says_what_alerts_are(serve: Serve) -> None:
    empty = html(serve(), "/alerts")
    assert "No alert so far" in empty
    assert 'href="/rules#channels"' in empty
