"""Visits of the pages of one long run among a thousand: what a reader waits for, and what live data costs."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import BrowserContext, Page

from benchmarks.dashboard import browser
from benchmarks.dashboard.browser import Load
from benchmarks.server import machine
from benchmarks.server.reads import RUN, built
from benchmarks.server.serving import Lane, Reader, Running, server
from benchmarks.server.telemetry import STATS, Shape, Telemetry
from floatscope_dashboards import assets
from tests.server.live import TOKEN

TICKS = 10
SCRUBS = 20
MOST_FIRST_TEXT_MS, MOST_WHOLE_MS = 500.0, 2000.0
ONE_LINE = """async () => {
  const place = document.createElement('div');
  document.body.append(place);
  const y = Array.from({length: 2000}, (_, n) => Math.sin(n / 50));
  await Plotly.newPlot(place, [{y, mode: 'lines'}]);
  return performance.now();
}"""
SCRUB = """async () => {
  const place = document.getElementById('ruler-place');
  const began = performance.now();
  const changed = new Promise((done) => {
    const observer = new MutationObserver(() => { observer.disconnect(); done(true); });
    observer.observe(place, {childList: true, subtree: true});
    setTimeout(() => done(false), 5000);
  });
  document.dispatchEvent(new KeyboardEvent('keydown', {key: '[', bubbles: true}));
  return (await changed) ? performance.now() - began : null;
}"""


@dataclass(frozen=True)
class Visit:
    """A page and the elements that are there when it is whole."""

    name: str
    path: str
    drawn: tuple[str, ...]


def visits(telemetry: Telemetry) -> list[Visit]:
    tensor = quote(telemetry.names[300], safe="")
    return [
        Visit("overview of 1,000 runs", "/", ("#runs tbody tr",)),
        Visit(
            "run",
            f"/runs/{RUN}",
            ("#loss .main-svg", "#heat .main-svg", "#ruler-place svg, #ruler-place p"),
        ),
        Visit("tensors of the run", f"/runs/{RUN}/tensors", ("main table tbody tr",)),
        Visit("one tensor", f"/runs/{RUN}/tensors/{tensor}", ("#panels .main-svg",)),
        Visit("alerts", "/alerts", ("#alerts",)),
        Visit("rules", "/rules", ("main article, main .rule",)),
    ]


def report(*, steps: int, cache: str | None, times: int) -> None:
    """Builds the run, unless the cache has it, visits its pages, and prints."""
    telemetry = Telemetry(Shape())
    values = steps * telemetry.shape.tensors * len(STATS)
    with built(telemetry, steps, cache) as data, tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "data"
        shutil.copytree(data, own)  # it grows
        with server(own, FLOATSCOPE_DIAGNOSE="0") as running:
            url = f"http://127.0.0.1:{running.port}"
            found = {one.name: _visited(url, one, times) for one in visits(telemetry)}
            bound = [_one_line(url) for _ in range(times)]
            with browser.visitor() as context:
                browser.sign_in(context, url, TOKEN)
                page = _opened(context, url, visits(telemetry)[1])
                scrubbed = _scrubbed(page)
                ticked = _ticked(page, running, telemetry, steps)
    _print(found, statistics.median(bound), scrubbed, ticked, values)


def _visited(url: str, visit: Visit, times: int) -> tuple[list[Load], list[Load]]:
    """First visits, each in a browser of its own, and second ones."""
    cold, warm = [], []
    for _ in range(times):
        with browser.visitor() as context:
            browser.sign_in(context, url, TOKEN)
            cold.append(browser.load(context, url + visit.path, drawn=list(visit.drawn)))
            warm.append(browser.load(context, url + visit.path, drawn=list(visit.drawn)))
    return cold, warm


def _one_line(url: str) -> float:
    """Milliseconds until plotly.js, from an empty cache, has drawn one line of 2,000 points, no more."""
    with browser.visitor(bypass_csp=True) as context:
        page = context.new_page()
        page.goto(f"{url}/login", wait_until="commit")
        page.add_script_tag(url=f"{url}{assets.plotly_script(assets.wheel_script()).url}")
        return float(page.evaluate(ONE_LINE))


def _opened(context: BrowserContext, url: str, visit: Visit) -> Page:
    page = context.new_page()
    page.add_init_script(f"({browser.LONG_TASKS})()")
    page.goto(url + visit.path)
    page.wait_for_function(browser.DRAWN, arg=list(visit.drawn), timeout=browser.GIVE_UP_MS)
    page.wait_for_timeout(2000)
    return page


def _scrubbed(page: Page) -> list[float]:
    """Milliseconds from a key to the ruler of the other step."""
    found = [page.evaluate(SCRUB) for _ in range(SCRUBS)]
    if None in found:
        raise SystemExit("the range ruler did not follow the scrubber")
    return [float(took) for took in found]


def _ticked(page: Page, running: Running, telemetry: Telemetry, steps: int) -> Mapping[str, float]:
    """CPU of the page's thread for live data, once a second, and its longest task."""
    with Reader(running.port) as reader:
        run = reader.json(f"/api/v1/runs/{RUN}")
    expected = int(run["ranks"][0]["expected_seq"])
    lane, session = Lane(running.port, RUN), page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.evaluate("window.longTasks.length = 0")
    before = _task_s(session.send("Performance.getMetrics"))
    for seq in range(expected, expected + TICKS):
        lane.put(seq, telemetry.body(seq))
        page.wait_for_timeout(1000)
    page.wait_for_timeout(2000)
    spent = _task_s(session.send("Performance.getMetrics")) - before
    lane.close()
    shown = page.locator("#last-step").inner_text()
    last = (expected + TICKS) * telemetry.shape.steps - 1
    if shown != f"{last:,}":
        raise SystemExit(f"the page shows step {shown}, sent was {last:,}")
    longest = float(page.evaluate("Math.max(0, ...window.longTasks)"))
    return {"cpu_ms": spent / TICKS * 1e3, "longest_ms": longest}


def _task_s(answer: Mapping[str, list[dict[str, float]]]) -> float:
    (found,) = [one["value"] for one in answer["metrics"] if str(one["name"]) == "TaskDuration"]
    return float(found)


def _print(
    found: Mapping[str, tuple[list[Load], list[Load]]],
    bound: float,
    scrubbed: list[float],
    ticked: Mapping[str, float],
    values: int,
) -> None:
    print(f"{values:,} values in one run, 1,000 runs ({machine.load_average()}); medians, ms\n")
    print(f"  {'page':<26} {'first text':>10} {'whole':>8} {'longest task':>13} {'again':>8} {'KB':>6}")
    for name, (cold, warm) in found.items():
        text, whole = _median(cold, "first_text"), _median(cold, "whole")
        print(
            f"  {name:<26} {text:10.0f} {whole:8.0f} {_median(cold, 'longest_task'):13.0f} "
            f"{_median(warm, 'whole'):8.0f} {_median(cold, 'bytes_sent') / 1e3:6.0f}"
        )
    run_text, run_whole = _median(found["run"][0], "first_text"), _median(found["run"][0], "whole")
    print(
        f"\n  run page: first text at most {MOST_FIRST_TEXT_MS:.0f}: "
        f"{machine.verdict(run_text, MOST_FIRST_TEXT_MS, at_least=False)}; whole at most "
        f"{MOST_WHOLE_MS:.0f}: {machine.verdict(run_whole, MOST_WHOLE_MS, at_least=False)}"
    )
    print(
        f"  plotly.js alone with one line of 2,000 points: {bound:.0f} ms; the whole run page takes "
        f"{run_whole / bound:.2f} times that"
    )
    quantiles = machine.quantiles_ms([took / 1e3 for took in scrubbed], 0.5, 0.95)
    print(f"  scrubbing: key to ruler p50 {quantiles[0]:.0f} ms, p95 {quantiles[1]:.0f} ms")
    print(
        f"  live: {ticked['cpu_ms']:.0f} ms of the page's thread a tick (one a second, 43,200 values each), "
        f"longest task {ticked['longest_ms']:.0f} ms"
    )
    print(f"  {json.dumps({'taken_at': time.strftime('%Y-%m-%d %H:%M', time.gmtime())})}\n")


def _median(loads: list[Load], name: str) -> float:
    return statistics.median(float(getattr(one, name)) for one in loads)
