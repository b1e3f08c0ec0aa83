"""What `--json` prints."""

from __future__ import annotations

import platform
from types import ModuleType
from typing import Any

import torch

from floatscope_trainer.facts.fact import Figure, Measured, Statement, contradictions
from floatscope_trainer.facts.table import MODULES, fact_of
from floatscope_trainer.facts.text import text_of

FACT_SCHEMA, LIST_SCHEMA = "floatscope.fact/1", "floatscope.facts/1"


def list_document() -> dict[str, Any]:
    """Names, claims and what the page says of each; nothing is measured."""
    rows = []
    for module in MODULES:
        fact, text = fact_of(module), text_of(module)
        rows.append({"name": fact.name, "title": text.title, "claim": text.claim, "says": fact.says})
    return {"schema": LIST_SCHEMA, "facts": rows}


def fact_document(module: ModuleType, found: Measured, seconds: float) -> dict[str, Any]:
    """One measurement."""
    fact, text = fact_of(module), text_of(module)
    against = contradictions(fact, found)
    return {
        "schema": FACT_SCHEMA,
        "name": fact.name,
        "title": text.title,
        "claim": text.claim,
        "verdict": found.verdict,
        "says": found.says or fact.says,
        "agrees": not against,
        "contradictions": against,
        "figures": [_figure(figure) for figure in found.figures],
        "claimed": [_statement(part) for part in found.claimed],
        "true": [_statement(part) for part in found.true],
        "what_is_true": text.truth,
        "how": text.method,
        "do": text.do,
        "source": text.source,
        "note": found.note,
        "seconds": round(seconds, 3),
        "machine": machine(),
    }


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    return {"torch": torch.__version__, "python": platform.python_version(), "processor": platform.machine()}


def _figure(figure: Figure) -> dict[str, Any]:
    range_ = None if figure.published is None else list(figure.published)
    return {
        "name": figure.name,
        "value": figure.value,
        "unit": figure.unit,
        "published": range_,
        "as_published": figure.is_as_published,
    }


def _statement(part: Statement) -> dict[str, Any]:
    return {"sentence": part.sentence, "holds": part.holds}
