"""Promises about files:

none too long, none that names a machine, imports by name only where they are allowed.
"""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

import pytest

from tests.repo.repository import ROOT, relative, tracked

CEILING_LINES = 400
MEDIAN_LINES = 150
CODE = ("*.py", "*.js", "*.css", "*.html")
LATE_IMPORTERS = {"agent/floatscope/cli.py", "agent/floatscope/local.py"}
OWN_FOLDER_LOADERS = {  # load the rules or the line formats of their own package
    "diagnostics/floatscope_diagnostics/rules/__init__.py",
    "diagnostics/floatscope_diagnostics/rule_docs.py",
    "diagnostics/floatscope_diagnostics/readers/formats.py",
}


def line_counts() -> dict[str, int]:
    files = [path for path in tracked(*CODE) if "/vendor/" not in str(path)]
    return {relative(path): len(path.read_text().splitlines()) for path in files}


def test_no_file_is_longer_than_the_ceiling() -> None:
    assert {name: lines for name, lines in line_counts().items() if lines > CEILING_LINES} == {}


def test_the_median_module_is_short() -> None:
    product = [lines for name, lines in line_counts().items() if not name.startswith("tests/") and lines > 3]
    assert statistics.median(product) <= MEDIAN_LINES


def imports_by_name(path: Path) -> list[str | None]:
    """Modules a file imports with ``import_module``; None where the name is not written out."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    late = [call for call in calls if ast.unparse(call.func).endswith("import_module")]
    return [str(arg.value) if isinstance(arg := call.args[0], ast.Constant) else None for call in late]


def test_only_the_command_and_local_mode_reach_other_packages_by_name() -> None:
    """import-linter cannot see an import by name, so only the two files that may do it do."""
    found = set()
    for folder in ("agent", "diagnostics", "dashboards", "server", "trainer"):
        for path in tracked(f"{folder}/*.py"):
            if any(name is None or name.startswith("floatscope") for name in imports_by_name(path)):
                found.add(relative(path))
    assert found - OWN_FOLDER_LOADERS <= LATE_IMPORTERS


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "manager"])
def test_no_module_hides_behind_a_name_that_says_nothing(word: str) -> None:
    assert [relative(path) for path in tracked("*.py") if path.stem == word or path.parent.name == word] == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    registry = "|".join(
        [
            "files.python" + "hosted",
            r"py" + r"pi\.(org|io)",
            r"registry\." + "npmjs",
            r"(deb|security)\.de" + "bian",
        ]
    )
    machine = "|".join(["/wo" + "rk/", r"/tmp/bash_" + "jobs", r"\.py" + "env/"])
    pattern = re.compile(f"({registry}|{machine})")
    texts = [
        path
        for path in tracked()
        if path.suffix not in (".png", ".gz", ".zst", ".woff2") and "/vendor/" not in str(path)
    ]
    assert {
        relative(path): found.group() for path in texts if (found := pattern.search(path.read_text()))
    } == {}


def test_every_package_ships_its_types() -> None:
    packages = [
        "agent/floatscope",
        *(f"{f}/floatscope_{f}" for f in ("diagnostics", "dashboards", "server", "trainer")),
    ]
    assert [name for name in packages if not (ROOT / name / "py.typed").is_file()] == []
