"""docs/diagnose.md: its table of formats is the one that is read, and every command in it is understood."""

from __future__ import annotations

import re
import shlex

import pytest

from floatscope_diagnostics.format_docs import with_table
from floatscope_diagnostics.importing.cli import parser as import_parser
from floatscope_diagnostics.options import check, mapping_of
from floatscope_diagnostics.options import parser as diagnose_parser
from tests.repo.repository import ROOT

PAGE = (ROOT / "docs" / "diagnose.md").read_text()
COMMANDS = re.findall(r"^ {4,}(.*floatscope (?:diagnose|import) .*)$", PAGE, re.M)


def test_the_table_of_formats_is_up_to_date() -> None:
    assert with_table(PAGE) == PAGE, "run: python -m floatscope_diagnostics.format_docs docs/diagnose.md"


def test_there_are_examples() -> None:
    assert len(COMMANDS) > 12


@pytest.mark.parametrize("line", COMMANDS)
def test_every_example_is_a_valid_command(line: str) -> None:
    words = shlex.split(line.rpartition("|")[2])
    assert words[0] == "floatscope"
    if words[1] == "import":
        import_parser().parse_args(words[2:])
        return
    args = diagnose_parser().parse_args(words[2:])
    check(args)
    mapping_of(args.map)
