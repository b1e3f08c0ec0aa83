"""The example workflow for GitHub Actions: its shell steps do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.diagnostics.reports.logs import broken, healthy, write
from tests.repo.repository import ROOT

WORKFLOW = ROOT / "examples" / "github-action" / "training-log.yml"


def steps() -> dict[str, str]:
    """Shell text of the named steps."""
    found: dict[str, str] = {}
    for step in re.split(r"^      - ", WORKFLOW.read_text(), flags=re.M)[1:]:
        name = re.match(r"name: (.+)", step)
        run = re.search(r"^        run: (\|\n((?: {10}.*\n)+)|.+)", step, re.M)
        if name and run:
            found[name[1]] = textwrap.dedent(run[2]) if run[2] else run[1]
    return found


def shell(step: str, folder: Path) -> int:
    """Runs a step as GitHub does: bash with -e and pipefail."""
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "page.md"),
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps()[step]]
    return subprocess.run(command, cwd=folder, env=env, timeout=120, check=False).returncode


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_a_critical_log_fails_the_job_and_is_on_its_page(checkout: Path) -> None:
    write(checkout / "logs" / "good.jsonl", healthy())
    write(checkout / "logs" / "bad.jsonl", broken())
    assert shell("Diagnose", checkout) == 1
    assert shell("Summary", checkout) == 0
    page = (checkout / "page.md").read_text()
    assert "2 runs: 1 critical, 1 healthy." in page
    assert "since step 41" in page
    assert (checkout / "report.html").read_text().startswith("<!doctype html>")


def test_a_healthy_log_passes(checkout: Path) -> None:
    write(checkout / "logs" / "good.jsonl", healthy())
    assert shell("Diagnose", checkout) == 0


def test_no_log_does_not_pass_as_healthy(checkout: Path) -> None:
    assert shell("Diagnose", checkout) == 2
    assert shell("Summary", checkout) == 0


def test_it_installs_an_extra_that_exists() -> None:
    extra = re.search(r"floatscope\[(\w+)\]", steps()["Install floatscope"])
    assert extra is not None
    assert f"\n{extra[1]} " in (ROOT / "pyproject.toml").read_text()
