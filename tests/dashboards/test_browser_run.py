"""The run page in a real Chromium: charts, live verdict, zoom, theme, address, keys, hover, copying."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboards import sample
from tests.dashboards.sample import LAST, ONSET, Curves, run_view, verdict
from tests.dashboards.site import Site
from tests.dashboards.watched import Watched, watched_page

RUN = "/runs/k3f9q2"
CHARTS = ("#loss .main-svg", "#heat .main-svg")


def open_run(watched: Watched, site: Site, query: str = "") -> Page:
    page = watched.page
    page.goto(site.url + RUN + query)
    page.locator(CHARTS[0]).first.wait_for()
    page.locator("#layers").scroll_into_view_if_needed()
    page.locator(CHARTS[1]).first.wait_for()
    page.evaluate("scrollTo(0, 0)")
    expect(page.locator("#live-word")).to_have_text("Live")
    return page


def x_range(page: Page) -> list[float]:
    found: list[float] = page.evaluate("document.getElementById('loss')._fullLayout.xaxis.range.map(Number)")
    return found


def growing(site: Site, start: int) -> Callable[[int], None]:
    """Makes the site's run end at `start`; the returned function lets it grow to a step and tells the
    browser."""
    state: dict[str, Any] = {"step": start}
    whole = sample.faulty_curves()

    def curves(run: str) -> Curves | None:
        return whole.until(state["step"]) if run == "k3f9q2" else None

    def view(run: str) -> Any:
        if run != "k3f9q2":
            return None
        if state["step"] <= ONSET:
            return run_view(
                verdict(steps=state["step"] + 1),
                health="healthy",
                headline="No fault found.",
                onset_step=None,
                last_step=state["step"],
            )
        return run_view(last_step=state["step"])

    def grow(step: int) -> None:
        was = state["step"]
        state["step"] = step
        site.publish("tick", run="k3f9q2", rank=0, step=step, time=0.0)
        if was <= ONSET < step:
            site.publish("verdict", run="k3f9q2", status="critical", findings=1)

    site.curves, site.run = curves, view
    return grow


def test_verdict_loss_with_onset_and_heat_map(watched: Watched, site: Site) -> None:
    page = open_run(watched, site)
    expect(page.locator("#verdict-h")).to_contain_text("Activations of blocks.8.mlp.fc2 clip")
    loss = page.locator("#loss")
    expect(loss.get_by_text("Onset 300")).to_be_visible()
    expect(loss.get_by_text("Grad norm")).to_be_visible()
    expect(loss.get_by_text("Values clipped, blocks.8.mlp.fc2/input")).to_be_visible()
    assert (
        page.evaluate("document.getElementById('loss').data.find((t) => t.name === 'Baseline').x.length")
        > 100
    )
    assert page.locator("#heat .heatmaplayer image").count() == 2
    expect(page.locator("#heat").get_by_text("began here")).to_be_visible()
    assert page.title().startswith("\u25b2 llama-7b-e4m3-r3")


def test_no_button_sends_data_away_and_no_colour_is_plotlys_own(watched: Watched, site: Site) -> None:
    page = open_run(watched, site)
    page.locator("#loss").hover()
    titles = page.locator(".modebar-btn").evaluate_all(
        "(all) => all.map((b) => b.dataset.title ?? b.ariaLabel ?? '')"
    )
    assert len(titles) == 2
    assert not [title for title in titles if re.search("share|cloud|send|edit", title, re.IGNORECASE)]
    drawn = page.locator("#loss .main-svg").first.inner_html()
    assert not re.search("rgb\\(31, 119, 180\\)|rgb\\(99, 110, 250\\)|#636efa|#1f77b4", drawn)


def test_the_verdict_appears_live_without_a_reload(watched: Watched, site: Site) -> None:
    grow = growing(site, 280)
    page = open_run(watched, site)
    page.evaluate("window.sameDocument = true")
    expect(page.locator("#verdict-h")).to_contain_text("No finding in 281 steps")
    assert page.locator("#around").is_hidden()
    grow(330)
    expect(page.locator("#verdict-h")).to_contain_text("Activations of blocks.8.mlp.fc2 clip")
    expect(page.locator("#last-step")).to_have_text("330")
    expect(page.locator("#loss").get_by_text("Onset 300")).to_be_visible()
    expect(page.locator("#announce")).to_contain_text("Verdict: Activations")
    expect(page.locator("#around")).to_be_visible()
    assert page.title().startswith("\u25b2")
    assert page.evaluate("window.sameDocument") is True


def test_the_chart_follows_the_run_while_its_end_is_in_view(watched: Watched, site: Site) -> None:
    grow = growing(site, 100)
    page = open_run(watched, site)
    before = x_range(page)
    grow(160)
    page.wait_for_function("() => document.getElementById('loss')._fullLayout.xaxis.range[1] > 155")
    assert x_range(page)[0] == before[0]


def test_the_readers_zoom_is_never_moved(watched: Watched, site: Site) -> None:
    grow = growing(site, 310)
    page = open_run(watched, site)
    page.locator("#around").click()
    page.wait_for_function("() => document.getElementById('loss')._fullLayout.xaxis.range[0] > 100")
    zoomed = x_range(page)
    for step in (330, 340, 350, 360, 370):
        grow(step)
        page.wait_for_timeout(250)
    expect(page.locator("#newest")).to_have_text("Newest step 370")
    assert x_range(page) == zoomed
    page.locator("#newest").click()
    page.wait_for_function("() => document.getElementById('loss')._fullLayout.xaxis.range[1] > 365")
    expect(page.locator("#newest")).to_be_hidden()


def test_dragging_zooms_and_escape_shows_the_whole_run_again(watched: Watched, site: Site) -> None:
    page = open_run(watched, site)
    whole = x_range(page)
    box = page.locator("#loss .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 60, steps=5)
    page.mouse.up()
    page.wait_for_function("() => document.getElementById('loss')._fullLayout.xaxis.range[0] > 150")
    expect(page.locator("#loss-note")).to_contain_text("Esc shows the whole run")
    asked = [
        query for path, query in site.requests if path == "/api/v1/runs/k3f9q2/scalars" and "from" in query
    ]
    assert int(asked[-1]["from"]) > 150
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.getElementById('loss')._fullLayout.xaxis.range[0] < 1")
    assert x_range(page) == whole


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_follows_the_system_and_can_be_switched(browser: Browser, site: Site, system: Any) -> None:
    context = browser.new_context(color_scheme=system, viewport={"width": 1440, "height": 900})
    other = "light" if system == "dark" else "dark"
    line = {"light": "rgb(0, 114, 178)", "dark": "rgb(86, 180, 233)"}
    with watched_page(context, site.url) as watched:
        page = open_run(watched, site)

        def drawn(theme: str) -> None:
            page.wait_for_function(
                "(colour) => document.querySelector('#loss .main-svg')?.innerHTML.includes(colour)",
                arg=line[theme],
            )

        drawn(system)
        page.locator("#theme").click()
        drawn(other)
        page.reload()
        drawn(other)
        page.goto(site.url + RUN + f"?theme={system}")
        drawn(system)
    context.close()


def test_statistic_and_step_are_in_the_address(watched: Watched, site: Site) -> None:
    page = open_run(watched, site)
    expect(page.locator("#scrub")).to_contain_text("Step 300")
    page.get_by_role("button", name="Underflow").click()
    page.wait_for_url("**stat=underflow_pct**")
    page.keyboard.press("]")
    page.wait_for_url("**at=*")
    address = page.url
    step = re.search(r"at=(\d+)", address)
    assert step is not None
    assert int(step.group(1)) > ONSET
    page.goto(address)
    page.locator("#layers").scroll_into_view_if_needed()
    page.locator(CHARTS[1]).first.wait_for()
    assert "stat=underflow_pct" in address
    chosen = page.locator("[data-stat=underflow_pct]")
    expect(chosen).to_have_attribute("aria-pressed", "true", timeout=15_000)
    expect(page.locator("#scrub")).to_contain_text(f"Step {step.group(1)}")
    page.keyboard.press("o")
    expect(page.locator("#scrub")).to_contain_text("Step 300")


def test_a_setting_is_copied_as_it_is(browser: Browser, site: Site) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    with watched_page(context, site.url) as watched:
        page = open_run(watched, site)
        page.locator("#copy-setting").click()
        expect(page.locator("#copy-setting")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "Float8CurrentScaling()"
        page.locator("#copy-framework").select_option(label="Megatron-LM")  # its setting is folded away
        page.locator("#copy-setting").click()
        page.wait_for_function(
            "async () => (await navigator.clipboard.readText()).startsWith('--fp8-recipe')"
        )
    context.close()


def test_what_is_open_stays_open_when_the_verdict_is_renewed(watched: Watched, site: Site) -> None:
    page = open_run(watched, site)
    page.get_by_text("For Megatron-LM, torchao").click()
    expect(page.get_by_text("--fp8-recipe tensorwise")).to_be_visible()
    view = site.run("k3f9q2")
    assert view is not None
    site.run = {"k3f9q2": replace(view, row=replace(view.row, last_step=LAST + 9))}.get
    site.publish("verdict", run="k3f9q2", status="critical", findings=1)
    expect(page.get_by_text("128 steps trained since.").first).to_be_visible()
    expect(page.get_by_text("--fp8-recipe tensorwise")).to_be_visible()


def test_a_chart_that_cannot_be_read_says_why(watched: Watched, site: Site) -> None:
    watched.expected.append("404")
    site.curves = lambda run: None
    page = watched.page
    page.goto(site.url + RUN)
    expect(page.locator("#loss")).to_contain_text("The loss could not be loaded: the server answered 404")
    expect(page.locator("#heat")).to_contain_text("The heat map could not be loaded")


def test_a_run_without_tensor_statistics_says_so(watched: Watched, site: Site) -> None:
    site.run = lambda run: run_view(verdict(), health="healthy", onset_step=None, heat_stats=())
    page = watched.page
    page.goto(site.url + RUN)
    page.locator(CHARTS[0]).first.wait_for()
    expect(page.get_by_text("nothing to show by layer")).to_be_visible()
    expect(page.locator("#heat")).to_be_hidden()


def test_the_page_is_fast_enough(watched: Watched, site: Site) -> None:
    page = open_run(watched, site)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 1200, "first text is the server's HTML and waits for no script"
