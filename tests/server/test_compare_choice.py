"""Choosing the runs of a comparison: the page's lists, over HTTP."""

from __future__ import annotations

from tests.server.live import Client
from tests.server.samples import rows, send

HTML = {"Accept": "text/html"}


def test_runs_are_listed_found_by_words_and_offered_with_their_baseline(client: Client) -> None:
    client.open_run("plain")
    client.open_run("fast", baseline="plain")
    client.open_run("lost", baseline="gone")
    for run in ("plain", "fast", "lost"):
        send(client, run, rows(0, 8))
    every = client.call("GET", "/compare", headers=HTML).text
    assert every.count("/compare?run=fast&amp;baseline=plain") == 1
    assert "baseline=gone" not in every
    assert all(f'value="{run}"' in every for run in ("plain", "fast", "lost"))
    found = client.call("GET", "/compare?q=fas", headers=HTML).text
    assert 'value="fast"' in found
    assert 'value="lost"' not in found


def test_a_run_too_young_to_be_judged_is_not_called_healthy(client: Client) -> None:
    client.open_run("young", tensors={})
    send(client, "young", [{"step": step, "loss": 3.0 - 0.01 * step} for step in range(8)])
    listed = client.get("/api/v1/runs?health=warming_up").json["items"]
    assert [(run["health"], run["warming_up"]) for run in listed] == [("healthy", True)]
    assert client.get("/api/v1/runs?health=healthy").json["items"] == []
    assert client.get("/api/v1/search?q=young").json["runs"][0]["warming_up"] is True
    for page in ("/", "/?health=warming_up", "/runs/young", "/runs/young/report", "/compare"):
        shown = client.call("GET", page, headers=HTML).text
        assert "Warming up" in shown, page
        assert "Healthy" not in shown, page
    assert 'data-run="young"' not in client.call("GET", "/?health=healthy", headers=HTML).text
