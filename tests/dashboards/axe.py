"""Accessibility of a page by axe-core's default rules.

    assert violations(page) == []

What the page shows now is judged: open what is to be judged first, and ask again in the other theme.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

_RUN = """async (only) => {
  const found = await axe.run(only ?? document, { resultTypes: ['violations'] });
  return found.violations.map((violation) => ({
    id: violation.id,
    nodes: violation.nodes.map((node) => `${node.target.join(' ')}: ${node.failureSummary}`),
  }));
}"""


@cache
def _script() -> str:
    spec = find_spec("axe_playwright_python")
    assert spec is not None, "install axe-playwright-python (the dev extra has it)"
    assert spec.origin is not None
    return (Path(spec.origin).parent / "axe.min.js").read_text()


def violations(page: Page, only: str | None = None) -> list[str]:
    """Each broken rule with its elements; `only`: a selector to judge a part. Empty when all is well."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_script())
    found: list[dict[str, Any]] = page.evaluate(_RUN, only)
    return [f"{rule['id']}: " + "; ".join(rule["nodes"][:5]) for rule in found]
