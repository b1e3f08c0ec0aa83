"""The settings page and the messages: what each reader sees, and what a page says that is not there."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from floatscope_dashboards.settings_page import size_text
from floatscope_server.settings import ProjectRetention
from floatscope_server.store import usage
from tests.server.conftest import Serve
from tests.server.live import Client
from tests.server.samples import body, rows

HTML = {"Accept": "text/html"}


def page(client: Client, path: str, *, status: int = 200) -> str:
    answer = client.call("GET", path, headers=HTML)
    assert answer.status == status, answer.text[:500]
    return answer.text


def made(client: Client, name: str, *scopes: str) -> Client:
    answer = client.call("POST", "/api/v1/tokens", {"name": name, "scopes": list(scopes)})
    assert answer.status == 201, answer.text
    return Client(client.port, token=answer.json["token"])


def test_who_may_manage_sees_tokens_and_room(client: Client) -> None:
    client.open_run("r", project="big one")
    client.put("r", 0, body(rows(0, 40)))
    other = made(client, "<i>trainer</i>", "ingest")
    assert other.get("/settings").status == 403
    html = page(client, "/settings")
    assert "&lt;i&gt;" in html
    assert "<i>trainer" not in html
    assert "data-end=" in html
    assert "Project big one" in html
    assert re.search(r"SQLite, one file in the data folder, [\d.,]+\u202f[KM]iB", html)


def test_who_may_only_read_is_told_why_there_is_no_more(client: Client) -> None:
    html = page(made(client, "reader", "read"), "/settings")
    assert "Your token has read" in html
    assert "data-end=" not in html
    assert 'id="new-token"' not in html
    assert "How much room is used is shown to tokens with the scope admin" in html


def test_retention_is_told_in_words(serve: Serve) -> None:
    projects = {"kept": ProjectRetention(keep=True), "short": ProjectRetention(days=2.0, gib=5.0)}
    client = serve({"retention_days": 30.0, "retention_projects": projects, "audit_days": 90})
    html = page(client, "/settings")
    assert "deleted 30 d after their last data" in html
    assert "deleted 2 d after their last data; the oldest are deleted beyond 5\u202fGiB" in html
    assert "kept for ever" in html
    assert "90 days" in html


def test_the_page_is_there_in_chinese(client: Client) -> None:
    answer = client.call("GET", "/settings", headers={**HTML, "Cookie": "floatscope-language=zh-CN"})
    assert '<html lang="zh-CN">' in answer.text


@pytest.mark.parametrize("query", ["?x=1", "?lang=xx", "?lang=zh-CN&lang=en", "?theme=%00", "?" + "a" * 4000])
def test_unknown_parameters_are_passed_over(client: Client, query: str) -> None:
    page(client, "/settings" + query)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/runs/nope", "There is no run nope"),
        ("/alerts/nope", "There is no such alert"),
        ("/nothing", "/nothing"),
    ],
)
def test_what_is_not_there_says_what_to_do_and_has_the_search(client: Client, path: str, says: str) -> None:
    html = page(client, path, status=404)
    assert says in html
    assert 'id="search"' in html


def test_messages_hold_no_markup_of_an_address(client: Client) -> None:
    html = page(client, "/" + quote("<script>alert(1)</script>"), status=404)
    assert "<script>alert" not in html


def test_projects_are_listed_largest_first_and_bounded(client: Client) -> None:
    for number in range(usage.SHOWN_PROJECTS + 3):
        client.open_run(f"r{number}", project=f"p{number:02d}")
    client.put("r5", 0, body(rows(0, 40)))
    html = page(client, "/settings")
    assert html.index("Project p05") > 0
    assert "Project p08" not in html


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0\u202fB"),
        (999, "999\u202fB"),
        (1000, "0.98\u202fKiB"),
        (1536, "1.50\u202fKiB"),
        (20 * 2**20, "20.0\u202fMiB"),
        (3 * 2**40, "3.00\u202fTiB"),
        (5000 * 2**40, "5,000\u202fTiB"),
    ],
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert size_text(count) == text
