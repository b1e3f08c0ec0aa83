"""Pages and static files: HTML for any run, errors for people, compression and caching."""

from __future__ import annotations

import gzip
import http.client
from typing import Any

import pytest

from floatscope_dashboards import assets
from floatscope_server.views.number_words import number_words
from floatscope_server.views.run_rows import recipe_words
from tests.server.live import Client
from tests.server.samples import body, faulty_run, rows, send

HTML = {"Accept": "text/html,application/xhtml+xml"}


def page(client: Client, path: str) -> str:
    answer = client.call("GET", path, headers=HTML)
    assert answer.status == 200, answer.text[:500]
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def test_overview_and_run_page_from_the_first_moment_on(client: Client) -> None:
    assert "<html" in page(client, "/")
    client.open_run("r", name="first run")
    assert "first run" in page(client, "/")
    assert "first run" in page(client, "/runs/r")
    client.put("r", 0, body(rows(0, 6)))
    assert "first run" in page(client, "/runs/r?at=3")


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("5", ""),
        ("6", "asks for step 6, which has not come yet. The last step is 5."),
        ("9" * 40, "not a whole number"),
        ("x", "not a whole number"),
        ("-1", "not a whole number"),
        ("", ""),
    ],
)
def test_a_step_that_is_none_is_put_right_and_said(client: Client, at: str, said: str) -> None:
    client.open_run("r", name="first run")
    client.put("r", 0, body(rows(0, 6)))
    html = page(client, f"/runs/r?at={at}&unknown=1")
    assert "first run" in html
    assert ("The address asks" in html) == bool(said)
    assert said in html


def test_a_faulty_run_shows_its_finding(client: Client) -> None:
    described, steps = faulty_run(96, fault_at=64)
    client.open_run("bad", **described, project="p")
    send(client, "bad", steps, size=16)
    found = client.get("/api/v1/runs/bad/verdict").json["findings"]
    assert found
    html = page(client, "/runs/bad")
    assert found[0]["tensor"].split("/")[0].split(".")[-1] in html
    assert "FP8 delayed scaling" in html
    assert "faulty" in page(client, "/?project=p")
    assert "faulty" not in page(client, "/?project=other")
    (alert,) = client.get("/api/v1/alerts?run=bad").json["items"]
    assert f"/runs/bad?at={alert['onset_step']}" in page(client, f"/alerts/{alert['id']}")
    assert client.call("GET", "/alerts/none", headers=HTML).status == 404


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "-Infinity", 1e300, 0])
def test_pages_of_runs_with_strange_losses(client: Client, loss: object) -> None:
    client.open_run("r")
    client.put("r", 0, {"steps": [{"step": 0, "loss": loss}, {"step": 1}, {"step": 2, "loss": loss}]})
    page(client, "/")
    page(client, "/runs/r")


def test_what_is_not_there_is_said_in_a_page_for_people(client: Client) -> None:
    for path in ("/runs/none", "/nothing", "/runs/r/x"):
        answer = client.call("GET", path, headers=HTML)
        assert answer.status == 404
        assert answer.headers["content-type"].startswith("text/html")
        assert "<html" in answer.text
    gone = client.call("GET", "/runs/none/tensors/a%2Finput", headers=HTML).text
    assert 'href="/runs/none' not in gone, "links that lead nowhere either"
    machine = client.get("/api/v1/nothing")
    assert (machine.status, machine.headers["content-type"]) == (404, "application/problem+json")
    wrong = client.call("POST", "/api/v1/alerts", {})
    assert (wrong.status, wrong.json["title"]) == (405, "Method Not Allowed")
    odd = client.call("GET", "/?page=x&sort=x&status=x&health=x&unknown=1", headers=HTML)
    assert (odd.status, "<html" in odd.text) == (200, True)  # what makes no sense is left out


def raw(client: Client, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """One answer as it came over the wire."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content


def test_plotly_is_sent_compressed_and_cached_for_ever(client: Client) -> None:
    path = assets.plotly_script(None).url
    status, headers, content = raw(client, path, {"Accept-Encoding": "gzip"})
    assert (status, headers["content-encoding"], headers["content-type"]) == (
        200,
        "gzip",
        "text/javascript; charset=utf-8",
    )
    assert "immutable" in headers["cache-control"]
    plain = raw(client, path, {})[2]
    assert gzip.decompress(content) == plain
    assert len(content) < len(plain) / 2


def test_our_own_files_never_change_at_the_address_that_pages_have(client: Client) -> None:
    html = page(client, "/")
    own = assets.fingerprint()
    assert f'"/static/{own}/app.css"' in html
    assert f'<link rel="modulepreload" href="/static/{own}/js/core.js">' in html
    for path, cache in (
        (f"/static/{own}/js/core.js", "public, max-age=31536000, immutable"),
        ("/static/0123456789/js/core.js", "no-cache"),
    ):
        answer = client.get(path)
        assert (answer.status, answer.headers["cache-control"]) == (200, cache)
        assert answer.content == client.get("/static/js/core.js").content


def test_our_own_files_are_asked_for_again_and_not_sent_again(client: Client) -> None:
    _status, headers, _content = raw(client, "/static/app.css", {})
    assert headers["cache-control"] == "no-cache"
    status, _headers, content = raw(client, "/static/app.css", {"If-None-Match": headers["etag"]})
    assert (status, content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    ["/static/../pages.py", "/static/%2e%2e/pages.py", "/static//etc/passwd", "/static/", "/static/none.js"],
)
def test_nothing_outside_the_folder_is_served(client: Client, path: str) -> None:
    assert raw(client, path, {})[0] == 404


def test_every_file_a_page_names_exists(client: Client) -> None:
    client.open_run("r")
    client.put("r", 0, body(rows(0, 6)))
    html = page(client, "/") + page(client, "/runs/r") + Client(client.port, None).get("/login").text
    named = {part.split('"')[0] for part in html.split('="')[1:] if part.startswith("/static/")}
    assert named
    for url in named:
        assert raw(client, url, {})[0] == 200, url


def test_words() -> None:
    assert (
        recipe_words({"name": "fp8_delayed_scaling", "fp8_format": "HYBRID"}) == "FP8 delayed scaling, hybrid"
    )
    assert recipe_words({"name": "house recipe"}) == "house recipe"
    assert recipe_words({}) == ""
    cases: dict[Any, str] = {
        2.34567: "2.346",
        0.0: "0",
        1e-7: "1.00e-07",
        float("nan"): "NaN",
        float("-inf"): "-Inf",
    }
    assert {value: number_words(value) for value in cases} == cases


def test_a_figure_with_fixed_decimals_never_shows_a_small_number_as_zero() -> None:
    cases = {
        0.0: "0.00",
        4.126: "4.13",
        -1.5: "\u22121.50",
        0.004: "<\u00a00.01",
        -7e-5: ">\u00a0\u22120.01",
        float("nan"): "NaN",
    }
    assert [number_words(value, decimals=2) for value in cases] == list(cases.values())
