"""Environment variables that change numbers, speed or safety, and names that nothing reads."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from floatscope.preflight.check import Check, Status
from floatscope.preflight.environment_conflicts import conflict_checks, holds_on
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.table_reading import read_table

_PREFIX = "NVTE"
MOST_UNKNOWN = 20
_SHOWN = 60


def environment_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """A check of every variable that is set and known, of names that come near one, and of settings that
    contradict each other or the recipe. Without any: one that says so.
    """
    table = _variables()
    found = [*_known(facts, wanted, table), *_near(facts.environment, table)]
    found += conflict_checks(facts, wanted)
    if not found:
        found.append(_nothing(table))
    return found


def _variables() -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in read_table("environment")["variables"]}


def _known(facts: Facts, wanted: Wanted, table: Mapping[str, Any]) -> Iterator[Check]:
    for name in sorted(facts.environment.keys() & table.keys()):
        yield _where_needed(_of(table[name], facts.environment), table[name], facts, wanted)


def _where_needed(found: Check, entry: Mapping[str, Any], facts: Facts, wanted: Wanted) -> Check:
    """The check of a variable that some GPUs need for a recipe: nothing asks to unset it there."""
    needed = entry.get("needed")
    if needed is None or facts.environment[entry["name"]] not in needed["is"]:
        return found
    holds = holds_on(tuple(needed["when"]), facts, wanted)
    if holds is False:
        return found
    if holds is None:
        return replace(found, do=f"{found.do}, or the recipe is nvfp4 on {needed['where']}")
    both = "two runs compare only if both have it"
    why, source = f"{needed['why']}; {both}", f"{found.source}; {needed['source']}"
    return replace(found, status="pass", why=why, do="", source=source)


def _of(entry: Mapping[str, Any], environment: Mapping[str, str]) -> Check:
    name, value = entry["name"], environment[entry["name"]]
    kind = read_table("environment")["kinds"][entry["kind"]]
    read = f"{name}={value[:_SHOWN]} in the environment (default {entry['default'] or 'unset'})"
    why = f"{entry['effect']}; {kind['why']}"
    if entry.get("at_import"):
        why += "; it is read when Transformer Engine is imported, set later it does nothing"
    status: Status = kind["status"]
    do = kind["do"].format(name=name)
    allowed = entry.get("values", [])
    only_with = entry.get("only_with", "")
    if value == entry["default"]:
        status, do = "pass", ""
    elif allowed and value not in allowed:
        status, do = "warn", f"set {name} to one of {', '.join(allowed)}, or unset it"
        why += f"; this value is none of those known: {', '.join(allowed)}"
    elif only_with and environment.get(only_with, "none") == "none":
        status, do = "pass", ""
        why = f"without {only_with} it does nothing"
    return Check(f"environment.{name}", "environment", status, read, why, do, entry["source"])


def _near(environment: Mapping[str, str], table: Mapping[str, Any]) -> Iterator[Check]:
    """Names that look like Transformer Engine's and are none: it ignores them without a word."""
    exact = {name.upper(): name for name in table}
    unknown = [name for name in environment if name not in table and _looks_like(name)]
    for name in sorted(unknown)[:MOST_UNKNOWN]:
        near = exact.get(name.upper()) or _nearest(name, exact)
        meant = f"write {near}" if near else "look the name up in Transformer Engine's docs/envvars.rst"
        yield Check(
            f"environment.unknown.{name[:80]}",
            "environment",
            "warn",
            f"{name[:80]}={environment[name][:_SHOWN]} in the environment; no such variable is known",
            "names are case-sensitive, and Transformer Engine ignores what it does not know without a word"
            + (f"; {near} is one" if near else ""),
            f"{meant}, or unset {name[:80]}",
            read_table("environment")["source"],
        )
    if len(unknown) > MOST_UNKNOWN:
        yield Check(
            "environment.unknown",
            "environment",
            "warn",
            f"{len(unknown) - MOST_UNKNOWN} further NVTE variables that are not known",
            "Transformer Engine ignores a name that it does not know without a word",
            "unset them",
            read_table("environment")["source"],
        )


def _looks_like(name: str) -> bool:
    """NVTE_..., whatever its case, and the letters of NVTE in another order."""
    head = re.split("[_-]", name, maxsplit=1)[0].upper()
    return len(name) > 4 and sorted(head) == sorted(_PREFIX)


def _nearest(name: str, exact: Mapping[str, str]) -> str:
    found = difflib.get_close_matches(name.upper()[:80], exact, n=1, cutoff=0.8)
    return exact[found[0]] if found else ""


def _nothing(table: Mapping[str, Any]) -> Check:
    return Check(
        "environment.variables",
        "environment",
        "pass",
        f"none of the {len(table)} known variables is set, nor one that looks like them",
        "variables can change a recipe's numbers behind the program's back",
        "",
        read_table("environment")["source"],
    )
