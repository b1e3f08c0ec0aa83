"""The pages of tensors in a browser, on the real server."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from floatscope_dashboards.tensor_links import tensor_href
from tests.dashboards.axe import violations
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.watched import Watched, watched_page

STEPS = 120
SLOW_MS = 20_000  # of a whole page on a busy machine
SCRUB_MS = 3_500  # numbers of a step asked for while others are on their way; live news waits four seconds
NUMBERS_SETTLE_MS = 230
FROZEN_AT = 60
NAN_AT = 90
HOSTILE = '<img src=x onerror="alert(1)"> 100%/../</script>/input'
LONG = "layers." + "x" * 1_000 + "/weight"
CLIPS = "layers.0.mlp.fc2/input"
ONE_STEP, ALL_NAN = "layers.1.once/input", "layers.1.nan/input"
RECIPE = {"name": "fp8_delayed_scaling", "amax_history_len": 8, "amax_compute_algo": "max", "margin": 0}


def rows() -> list[dict[str, Any]]:
    """A scale that stands still while amax grows fourfold; histograms at every fifth step."""
    found = []
    for step in range(STEPS):
        amax = 2.0 if step < FROZEN_AT else 8.0
        clipped = 0.0 if step < FROZEN_AT else 12.5
        values: dict[str, Any] = {
            "amax": amax,
            "scale": 1.0 if step == 0 else 224.0,
            "overflow_pct": clipped,
            "underflow_pct": 0.01,
            "nan_count": 7.0 if step == NAN_AT else 0.0,
        }
        if step % 5 == 0:
            values["hist_log2"] = [0] * 36 + [10, 20, 40, 80, 20, 5] + [0] * 22
        quiet = {"amax": 1.0, "scale": 448.0, "overflow_pct": 0.0, "underflow_pct": 0.0}
        tensors = {CLIPS: values, HOSTILE: quiet, LONG: quiet, ALL_NAN: {"amax": "NaN", "rms": "NaN"}}
        if step == 3:
            tensors[ONE_STEP] = quiet
        time = 1_790_000_000.0 + 30 * step
        found.append({"step": step, "time": time, "loss": 2.0, "passes": 1.0, "tensors": tensors})
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    found = RealServer(tmp_path_factory.mktemp("tensors"))
    found.start()
    table = {name: {"format": "e4m3"} for name in (CLIPS, HOSTILE, LONG, ONE_STEP, ALL_NAN)}
    found.call("POST", "/api/v1/runs", {"run_id": "r", "name": "run <b>", "recipe": RECIPE, "tensors": table})
    steps = rows()
    for seq, at in enumerate(range(0, STEPS, 20)):
        found.send("r", seq, steps[at : at + 20])
    yield found
    found.kill()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, server: RealServer) -> Iterator[BrowserContext]:
    found = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page = found.new_page()
    page.goto(f"{server.url}/?token={TOKEN}")
    page.close()
    yield found
    found.close()


@pytest.fixture
def on(signed_in: BrowserContext, server: RealServer) -> Iterator[Watched]:
    with watched_page(signed_in, server.url) as found:
        yield found


def drawn(page: Page) -> Page:
    page.locator("#panels .main-svg").first.wait_for()
    page.locator("#values .main-svg").first.wait_for()
    return page


def ready(page: Page) -> None:
    """Until the page's script listens to keys."""
    page.locator("#live:not([data-state=static])").wait_for()


def shapes(page: Page, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(
        "(name) => document.querySelector('#panels').layout.shapes.filter((s) => s.name === name)", name
    )
    return found


def saved(page: Page, host: str) -> list[list[str]]:
    """The rows of the CSV that a chart's menu saves."""
    page.locator(f"{host} .tools-open").click()
    with page.expect_download() as download:
        page.locator(f"{host} [data-tool=csv]").click()
    return list(csv.reader(io.StringIO(Path(download.value.path()).read_text())))


def test_one_tensor_its_charts_zoom_together_and_the_address_keeps_the_view(
    on: Watched, server: RealServer
) -> None:
    page = on.page
    page.goto(server.url + tensor_href("r", CLIPS))
    drawn(page)
    assert len(shapes(page, "limit")) == 1
    assert [(s["x0"], s["x1"]) for s in shapes(page, "nonfinite")] == [(NAN_AT - 0.5, NAN_AT + 0.5)]
    told = page.evaluate("() => document.querySelector('#panels').layout.annotations.map((a) => a.text)")
    assert any("2.0 binades too high" in text for text in told)
    shadow = page.evaluate(
        "() => { const t = document.querySelector('#panels').data.find((t) => t.meta[0] === 'shadow_scale');"
        " return t.x.map((x, i) => [x, t.customdata[i]]).filter(([x]) => x === 59 || x === 119) }"
    )
    assert shadow == [[59, "224"], [119, "56"]]
    table = saved(page, "#panels-tools")
    head = next(row for row in table if row and row[0] == "Step")
    at = table.index(head)
    assert len(table) - at - 1 == STEPS
    assert [float(cell) for cell in table[-1][1:4]] == [8 * 224.0] * 3
    values = saved(page, "#values-tools")
    assert [row[0] for row in values][-1] == "115"
    assert "2^-4" in next(row for row in values if row and row[0] == "Step")

    page.evaluate("Plotly.relayout('panels', {'xaxis.range[0]': 40.2, 'xaxis.range[1]': 80.4})")
    expect(page).to_have_url(re.compile(r"from=40&to=80"))
    expect(page.locator("#values-note")).to_contain_text("from 40 to 80")
    expect(page.locator("#whole")).to_be_visible()
    page.locator("[data-values=before]").click()
    page.locator("[data-x=time]").click()
    expect(page.locator("#panels")).to_contain_text("Time,")
    page.keyboard.press("]")
    expect(page).to_have_url(re.compile(r"values=before&x=time&at=\d+"))
    address = page.url
    page.reload()
    drawn(page)
    assert page.url == address
    expect(page.locator("[data-values=before]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#panels")).to_contain_text("Time,")
    assert page.evaluate("document.querySelector('#panels').layout.xaxis.range") == [40, 80]
    expect(page.locator(".cursor").first).to_be_attached()
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("from="))
    expect(page.locator("#values-note")).to_contain_text("from 0 to 115")
    page.go_back()
    expect(page.locator("#values-note")).to_contain_text("from 40 to 80")


def test_numbers_follow_the_step_and_keys_lead_from_tensor_to_tensor(on: Watched, server: RealServer) -> None:
    page = on.page
    page.goto(server.url + tensor_href("r", CLIPS, at=30))
    drawn(page)
    expect(page.locator("#number-step")).to_have_text("30")
    page.evaluate("window.sameDocument = true")
    page.keyboard.press("}")
    expect(page.locator("#number-step")).to_have_text("40")
    page.keyboard.press("[")
    page.wait_for_timeout(NUMBERS_SETTLE_MS)
    page.keyboard.press("[")  # while the numbers of the step before are on their way
    expect(page.locator("#number-step")).to_have_text("38", timeout=SCRUB_MS)
    assert page.evaluate("window.sameDocument") is True
    names = [page.locator("h1").inner_text()]
    for _ in range(2):
        page.keyboard.press("n")
        expect(page.locator("h1")).not_to_have_text(names[-1], timeout=SLOW_MS)
        ready(page)
        names.append(page.locator("h1").inner_text())
    page.keyboard.press("p")
    expect(page.locator("h1")).to_have_text(names[-2], timeout=SLOW_MS)
    assert len(set(names)) == 3


def test_any_name_and_any_state_is_a_page_that_is_accessible(on: Watched, server: RealServer) -> None:
    page = on.page
    page.on("dialog", lambda dialog: on.problems.append(f"dialog {dialog.message}"))
    for name in (HOSTILE, LONG, ONE_STEP, ALL_NAN):
        page.goto(server.url + tensor_href("r", name))
        page.locator("#panels .main-svg").first.wait_for()
        assert page.locator("h1").inner_text().replace("\n", "") == name
        expect(page.locator("#values")).to_contain_text("this one has none")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    on.expected.append("404")
    page.goto(server.url + tensor_href("r", "layers.0.mlp.fc2/inptu"))
    expect(page.locator(".near a").first).to_have_text(CLIPS)
    page.locator(".near a").first.click()
    drawn(page)
    assert violations(page) == []
    page.keyboard.press("t")
    assert violations(page) == []
    page.keyboard.press("t")
    page.set_viewport_size({"width": 390, "height": 800})
    page.reload()
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_table_by_keyboard_its_filters_and_its_csv(on: Watched, server: RealServer) -> None:
    page = on.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(server.url + "/runs/r/tensors")
    expect(page.locator("#rows tr")).to_have_count(5)
    assert violations(page) == []
    with page.expect_download() as download:
        page.locator("#csv").click()
    lines = list(csv.reader(io.StringIO(Path(download.value.path()).read_text())))
    found = {row[0]: dict(zip(lines[0], row, strict=True)) for row in lines[1:]}
    assert found[HOSTILE]["scale"] == "448"
    assert math.isnan(float(found[ALL_NAN]["amax"]))
    assert found[ALL_NAN]["scale"] == ""
    assert found[CLIPS]["nan_count"] == "0"
    page.locator("#q").fill("FC2")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/tensors\?q=FC2$"))
    expect(page.locator("#rows tr")).to_have_count(1)
    ready(page)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(CLIPS, timeout=SLOW_MS)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(server.url + "/runs/r/tensors?state=bogus")
    expect(page.locator(".note.warn")).to_contain_text("state")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page) == []
