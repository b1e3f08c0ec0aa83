"""Every fact is listed, has its texts, and can contradict its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import floatscope_trainer.facts.measured as measured
from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement, contradictions, verdict_of
from floatscope_trainer.facts.table import MODULES, fact_of, find
from floatscope_trainer.facts.text import text_of

NAMES = [fact_of(module).name for module in MODULES]


def holds(value: bool) -> Statement:
    return Statement("it is so", value)


def test_every_file_of_the_folder_is_in_the_table() -> None:
    files = {path.stem for path in Path(measured.__path__[0]).glob("*.py")} - {"__init__"}
    assert {module.__name__.rpartition(".")[2] for module in MODULES} == files
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_a_fact_has_its_texts_and_the_name_of_its_file(module: ModuleType) -> None:
    text = text_of(module)
    assert fact_of(module).name == module.__name__.rpartition(".")[2].replace("_", "-")
    assert all((text.title, text.claim, text.truth, text.method, text.do, text.source))
    assert find(fact_of(module).name) is module


def test_a_docstring_without_a_heading_is_refused() -> None:
    made = ModuleType("made")
    made.__doc__ = "Title.\n\nWhat people say\n    So.\nWhat is true\n    Not so.\nWhat to do\n    This.\n"
    with pytest.raises(ValueError, match="How it is measured, Source"):
        text_of(made)
    made.__doc__ += "What to do\n    That.\n"
    with pytest.raises(ValueError, match="two headings"):
        text_of(made)


def test_the_verdict_follows_from_the_parts() -> None:
    assert verdict_of([holds(True), holds(True)]) == "true"
    assert verdict_of([holds(True), holds(False)]) == "partly"
    assert verdict_of([holds(False)]) == "false"
    with pytest.raises(ValueError, match="at least one part"):
        verdict_of([])


def test_figures_that_contradict_the_page_are_told() -> None:
    good = Measured((Figure("x", 1.0, "%", (0.0, 2.0)),), (holds(False),), (holds(True),))
    fact = Fact("made", "false", lambda: good)
    assert contradictions(fact, good) == []
    assert "make it true" in contradictions(fact, replace(good, claimed=(holds(True),)))[0]
    assert contradictions(fact, replace(good, true=(holds(False),))) == ["does not hold here: it is so"]
    far = replace(good, figures=(Figure("x", 3.0, "%", (0.0, 2.0)),))
    assert contradictions(fact, far) == ["x: 3, expected 0 to 2 %"]
    nan = replace(good, figures=(Figure("x", float("nan"), "", (0.0, 2.0)),))
    assert len(contradictions(fact, nan)) == 1
    assert contradictions(fact, replace(good, claimed=(holds(True),), says="true")) == []
