"""docs/settings.md: every setting of ``watch`` and every variable the agent reads, as they are now."""

from __future__ import annotations

import re
from dataclasses import fields

from floatscope.config import MonitorConfig
from tests.repo.repository import ROOT
from tests.repo.settings_docs import LEFT_OUT, docstrings, page, variables_read

PAGE = (ROOT / "docs" / "settings.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)


def test_the_page_is_up_to_date() -> None:
    assert page() == PAGE, "run: make docs"


def test_every_setting_and_variable_has_one_row() -> None:
    settings = [field.name for field in fields(MonitorConfig) if field.name not in LEFT_OUT]
    assert sorted(ROWS) == sorted([*settings, *variables_read()])


def test_settings_and_variables_are_found_in_the_source() -> None:
    """The comparison above cannot pass by finding nothing."""
    assert {"FLOATSCOPE_URL", "SLURM_PROCID", "MASTER_PORT"} <= variables_read()
    assert docstrings()["stats_every"].startswith("Steps between statistics")


def test_the_readme_leads_to_it() -> None:
    assert "(docs/settings.md)" in (ROOT / "README.md").read_text()
