"""The rules' pages are those of the docstrings."""

from __future__ import annotations

from pathlib import Path

from floatscope_diagnostics.rule_docs import main, pages

FOLDER = Path(__file__).parents[2] / "docs" / "rules"


def test_the_pages_are_current() -> None:
    stale = [
        n for n, text in pages().items() if not (FOLDER / n).exists() or (FOLDER / n).read_text() != text
    ]
    assert not stale, "run: python -m floatscope_diagnostics.rule_docs docs/rules"
    assert {p.name for p in FOLDER.glob("*.md")} == set(pages())


def test_pages_of_rules_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "FS999.md").write_text("old")
    assert main([str(tmp_path)]) == 0
    assert not (tmp_path / "FS999.md").exists()
    assert (tmp_path / "FS203.md").read_text().count("## What it checks") == 1


def test_without_a_folder_it_says_how_it_is_used() -> None:
    assert main([]) == 2
