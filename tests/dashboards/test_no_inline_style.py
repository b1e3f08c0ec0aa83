"""Pages need no inline style: plotly.js finds its rules in a stylesheet, bars have their width by a class."""

from __future__ import annotations

import re

from floatscope_dashboards import assets
from floatscope_dashboards.pages import CONTENT_SECURITY_POLICY
from tests.repo.repository import ROOT

ROOTS = (("X", ".js-plotly-plot .plotly"), ("Y", ".plotly-notifier"))
TEXT = r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')"""
RULE = re.compile(rf"(?:{TEXT}|([A-Za-z]+)):{TEXT}([,}}])")


def rules_in(script: str) -> list[str]:
    """The style rules in a plotly.js bundle, last first: each is put in front of those before it."""
    at = script.index('{"X,X div":') + 1
    rules: list[str] = []
    while True:
        found = RULE.match(script, at)
        assert found is not None, script[at : at + 80]
        selector = found[1] or found[2] or found[3]
        for letter, root in ROOTS:
            selector = selector.replace(letter, root)
        rules.append(f"{selector}{{{found[4] or found[5]}}}")
        at = found.end()
        if found[6] == "}":
            return rules[::-1]


def test_the_stylesheet_has_exactly_the_rules_of_the_plotly_that_is_served() -> None:
    vendor = assets.static_dir() / "vendor"
    rules = rules_in((vendor / assets.PLOTLY_FILE).read_text())
    lines = (vendor / assets.PLOTLY_STYLE).read_text().splitlines()
    assert lines[0].startswith("/*")
    assert lines[1:] == rules
    wheel = assets.wheel_script()
    assert wheel is not None
    assert rules_in(wheel.read_text()) == rules


def test_there_is_a_width_for_every_percentage() -> None:
    text = (assets.static_dir() / "widths.css").read_text()
    assert re.findall(r"^\.w(\d+) \{ width: \1%; \}$", text, re.M) == [str(n) for n in range(101)]


def test_no_template_has_a_style_or_a_script_of_its_own() -> None:
    templates = sorted((ROOT / "dashboards/floatscope_dashboards/templates").glob("*.html"))
    assert templates
    for path in templates:
        text = path.read_text()
        assert not re.search(r"\sstyle\s*=|<style|\son[a-z]+\s*=|javascript:", text, re.I), path.name
        assert all("src=" in tag or "json" in tag for tag in re.findall(r"<script[^>]*>", text)), path.name


def test_the_policy_allows_nothing_inline_but_the_style_attributes_of_plotly() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split(";"))
    assert (rules["style-src"], rules["script-src"]) == ("'self'", "'self'")
    assert [name for name, value in rules.items() if "unsafe" in value] == ["style-src-attr"]
