"""The documents name only what exists:

paths, make targets, commands, settings; and the changelog has the version.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from floatscope.cli import COMMANDS
from floatscope_server.settings import Settings
from tests.repo import server_settings_docs
from tests.repo.repository import ROOT, relative, tracked

DOCUMENTS = tracked("*.md")
NOT_OURS = ("checkpoint", "path/", "your", "/var", "/etc", "~", "http")


def ids(path: Path) -> str:
    return relative(path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_link_and_path_exists(document: Path) -> None:
    text = document.read_text()
    links = [
        link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if not link.startswith(("http", "mailto"))
    ]
    missing = [link for link in links if not (document.parent / link).exists()]
    folders = "agent|diagnostics|dashboards|server|trainer|migrations|tests|docs|benchmarks|examples|\\.ci"
    paths = re.findall(rf"`((?:{folders})/[\w./-]+)`", text)
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_make_target_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^|\$ )make ([a-z][a-z-]+)", document.read_text(), re.M))
    assert named - targets == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_command_exists(document: Path) -> None:
    named = set(re.findall(r"(?:`|^ {4,}|\$ |bin/)floatscope ([a-z][a-z-]*)", document.read_text(), re.M))
    assert named - set(COMMANDS) == set()


@pytest.mark.parametrize("page", tracked("docs/fp8/recipes/*.md"), ids=ids)
def test_the_logs_a_recipes_commands_read_are_written_by_one_before(page: Path) -> None:
    written: set[str] = set()
    for line in re.findall(r"^\$ floatscope (.*)", page.read_text(), re.M):
        made = re.findall(r"--log (\S+)", line)
        assert set(re.findall(r"\S+\.jsonl", line)) <= written | set(made), line
        written |= set(made)


def test_the_readme_and_the_pages_of_settings_list_exactly_what_is_read() -> None:
    named = {
        page: set(re.findall(r"FLOATSCOPE_[A-Z_]+[A-Z]", (ROOT / page).read_text()))
        for page in ("README.md", "docs/settings.md", "docs/server-settings.md")
    }
    server = {f"FLOATSCOPE_{name.upper()}" for name in Settings.model_fields}
    agent = "".join(path.read_text() for path in tracked("agent/*.py"))
    read = server | set(re.findall(r"FLOATSCOPE_[A-Z_]+[A-Z]", agent))
    assert named["docs/settings.md"] | named["docs/server-settings.md"] == read
    assert named["README.md"] <= read


def test_the_page_of_the_servers_settings_is_up_to_date() -> None:
    assert (ROOT / "docs/server-settings.md").read_text() == server_settings_docs.page()


def test_the_changelog_begins_with_the_version() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    entry = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert version is not None
    assert entry is not None
    assert entry.group(1) == version.group(1)


def test_decisions_are_numbered_without_repeats() -> None:
    numbers = [path.name[:4] for path in tracked("docs/decisions/*.md")]
    assert len(numbers) == len(set(numbers))
    assert all(number.isdigit() for number in numbers)
