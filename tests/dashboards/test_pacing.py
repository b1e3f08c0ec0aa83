"""How often a page reads itself again, in a real browser with a clock that jumps."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.dashboards.site import Site
from tests.dashboards.watched import Watched

PACED_JS = """async ({ leastMs, jumpMs, during }) => {
  const { paced } = await import('/static/js/swap.js');
  const [now, later] = [performance.now.bind(performance), globalThis.setTimeout];
  const waits = [];
  let jumped = 0;
  let works = 0;
  performance.now = () => now() + jumped;
  globalThis.setTimeout = (run, wait) => {
    waits.push(Math.round(wait));
    return works ? 0 : later(run, wait); // the first work is done, of the next one only its wait counts
  };
  try {
    const done = new Promise((resolve) => {
      const ask = paced(async () => {
        works += 1;
        jumped = jumpMs;
        for (const options of during) ask(options);
        later(resolve, 50);
      }, leastMs);
      ask();
    });
    await done;
  } finally {
    [performance.now, globalThis.setTimeout] = [now, later];
  }
  return waits;
}"""


def waits(watched: Watched, site: Site, **given: Any) -> list[int]:
    page = watched.page
    page.goto(site.url + "/")
    expect(page.locator("#overview")).to_be_visible()
    found: list[int] = page.evaluate(PACED_JS, given)
    return found


@pytest.mark.parametrize(
    ("jump_ms", "least", "most"),
    [
        (0, 2900, 3000),  # quick work: the least pause
        (4000, 11_900, 12_100),  # slow work: three times as long
        (3_600_000, 30_000, 30_000),  # the computer slept for an hour meanwhile
    ],
)
def test_the_pause_follows_the_work_up_to_half_a_minute(
    watched: Watched, site: Site, jump_ms: int, least: int, most: int
) -> None:
    first, second = waits(watched, site, leastMs=3000, jumpMs=jump_ms, during=[{}])
    assert first == 0
    assert least <= second <= most


def test_what_is_asked_for_soon_while_it_works_is_done_right_after_it(watched: Watched, site: Site) -> None:
    assert waits(watched, site, leastMs=3000, jumpMs=4000, during=[{"soon": True}, {}]) == [0, 0]
    assert waits(watched, site, leastMs=3000, jumpMs=4000, during=[]) == [0]
