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
