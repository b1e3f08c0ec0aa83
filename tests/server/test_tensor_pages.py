"""The pages of tensors as the server makes them: order, filters, pages, any name, and what is missing."""

from __future__ import annotations

import json
import math
import re
import time
from html import unescape
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from floatscope_dashboards.tensor_links import tensor_href, tensors_href
from floatscope_dashboards.tensor_view import CLIPS, FITS, FLUSHES, NO_STATS, NONFINITE, UNSCALED
from floatscope_server.store.frame_reads import Picture
from floatscope_server.store.frames import StatFrame
from floatscope_server.views.tensor_order import sorted_by, tensor_columns
from tests.server.live import Answer, Client
from tests.server.samples import send

HOSTILE = (
    "<script>alert(1)</script>/input",
    "a/../../b/input",
    "..",
    ".",
    "100%/%2F/%25/weight",
    "l\u00e4yer \u6f22\u5b57 \u202e \U0001f600/output",
    "x" * 1_000 + "/input",
    "//",
    "?q=1&a#b/input",
    "=SUM(A1)/weight",
    "{{ 7*7 }}/input",
)
LIMIT_S = 6.0  # of 100,000 tensors; measured 0.6 s


def page(client: Client, path: str) -> Answer:
    return client.call("GET", path, headers={"Accept": "text/html"})


def names_in(answer: Answer) -> list[str]:
    """Tensors of the table in order, from their addresses."""
    assert answer.status == 200, answer.text[:500]
    found = []
    for href in re.findall(r'<td class="c-name"><a class="mono" href="([^"]*)"', answer.text):
        path, _mark, query = unescape(href).partition("?")
        name = path.partition("/tensors/")[2] or query.partition("tensor=")[2].partition("&")[0]
        found.append(unquote(name))
    return found


def stats(**values: float | str) -> dict[str, Any]:
    return {"amax": 1.0, "scale": 64.0, "overflow_pct": 0.0, "underflow_pct": 0.0, **values}


@pytest.fixture
def run(client: Client) -> Client:
    """Two steps of seven tensors: NaN in one, two clip, one loses small values, one fits, one has no cast."""
    names = ("nan", "clips", "clips_more", "small", "fits", "plain", "silent")
    table = {f"{name}/input": {"format": "e4m3", "call_order": at} for at, name in enumerate(names)}
    client.open_run("r", tensors=table, recipe={"name": "fp8_delayed_scaling", "amax_history_len": 8})
    last = {
        "nan/input": stats(nan_count=3.0, rms="NaN"),
        "clips/input": stats(overflow_pct=1.0),
        "clips_more/input": stats(overflow_pct=7.5, amax=14.0),
        "small/input": stats(underflow_pct=20.0),
        "fits/input": stats(sqnr_db=31.5),
        "plain/input": {"rms": 1.0},
    }
    first = {name: stats() for name in last}
    send(
        client,
        "r",
        [{"step": 0, "loss": 1.0, "tensors": first}, {"step": 1, "loss": 1.0, "tensors": last}],
    )
    return client


WORST = ["nan", "clips_more", "clips", "small", "fits", "plain", "silent"]


def short(answer: Answer) -> list[str]:
    return [name.removesuffix("/input") for name in names_in(answer)]


def test_worst_first_and_every_other_order(run: Client) -> None:
    assert short(page(run, "/runs/r/tensors")) == WORST
    assert short(page(run, "/runs/r/tensors?sort=name"))[:2] == ["clips", "clips_more"]
    assert short(page(run, "/runs/r/tensors?sort=-name"))[:2] == ["small", "silent"]
    assert short(page(run, "/runs/r/tensors?sort=-overflow_pct"))[:2] == ["clips_more", "clips"]
    assert short(page(run, "/runs/r/tensors?sort=headroom_log2"))[0] == "clips_more"
    assert short(page(run, "/runs/r/tensors?sort=-call"))[0] == "silent"


def test_filters_search_and_step(run: Client) -> None:
    assert short(page(run, "/runs/r/tensors?state=clips")) == ["clips_more", "clips"]
    assert short(page(run, "/runs/r/tensors?q=CLIPS+input")) == ["clips_more", "clips"]
    assert short(page(run, "/runs/r/tensors?layer=small")) == ["small"]
    nothing = page(run, "/runs/r/tensors?role=weight")
    assert names_in(nothing) == []
    assert "No tensor matches." in nothing.text
    before = page(run, "/runs/r/tensors?at=0")
    assert "at step 0" in before.text
    assert "Clips" not in before.text


def test_what_is_not_understood_is_said_and_left_out(run: Client) -> None:
    bad = page(run, "/runs/r/tensors?sort=bogus&page=x&at=-1&rank=abc&state=&colour=red&page=2")
    assert short(bad) == WORST
    assert "Not understood in the address and left out: at, rank, sort." in bad.text
    assert short(page(run, "/runs/r/tensors?page=99")) == WORST
    assert page(run, "/runs/r/tensors/fits%2Finput?at=zzz&rank=-4&from=x").status == 200
    assert page(run, "/runs/gone/tensors").status == 404


def test_nan_missing_and_zero_are_three_things(run: Client) -> None:
    table = page(run, "/runs/r/tensors?sort=name").text
    row = table[table.index("nan%2Finput") :]
    cells = re.findall(
        r'<td class="r"><span class="lbl">([^<:,]*)[^<]*:</span> (?:<span class="[^"]*">)?([^<]*)', row
    )
    assert "Clipped, %:" in row
    found = dict(cells[:7])
    assert (found["NaN"], found["Clipped"], found["SNR"]) == ("3", "0", "\u2013")


def test_every_name_leads_to_its_page_and_back(client: Client) -> None:
    client.open_run("h", tensors={name: {"format": "e4m3"} for name in HOSTILE})
    send(client, "h", [{"step": 0, "loss": 1.0, "tensors": {name: stats() for name in HOSTILE}}])
    assert sorted(names_in(page(client, "/runs/h/tensors"))) == sorted(HOSTILE)
    for name in HOSTILE:
        answer = page(client, tensor_href("h", name))
        assert answer.status == 200, name
        assert "<script>alert" not in answer.text
        assert "49/input" not in answer.text
        data = re.search(r'id="page-data">(.*?)</script>', answer.text, re.S)
        assert data is not None

        assert json.loads(data.group(1))["tensor"] == name


def test_an_unknown_tensor_is_told_with_names_that_look_like_it(run: Client) -> None:
    near = page(run, "/runs/r/tensors/clip%2Finput")
    assert near.status == 404
    assert "This run has no tensor of that name" in near.text
    assert "/runs/r/tensors/clips%2Finput" in near.text
    far = page(run, "/runs/r/tensors/" + "%3Cb%3E" * 300)
    assert far.status == 404
    assert "<b><" not in far.text
    assert page(run, "/runs/r/tensors/").status in (200, 307, 404)


def test_a_page_of_one_tensor_in_every_state(run: Client) -> None:
    clips = page(run, "/runs/r/tensors/clips_more%2Finput").text
    assert "tensor 2 of 7, worst first" in clips
    assert "8 passes, max, margin 0" in clips
    assert "Some values clip; no finding names this tensor" in clips
    assert "\u22121.00 binades of headroom, 7.50 % clipped, 0 % become 0" in clips
    assert 'rel="prev" href="/runs/r/tensors/nan%2Finput' in clips
    assert 'rel="next" href="/runs/r/tensors/clips%2Finput' in clips
    odd = page(run, "/runs/r/tensors/nan%2Finput").text
    assert "NaN or Inf" in odd
    silent = page(run, "/runs/r/tensors/silent%2Finput").text
    assert "No statistics of this tensor" in silent
    assert 'id="panels"' not in silent
    plain = page(run, "/runs/r/tensors/plain%2Finput").text
    assert 'id="panels"' in plain
    assert "What if this tensor" not in plain
    assert '"several": false' in clips
    for seq, told in ((1, "false"), (2, "true")):
        row = {"step": 1 + seq, "loss": 1.0, "passes": seq, "tensors": {"new/weight": {"grad_norm": 1.0}}}
        assert run.put("r", seq, {"steps": [row]}).status == 200
        assert f'"several": {told}' in page(run, "/runs/r/tensors/clips_more%2Finput").text
    assert "Maximum, scale and losses" in plain
    assert "Statistics over time" in page(run, "/runs/r/tensors/new%2Fweight").text
    early = page(run, "/runs/r/tensors/clips_more%2Finput?at=0").text
    assert 'Numbers of step <b id="number-step">0</b>' in early


def test_runs_without_tensors_and_without_steps(client: Client) -> None:
    client.open_run("none")
    assert "Nothing has arrived yet." in page(client, "/runs/none/tensors").text
    send(client, "none", [{"step": 0, "loss": 1.0}])
    assert "describes no tensors" in page(client, "/runs/none/tensors").text
    gone = page(client, "/runs/none/tensors/x")
    assert (gone.status, "describes no tensors" in gone.text) == (404, True)
    client.open_run("described", tensors={"a/input": {"format": "e4m3"}})
    assert "Nothing has arrived yet." in page(client, "/runs/described/tensors/a%2Finput").text


def test_two_hundred_a_page(client: Client) -> None:
    names = [f"l{at:03d}/input" for at in range(450)]
    client.open_run("many", tensors={name: {"format": "e4m3"} for name in names})
    rows = {name: stats(overflow_pct=float(at)) for at, name in enumerate(names)}
    send(client, "many", [{"step": 0, "loss": 1.0, "tensors": rows}])
    pages = [names_in(page(client, f"/runs/many/tensors?page={number}")) for number in (1, 2, 3)]
    assert [len(found) for found in pages] == [200, 200, 50]
    assert [*pages[0], *pages[1], *pages[2]] == [*reversed(names)]
    assert "Page 3 of 3" in page(client, "/runs/many/tensors?page=3").text


def test_other_ranks(client: Client) -> None:
    client.open_run("wide", ranks=2, tensors={"a/input": {"format": "e4m3"}, "b/input": {"format": "e4m3"}})
    for rank, name, amax in ((0, "a/input", 2.0), (0, "b/input", 1.0), (1, "a/input", 8.0)):
        seq = 0 if (rank, name) != (0, "b/input") else 1
        step = {"step": seq, "loss": 1.0, "tensors": {name: stats(amax=amax)}}
        if seq:
            step["tensors"]["a/input"] = stats(amax=2.0)  # type: ignore[index]
        assert client.put("wide", seq, {"steps": [step]}, rank=rank).status == 200
    client.put(
        "wide", 1, {"steps": [{"step": 1, "loss": 1.0, "tensors": {"a/input": stats(amax=8.0)}}]}, rank=1
    )
    text = page(client, "/runs/wide/tensors/a%2Finput").text
    assert "Spread over ranks" in text
    assert "2 on rank 0 to 8 on rank 1" in text
    assert "reduced over ranks" in text
    assert "rank 1" in page(client, "/runs/wide/tensors?rank=1").text
    for address in ("/runs/wide/tensors?rank=7", "/runs/wide/tensors/a%2Finput?rank=7"):
        there = page(client, address).text
        assert "left out: rank." in there
        assert "without statistics" not in there
        assert "No statistics of this tensor" not in there


def test_a_hundred_thousand_tensors_are_put_in_order_quickly() -> None:
    rng = np.random.default_rng(1)
    count = 100_000
    names = sorted(f"layers.{at}.mlp/input" for at in range(count))
    present = rng.random(count) < 0.95
    frames = {
        stat: StatFrame(9, rng.normal(0, 3, count).astype(np.float32), present)
        for stat in ("amax", "scale", "overflow_pct", "underflow_pct", "headroom_log2", "nan_count")
    }
    described = {name: {"format": "e4m3", "call_order": at} for at, name in enumerate(names)}
    start = time.perf_counter()
    found = tensor_columns(Picture(9, 0, names, frames), described)
    order = sorted_by(found, "overflow_pct", descending=True)
    took = time.perf_counter() - start
    print(f"100,000 tensors in order: {took:.2f} s")
    assert took < LIMIT_S
    values = found.stats["overflow_pct"][order]
    assert (np.diff(values[: int(present.sum())]) <= 0).all()
    assert found.line(int(found.worst[0])).state == NONFINITE


def test_the_state_of_a_tensor_is_its_worst_one() -> None:
    names = ("a", "b", "c", "d", "e", "f", "g")
    columns = {
        "overflow_pct": [0.05, 0.1, None, 0.0, None, math.nan, None],
        "underflow_pct": [0.0, 9.0, None, 5.0, None, None, None],
        "headroom_log2": [-3.0, 1.0, -0.1, 2.0, None, None, None],
        "rms": [1.0, 1.0, 1.0, 1.0, 1.0, math.inf, None],
    }
    frames = {
        stat: StatFrame(
            0,
            np.array([math.nan if value is None else value for value in values], np.float32),
            np.array([value is not None for value in values]),
        )
        for stat, values in columns.items()
    }
    found = tensor_columns(Picture(0, 0, names, frames), {})
    states = [found.line(at).state for at in range(7)]
    assert states == [FITS, CLIPS, CLIPS, FLUSHES, UNSCALED, NONFINITE, NO_STATS]


def test_addresses() -> None:
    assert tensor_href("r", "a/b%/../c") == "/runs/r/tensors/a%2Fb%25%2F..%2Fc"
    assert tensor_href("r", "..", at=3) == "/runs/r/tensors?tensor=..&at=3"
    assert tensors_href("r", at=None, q="", layer="a b") == "/runs/r/tensors?layer=a+b"
