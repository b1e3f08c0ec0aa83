"""Versions of drivers, libraries and packages against what is known of them."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.gpu_visible import used_gpus
from floatscope.preflight.recipe_matrix import rules_of
from floatscope.preflight.table_conditions import Situation, all_hold
from floatscope.preflight.table_reading import Answer, Row, answers, read_table, row_of, worst
from floatscope.preflight.versions import text_of

TABLES = ("versions", "drivers")


def software_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """One check for each version in the tables that matters here."""
    library = rules_library(wanted)
    situations = [Situation(facts, wanted.recipe, library, gpu) for gpu in used_gpus(facts)]
    found = [
        check
        for entry in software_entries()
        if (check := _check(entry, facts, situations or [Situation(facts, wanted.recipe, library)]))
        is not None
    ]
    return [*found, *_torch_import(facts)]


def software_entries() -> list[dict[str, Any]]:
    """The checks of the tables, as the files have them."""
    return [entry for name in TABLES for entry in read_table(name)["checks"]]


def software_rows(entry: dict[str, Any]) -> tuple[Row, ...]:
    """The rules of one check of the tables."""
    return _all_rows()[entry["name"]]


@cache
def _all_rows() -> dict[str, tuple[Row, ...]]:
    return {entry["name"]: tuple(row_of(rule) for rule in entry["rules"]) for entry in software_entries()}


def rules_library(wanted: Wanted) -> str:
    """Whose rules count for what is wanted; "" where nothing was said that needs a library."""
    if wanted.recipe:
        return rules_of(wanted.recipe, wanted.library)
    return "transformer_engine" if wanted.library in ("megatron", "accelerate") else wanted.library


def is_amd(facts: Facts) -> bool:
    """Whether the GPUs are AMD's, or torch is built for them: CUDA and its libraries are then no question."""
    return bool(facts.torch.get("hip")) or any(gpu.arch.startswith("gfx") for gpu in facts.gpus)


def _check(entry: dict[str, Any], facts: Facts, situations: list[Situation]) -> Check | None:
    if not all_hold(entry["relevant"], situations[0]) or (entry.get("vendor") == "nvidia" and is_amd(facts)):
        return None
    label = entry["label"]
    text = text_of(facts, entry["fact"])
    if not text:
        return _absent(entry, facts, known=text is not None)
    found = _distinct([a for situation in situations for a in answers(software_rows(entry), situation)])
    status = worst([answer.status for answer in found]) if found else "pass"
    told = [answer for answer in found if answer.status == status] if status != "pass" else found
    return Check(
        entry["name"],
        "software",
        status,
        f"{label} {text}",
        "; ".join(dict.fromkeys(answer.why for answer in told)) or entry["why"],
        "; ".join(dict.fromkeys(answer.do for answer in told if answer.do)) if status != "pass" else "",
        "; ".join(dict.fromkeys(answer.source for answer in told)) or entry["source"],
    )


def _torch_import(facts: Facts) -> list[Check]:
    """A torch that is installed and does not start: its version alone would pass."""
    error = facts.failed.get("torch_import", "")
    if not error or text_of(facts, "torch") == "":
        return []
    hangs = error.startswith("no answer within")
    return [
        Check(
            "software.torch_import",
            "software",
            "unknown" if hangs else "fail",
            f"import torch: {error}",
            "nothing of torch runs here: no cast, no GEMM, no training",
            "import it by hand and look"
            if hangs
            else "install torch again, with the CUDA libraries it names",
            "the import, tried",
        )
    ]


def _absent(entry: dict[str, Any], facts: Facts, *, known: bool) -> Check:
    absent = entry["absent"]
    reason = facts.failed.get(entry["fact"]) or facts.failed.get("versions", "")
    read = (
        f"no {entry['label']}" if known else f"{entry['label']} not read" + (f": {reason}" if reason else "")
    )
    status = cast(Status, absent["status"]) if known else "unknown"
    return Check(entry["name"], "software", status, read, entry["why"], absent["do"], entry["source"])


def _distinct(found: list[Answer]) -> list[Answer]:
    return list({(answer.row, answer.status): answer for answer in found}.values())
