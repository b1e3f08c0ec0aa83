"""`make audit` says what it found, and that it could not look is never taken for "nothing found"."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.repo.repository import ROOT

OLD = {
    "name": "old",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["1.1"], "aliases": [], "description": ""}],
}
GOOD = {"name": "good", "version": "2.0", "vulns": []}
ODD = {"name": "local", "skip_reason": "it is not published"}


def audited(tmp_path: Path, report: Any, *, code: int, said: str = "") -> subprocess.CompletedProcess[str]:
    """The script with a stand-in for pip-audit: it writes this report (None: none), ends with this code."""
    tool = tmp_path / "pip-audit"
    write = "" if report is None else f"open(sys.argv[sys.argv.index('--output') + 1], 'w').write({report!r})"
    tool.write_text(
        f"#!{sys.executable}\nimport sys\n{write}\nprint({said!r}, file=sys.stderr)\nsys.exit({code})\n"
    )
    tool.chmod(0o700)
    command = ["sh", str(ROOT / ".ci/audit.sh"), sys.executable, str(tool)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_known(tmp_path: Path) -> None:
    done = audited(tmp_path, json.dumps({"dependencies": [GOOD, ODD], "fixes": []}), code=0)
    assert (done.returncode, done.stdout) == (0, "1 packages looked at, 0 with known vulnerabilities\n")
    assert "not looked at: local" in done.stderr


def test_vulnerabilities_are_listed_with_what_mends_them(tmp_path: Path) -> None:
    done = audited(tmp_path, json.dumps({"dependencies": [GOOD, OLD], "fixes": []}), code=1)
    assert done.returncode == 1
    assert "old 1.0: PYSEC-2026-1, mended in 1.1" in done.stdout


@pytest.mark.parametrize("report", [None, "", "{", "[]", "{}"])
@pytest.mark.parametrize("code", [0, 1, 2])
def test_what_could_not_be_looked_up_is_no_good_news(tmp_path: Path, report: str | None, code: int) -> None:
    done = audited(tmp_path, report, code=code, said="ERROR: connection refused")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "COULD NOT LOOK" in done.stderr
    assert "connection refused" in done.stderr
