"""Environment settings that contradict the recipe, the GPU or each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.table_conditions import Situation, all_hold
from floatscope.preflight.table_reading import read_table, row_of


def conflict_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """One check for each row of the table "environment_conflicts" that holds on this machine.

    A row's ``set`` are variables that must have one of the values, "*" for any; ``recipe`` and
    ``capability`` are as in the other tables.  A row that depends on a GPU that could not be read is unknown.
    """
    found = []
    for entry in read_table("environment_conflicts")["rows"]:
        if not _are_set(entry["set"], facts.environment):
            continue
        row = row_of(entry)
        holds = holds_on(row.when, facts, wanted)
        if holds is False:
            continue
        read = ", ".join(f"{name}={facts.environment[name][:60]}" for name in entry["set"])
        found.append(
            Check(
                f"environment.conflict.{row.id}",
                "environment",
                row.status if holds else "unknown",
                f"{read} in the environment" + ("" if holds else "; the GPU or the recipe is not known"),
                row.why,
                row.do,
                row.source,
            )
        )
    return found


def _are_set(wants: Mapping[str, list[str]], environment: Mapping[str, str]) -> bool:
    return all(
        environment.get(name) is not None and ("*" in values or environment[name] in values)
        for name, values in wants.items()
    )


def holds_on(when: tuple[Mapping[str, Any], ...], facts: Facts, wanted: Wanted) -> bool | None:
    """Whether a row's conditions hold for the recipe and any of the GPUs, None where that is not known."""
    if not wanted.recipe and any("recipe" in condition for condition in when):
        return None
    gpus = facts.gpus or (None,)
    answers = [all_hold(when, Situation(facts, wanted.recipe, wanted.library, gpu)) for gpu in gpus]
    if True in answers:
        return True
    return None if None in answers else False
