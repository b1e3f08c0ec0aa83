"""What answers about number formats look like: what other formats would do, which layers should change."""

from __future__ import annotations

from collections.abc import Mapping

from floatscope_diagnostics.advisor.advice import FRAMEWORKS
from floatscope_diagnostics.advisor.advice import SCHEMA as ADVICE
from floatscope_diagnostics.whatif.document import SCHEMA as WHAT_IF
from floatscope_server.openapi.shapes import (
    ANY_OBJECT,
    COUNT,
    FINITE,
    FLAG,
    NUMBER,
    TEXT,
    Shape,
    array,
    by_name,
    nullable,
    obj,
    one_of,
)

_FLAG = obj({"code": TEXT, "sentence": TEXT})
_MEASURED = {name: nullable(FINITE) for name in ("underflow_pct", "overflow_pct", "sqnr_db")}
_VARIANT = obj(
    {
        "key": TEXT,
        "label": TEXT,
        "granularity": one_of(("none", "tensor", "row", "block")),
        "block": nullable(COUNT),
        "bits": FINITE,
        **_MEASURED,
        "bulk_sqnr_db": nullable(FINITE),
        "measured": FLAG,
        "valid": FLAG,
        "why_not": TEXT,
        "underflow_error_pct": nullable(FINITE),
        "sqnr_error_db": nullable(FINITE),
    },
    description="Percentages are of the values that are not 0. The errors are the largest of such "
    "predictions in the benchmark, that of SQNR at least two standard deviations of what chance makes of "
    "this tensor's few largest values; null: not measured for values like these.",
    additionalProperties=True,
)
_TENSOR = obj(
    {
        "tensor": TEXT,
        "step": nullable(COUNT),
        "format_in_use": nullable(TEXT),
        "flags": array(_FLAG, description="What makes the predictions doubtful."),
        "amax": nullable(FINITE),
        "scale": nullable(FINITE),
        "in_use": nullable(obj(_MEASURED, description="As the run measured its own cast.")),
        "variants": array(_VARIANT),
    },
    additionalProperties=True,
)
_PROBLEM = obj(
    {
        "layer": TEXT,
        "role": TEXT,
        "tensor": TEXT,
        "what": TEXT,
        "value": NUMBER,
        "limit": NUMBER,
        "since_step": COUNT,
        "window": nullable(
            obj(
                {"first_step": COUNT, "last_step": COUNT, "rows": COUNT},
                description="The rows whose mean the value is.",
            )
        ),
    },
    additionalProperties=True,
)
_LAYER = obj(
    {
        "layer": TEXT,
        "from": TEXT,
        "to": TEXT,
        "why": array(TEXT),
        "harm": NUMBER,
        "flops_share_pct": nullable(NUMBER),
        "predicted": by_name(NUMBER),
        "not_judged": array(TEXT, description="Finer recipes that could not be predicted."),
    },
    additionalProperties=True,
)
_ROWS = obj({"read": COUNT, "logged": COUNT})

SHAPES: Mapping[str, Shape] = {
    "Advice": obj(
        {
            "schema": {"const": ADVICE},
            "run": TEXT,
            "steps": nullable({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}),
            "framework": one_of(FRAMEWORKS),
            "decision": one_of(("keep_fp8", "move_layers", "not_layers", "cannot_say")),
            "sentence": TEXT,
            "limits": by_name(NUMBER),
            "problems": array(_PROBLEM),
            "layers": array(_LAYER, description="Most harm for each FLOP first."),
            "kept": COUNT,
            "predicted": ANY_OBJECT,
            "settings": by_name(TEXT),
            "always": TEXT,
            "experiment": TEXT,
            "not_decided": array(_FLAG),
            "baseline": nullable(TEXT),
            "step_rows": _ROWS,
        },
        description="Which layers should leave FP8, what that should bring and cost.",
    ),
    "WhatIf": obj(
        {
            "schema": {"const": WHAT_IF},
            "run": TEXT,
            "step": nullable(COUNT),
            "from": one_of(("histogram", "sample")),
            "notes": array(TEXT),
            "tensors": array(_TENSOR),
            "rank": COUNT,
            "asked_step": COUNT,
            "total": COUNT,
            "without": array(TEXT, description="Tensors of which no histogram is near the step."),
            "why_not": nullable(TEXT),
            "next_cursor": nullable(TEXT),
        },
        description="step: of the histograms, null where they are of several; each tensor names its own.",
    ),
}
