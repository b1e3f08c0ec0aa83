"""The wheel holds the five packages with types, pages and migrations, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.repo.repository import ROOT

PACKAGES = {
    "floatscope",
    "floatscope_diagnostics",
    "floatscope_dashboards",
    "floatscope_server",
    "floatscope_trainer",
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = Path(out).glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_only_our_packages_are_inside(names: set[str]) -> None:
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES


def test_types_migrations_pages_and_licence_are_inside(names: set[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "floatscope_server/migrations/env.py" in names
    assert any(name.startswith("floatscope_server/migrations/versions/0001") for name in names)
    assert any(name.startswith("floatscope_dashboards/static/") and name.endswith(".css") for name in names)
    assert any(name.startswith("floatscope_dashboards/templates/") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
