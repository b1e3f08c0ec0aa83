"""What the comparison of two runs looks like in answers."""

from __future__ import annotations

from collections.abc import Mapping

from floatscope_diagnostics.compare.document import SCHEMA
from floatscope_server.openapi.shapes import (
    ANY_OBJECT,
    COUNT,
    FINITE,
    FLAG,
    NUMBER,
    TEXT,
    Shape,
    array,
    nullable,
    obj,
    one_of,
)

_BINS = obj(
    {
        "step": array(COUNT),
        "min": array(nullable(FINITE)),
        "max": array(nullable(FINITE)),
        "mean": array(nullable(FINITE)),
        "count": array(COUNT),
        "nan": array(COUNT),
        "inf": array(COUNT),
    },
    description="Finite values in bins of steps; null where a bin has none.",
)
_BAND = obj(
    {
        "pairs": COUNT,
        "step": array(COUNT),
        "mean": array(FINITE),
        "low": array(FINITE),
        "high": array(FINITE),
    },
    description="Mean difference with its confidence band over so many pairs around each step.",
)
_SERIES = obj(
    {
        "from": COUNT,
        "to": COUNT,
        "bin_steps": COUNT,
        "difference": _BINS,
        "band": _BAND,
        "run": _BINS,
        "baseline": _BINS,
    }
)
_NOTE = obj({"code": TEXT, "setting": TEXT, "run": TEXT, "baseline": TEXT})
_PAIR = {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}

_GATE = obj(
    {
        "name": one_of(
            ("loss", "drift", "held_out", "evals", "stability", "fp8_health", "speed", "cost"),
        ),
        "state": one_of(("pass", "fail", "undecided", "not_checked")),
        "sentence": TEXT,
        "value": nullable(NUMBER),
        "low": nullable(NUMBER),
        "high": nullable(NUMBER),
        "limit": nullable(NUMBER),
        "unit": TEXT,
    },
    additionalProperties=True,
)
_GO = obj(
    {
        "verdict": one_of(("go", "no_go", "not_yet")),
        "decidable": FLAG,
        "sentence": TEXT,
        "gates": array(_GATE),
        "more_steps": nullable(COUNT),
        "next": TEXT,
        "limits": ANY_OBJECT,
        "quality": nullable(ANY_OBJECT),
        "evals": array(ANY_OBJECT),
        "refused": array(obj({"code": TEXT, "sentence": TEXT}, additionalProperties=True)),
    },
    description="Whether to go on with the run's precision, for these limits and these steps.",
)

SHAPES: Mapping[str, Shape] = {
    "Comparison": obj(
        {
            "schema": {"const": SCHEMA},
            "run": ANY_OBJECT,
            "baseline": ANY_OBJECT,
            "decision": one_of(("same", "worse", "better", "undecided")),
            "summary": TEXT,
            "settings": ANY_OBJECT,
            "pairing": ANY_OBJECT,
            "difference": ANY_OBJECT,
            "separation": nullable(ANY_OBJECT),
            "separation_beyond_margin": nullable(ANY_OBJECT),
            "apart_since_step": nullable(COUNT),
            "learning_rates_differ": nullable(ANY_OBJECT),
            "nonfinite": nullable(ANY_OBJECT),
            "both_nonfinite_from": nullable(COUNT),
            "loud_steps": nullable(ANY_OBJECT),
            "shape": nullable(ANY_OBJECT),
            "tensors": ANY_OBJECT,
            "needed": ANY_OBJECT,
            "method": ANY_OBJECT,
            "go": _GO,
            "tensor_rows": nullable(obj({"read": _PAIR, "logged": _PAIR})),
            "notes": array(_NOTE),
            "series": _SERIES,
        },
        description="The document of floatscope compare --json, with what a picture of it shows.",
    ),
}
