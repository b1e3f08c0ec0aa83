"""Recipes as strangers write them: what cannot be understood is named and never held against a scale."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.diagnostics.case import Case, alarms, diagnose
from tests.diagnostics.synthetic import Run

ODD = (10**400, -(10**400), math.inf, math.nan, True, "a lot", [4])


def verdict(**recipe: object) -> dict[str, Any]:
    run = Run(steps=20, margin=2.0)
    info = run.info()
    return diagnose(Case("odd", {**info, "recipe": {**info["recipe"], **recipe}}, run.rows()))


def unchecked(found: dict[str, Any]) -> list[str]:
    return [e["needs"][0] for e in found["not_checked"] if e["needs"][0].startswith("recipe.")]


FIELDS = [("margin", odd) for odd in ODD] + [("amax_history_len", odd) for odd in (10**400, math.nan, 0, "8")]


@pytest.mark.parametrize(("field", "odd"), FIELDS, ids=lambda value: str(value)[:6])
def test_a_number_that_is_none_leaves_the_scale_unchecked_and_says_so(field: str, odd: object) -> None:
    found = verdict(**{field: odd})
    assert alarms(found) == []
    assert unchecked(found) == [f"recipe.{field}"]
    json.dumps(found)


@pytest.mark.parametrize("recipe", [{}, {"margin": 2}, {"amax_history_len": 8.0}, {"interval": 10**400}])
def test_what_is_understood_is_checked(recipe: dict[str, object]) -> None:
    assert unchecked(verdict(**recipe)) == []


def test_a_margin_that_is_understood_and_wrong_is_held_against_the_scale() -> None:
    """The opposite: a recipe of another margin than the scales have."""
    assert [f["cause"] for f in alarms(verdict(margin=5))] == ["scale_state_fault"]
