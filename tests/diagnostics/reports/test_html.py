"""The page: opens offline, runs nothing, asks nobody, whatever is in the log."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from floatscope_diagnostics.diagnose import diagnose_paths
from floatscope_diagnostics.gather import Unread
from floatscope_diagnostics.reports import html
from floatscope_diagnostics.reports.html import page
from tests.diagnostics.cases import amax_history_poisoning
from tests.diagnostics.reports.logs import HOSTILE, broken, healthy, write

VOID = {"meta", "link", "br", "img", "wbr", "input", "hr"}


class Strict(HTMLParser):
    """Notes every tag, checks that they are closed in order, and keeps attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(*paths: str) -> str:
    done, unread = diagnose_paths(paths)
    return page(done, unread, code=1)


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    name = HOSTILE.replace("\x1b", "")  # a name with control characters is passed over
    rows: list[dict[str, Any]] = [{**row, name: 1.0} for row in broken()]
    for row in rows:
        row["tensors"] = {f"{name}/input": {"amax": 1.0, "nan_count": 5 if row["loss"] == "NaN" else 0}}
    return write(tmp_path / "a<b>&'\".jsonl", rows, {"name": name, "status": "crashed", "reason": HOSTILE})


def test_no_script_no_request_and_every_name_is_text(hostile: str) -> None:
    text = page_of(hostile)
    found = Strict(text)
    assert not {"script", "iframe", "object", "img", "form", "base"} & set(found.tags)
    assert [a for a in found.attributes if a[1].startswith("on") or a[1] == "src"] == []
    links = [value for _, name, value in found.attributes if name == "href"]
    assert all(value is not None and value.startswith(("data:,", "#")) for value in links)
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert text.count("&lt;script&gt;") > 3  # the run, the tensor, the reason


def test_the_onset_the_stretch_and_the_bad_values_are_marked(tmp_path: Path) -> None:
    text = page_of(write(tmp_path / "run.jsonl", broken()))
    assert 'class="st critical"' in text
    assert 'class="on critical"' in text
    assert "1: step 41" in text
    assert "20 NaN" in text
    assert "loss from 2.991 to NaN, 20 values not finite" in text
    assert "Last clean step" in text


def test_several_runs_have_an_index_worst_first(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.jsonl", healthy()), write(tmp_path / "b.jsonl", broken())]
    text = page_of(*paths, str(tmp_path / "gone"))
    found = Strict(text)
    ids = {value for _, name, value in found.attributes if name == "id"}
    links = [value for tag, name, value in found.attributes if (tag, name) == ("a", "href") and value]
    assert [link.removeprefix("#") in ids for link in links] == [True, True]
    assert links == ["#run-2", "#run-1"]
    assert "1 input could not be read" in text


def test_ids_are_given_once(tmp_path: Path) -> None:
    text = page_of(*(write(tmp_path / f"{k}.jsonl", broken()) for k in range(3)))
    ids = [value for _, name, value in Strict(text).attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_a_page_without_any_run_says_why() -> None:
    text = page([], [Unread("x", "no such file")], code=2)
    Strict(text)
    assert "no such file" in text


def test_thirty_healthy_runs_stay_small(tmp_path: Path) -> None:
    text = page_of(*(write(tmp_path / f"{k}.jsonl", healthy(600)) for k in range(30)))
    assert len(text) < 1_000_000


def test_of_very_many_runs_the_worst_are_told_in_detail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "MOST_ARTICLES", 2)
    rows = [healthy(), broken(), healthy(), broken()]
    text = page_of(*(write(tmp_path / f"{k}.jsonl", r) for k, r in enumerate(rows)))
    assert re.findall(r'id="(run-\d)"', text) == re.findall(r'href="#(run-\d)"', text) == ["run-2", "run-4"]
    assert "2.jsonl" in text.replace("<wbr>", "")


def test_values_without_bounds_are_drawn_inside_the_picture(tmp_path: Path) -> None:
    odd = [1e300, -1e300, 1e-300, 0.0, "NaN", "Infinity", "-Infinity"]
    rows = [{"step": s, "loss": odd[s % 7], "lr": 0.0, "grad_norm": 1e-320} for s in range(1, 200)]
    text = page_of(write(tmp_path / "run.jsonl", rows))
    Strict(text)
    numbers = [float(n) for n in re.findall(r"(?<=[ML])(-?[\d.]+) ", text)]
    assert all(0 <= n <= 700 for n in numbers)
    assert "nan" not in "".join(re.findall(r' d="[^"]*"', text))


def opened(browser: Browser, path: Path, scheme: str, width: int, problems: list[str]) -> Page:
    shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    address = path.as_uri()
    shown.on("request", lambda r: None if r.url in (address, "data:,") else problems.append(r.url))
    shown.on("console", lambda m: problems.append(m.text))
    shown.on("pageerror", lambda e: problems.append(str(e)))
    shown.goto(address)
    return shown


@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 1000), ("light", 390)])
def test_a_browser_shows_it_without_a_request_or_complaint(
    scheme: str, width: int, browser: Browser, hostile: str, tmp_path: Path
) -> None:
    case = amax_history_poisoning.POISON
    poisoned = write(tmp_path / "poison.jsonl", list(case.rows()), case.info())
    target = tmp_path / "report.html"
    target.write_text(page_of(hostile, poisoned, write(tmp_path / "ok.jsonl", healthy())))
    problems: list[str] = []
    shown = opened(browser, target, scheme, width, problems)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.locator("article").count() == 3
    assert shown.locator("svg.ch").count() == 3
    background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(13, 16, 20)" if scheme == "dark" else "rgb(245, 246, 248)")
    shown.close()
    assert problems == []


def test_it_prints_on_a4_a_run_a_page(browser: Browser, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text(page_of(write(tmp_path / "run.jsonl", broken())))
    shown = opened(browser, target, "dark", 1000, [])
    pdf = shown.pdf(format="A4", prefer_css_page_size=True)
    shown.close()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) in (1, 2)
