"""Every page of the real server, wide and light, and as narrow and dark as a phone at night: no axe
violation, nothing wider than the screen, no text below 11 px, no console message, no request to another host,
no name that became markup. A picture of each is left in artifacts/dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.dashboards.axe import violations
from tests.dashboards.faulty_log import FAULT_STEP, FAULTY, STEPS, description, steps
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.watched import watched_page
from tests.repo.repository import ROOT

SHOTS = ROOT / "artifacts" / "dashboard"
LOOKS = {
    "wide-light": {"viewport": {"width": 1440, "height": 2400}, "color_scheme": "light"},
    "phone-dark": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
TABLET = {"width": 1024, "height": 768}
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
BROKEN, ONE_STEP, NO_TENSORS, EMPTY = "all-nan", "one-step", "no-tensors", "no-steps"
READY = """() => [...document.querySelectorAll('.plot')].every((plot) =>
  !plot.checkVisibility() || plot.getBoundingClientRect().top > innerHeight ||
  plot.querySelector('.main-svg, .note, p'))"""
SPILLED = """() => [...document.querySelectorAll('.card *')].filter((one) => {
  const text = [...one.childNodes].find((child) => child.nodeType === 3 && child.data.trim());
  if (!text || one.closest('svg, .sr') || !one.checkVisibility()) return false;
  const card = one.closest('.card');
  for (let box = one; box !== card; box = box.parentElement)
    if (getComputedStyle(box).overflowX !== 'visible') return false;
  const range = document.createRange();
  range.selectNodeContents(text);
  return range.getBoundingClientRect().right > card.getBoundingClientRect().right + 1;
}).map((one) => one.outerHTML.slice(0, 120))"""
"""Texts that stand out of their card."""
SMALLEST_TEXT_PX = """() => Math.min(...[...document.querySelectorAll('body *')]
  .filter((one) => !one.closest('svg') && one.checkVisibility() &&
    [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .map((one) => parseFloat(getComputedStyle(one).fontSize)))"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Runs in every state, with names that are markup; the faulty one has alerts."""
    found = RealServer(tmp_path_factory.mktemp("server"))
    found.start()

    def run(name: str, rows: list[dict[str, object]], **more: object) -> None:
        found.call("POST", "/api/v1/runs", {"run_id": name, **description(), **more})
        if rows:
            found.send(name, 0, rows)

    run("base", steps(faulty=False))
    run("faulty", steps(), baseline="base")
    broken = [{"step": n, "loss": "NaN", "grad_norm": "NaN", "lr": 1e-3} for n in range(STEPS)]
    run(BROKEN, broken, tensors={})
    run(ONE_STEP, steps()[:1])
    run(
        NO_TENSORS,
        [{"step": n, "loss": 2.0 - n / 1000} for n in range(100)],
        tensors={},
        recipe={"name": "bf16"},
    )
    run(EMPTY, [])
    yield found
    found.kill()


def addresses() -> dict[str, str]:
    """A name for the picture -> the page."""
    tensor = quote(FAULTY, safe="")
    return {
        "runs": "/?status=all",
        "runs-none-match": "/?q=nothing-is-called-so",
        "run-faulty": f"/runs/faulty?at={FAULT_STEP + 2}",
        "run-healthy": "/runs/base",
        "run-all-nan": f"/runs/{BROKEN}",
        "run-one-step": f"/runs/{ONE_STEP}",
        "run-no-tensors": f"/runs/{NO_TENSORS}",
        "run-no-steps": f"/runs/{EMPTY}?at=nonsense&x=moons&unknown=1",
        "tensors": "/runs/faulty/tensors",
        "tensor": f"/runs/faulty/tensors/{tensor}",
        "advice": "/runs/faulty/advice",
        "advice-no-tensors": f"/runs/{NO_TENSORS}/advice",
        "tensor-unknown": "/runs/faulty/tensors/%3Cb%3Eno",
        "compare-choose": "/compare",
        "compare": "/compare?run=faulty&baseline=base",
        "report": "/runs/faulty/report",
        "alerts": "/alerts",
        "rules": "/rules",
        "settings": "/settings",
        "no-such-page": "/nowhere",
    }


def signed_in(browser: Browser, server: RealServer, look: str) -> BrowserContext:
    context = browser.new_context(**LOOKS[look])  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{server.url}/?token={TOKEN}")
    page.close()
    return context


@pytest.mark.parametrize("look", LOOKS)
def test_every_page(browser: Browser, server: RealServer, look: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    context = signed_in(browser, server, look)
    wrong: dict[str, object] = {}
    with watched_page(context, server.url) as watched:
        watched.expected.append("404")
        page = watched.page
        for name, address in addresses().items():
            page.goto(server.url + address)
            page.wait_for_function(READY)
            found = {
                "axe": violations(page),
                "too wide": page.evaluate(TOO_WIDE),
                "spilled": page.evaluate(SPILLED),
                "small text": page.evaluate(SMALLEST_TEXT_PX) < 11,
                "markup": page.evaluate("'stolen' in window"),
                "no title": "floatscope" not in page.title(),
            }
            page.screenshot(path=SHOTS / f"{name}-{look}.png", full_page=True)
            if look == "wide-light":
                page.set_viewport_size(TABLET)  # type: ignore[arg-type]
                found["too wide for a tablet"] = page.evaluate(TOO_WIDE)
                page.set_viewport_size(LOOKS[look]["viewport"])  # type: ignore[arg-type]
            faults = {what: said for what, said in found.items() if said}
            if faults:
                wrong[name] = faults
    context.close()
    assert wrong == {}


def test_a_gpu_that_is_chosen_stays_in_the_address(browser: Browser, server: RealServer) -> None:
    context = signed_in(browser, server, "wide-light")
    with watched_page(context, server.url) as watched:
        page = watched.page
        page.goto(f"{server.url}/runs/faulty/advice?gpu=l40s")
        expect(page.locator("#gpu")).to_have_value("L40S")
        page.locator("#gpu").select_option("B200")
        page.wait_for_url("**/advice?gpu=B200")
        page.goto(f"{server.url}/runs/faulty/advice?gpu=Z9&framework=te")
        expect(page.locator(".note.warn")).to_contain_text("No GPU called Z9 is known")
        page.locator("#gpu").select_option("L4")
        page.wait_for_url("**/advice?framework=te&gpu=L4")
    context.close()


def test_sign_in_and_the_first_start(browser: Browser, tmp_path: Path) -> None:
    server = RealServer(tmp_path)
    server.start()
    try:
        for look, options in LOOKS.items():
            context = browser.new_context(**options)  # type: ignore[arg-type]
            with watched_page(context, server.url) as watched:
                for name, address in (("sign-in", "/login"), ("first-start", f"/?token={TOKEN}")):
                    watched.page.goto(server.url + address)
                    assert violations(watched.page) == [], name
                    width = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert width <= 0, name
                    watched.page.screenshot(path=SHOTS / f"{name}-{look}.png", full_page=True)
            context.close()
    finally:
        server.kill()
