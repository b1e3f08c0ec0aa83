"""What runs, their numbers and their verdicts look like in answers."""

from __future__ import annotations

from collections.abc import Mapping

from floatscope.protocol.closer_look import MOST_LAYERS
from floatscope.protocol.judgement import HEALTHS, MOST_FINDINGS, SEVERITIES
from floatscope_diagnostics.rule import FAMILY_OF
from floatscope_diagnostics.verdict import SCHEMA, STATUSES
from floatscope_server.openapi.shapes import (
    ANY_OBJECT,
    COUNT,
    FINITE,
    FLAG,
    NUMBER,
    TEXT,
    TIME,
    WHOLE,
    Shape,
    array,
    by_name,
    nullable,
    obj,
    one_of,
    ref,
)

RUN_STATUSES = ("running", "stalled", "finished", "failed", "crashed")
FOUND_OF_RUN = ("run_id", "name", "project", "status", "health", "warming_up", "cause")
FAMILIES = tuple(sorted(set(FAMILY_OF.values())))

_RUN: Mapping[str, Shape] = {
    "run_id": TEXT,
    "name": TEXT,
    "project": TEXT,
    "baseline": nullable(TEXT),
    "recipe": ANY_OBJECT,
    "status": one_of(RUN_STATUSES),
    "reason": nullable(TEXT),
    "health": one_of(STATUSES),
    "warming_up": FLAG,
    "summary": nullable(TEXT),
    "cause": nullable(TEXT),
    "onset_step": nullable(COUNT),
    "first_step": nullable(COUNT),
    "last_step": nullable(COUNT),
    "last_loss": nullable(NUMBER),
    "created": TIME,
    "last_seen": nullable(TIME),
    "diagnosis_error": nullable(TEXT),
    "firing_alerts": COUNT,
}
_RANK = obj({"rank": COUNT, "expected_seq": COUNT, "segment": COUNT, "last_step": nullable(COUNT)})
_SETTINGS = obj(
    {},
    {
        "stats_every": {"type": "integer", "minimum": 1},
        "until_step": COUNT,
        "layers": array(TEXT, maxItems=MOST_LAYERS),
    },
    description="What the server asks the sender to do from now on.",
)
_FINDING_IN_SHORT = obj(
    {
        **{name: TEXT for name in ("id", "family", "cause", "state", "summary")},
        "severity": one_of(SEVERITIES),
        "segment": COUNT,
        "rolled_back": FLAG,
    },
    {
        **{name: TEXT for name in ("layer", "tensor", "remedy")},
        **{name: COUNT for name in ("onset_step", "onset_first", "detected_step", "resolved_step", "rank")},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    description="A finding in short; what is not known is missing.",
)
_VERDICT_IN_SHORT = obj(
    {
        "status": one_of(HEALTHS),
        "judged_step": nullable(COUNT),
        "segment": COUNT,
        "last_clean_step": nullable(COUNT),
        "summary": TEXT,
        "findings": array(_FINDING_IN_SHORT, maxItems=MOST_FINDINGS),
    }
)
FINDING: Mapping[str, Shape] = {
    "id": TEXT,
    "family": one_of(FAMILIES),
    "cause": TEXT,
    "kind": nullable(TEXT),
    "symptom": nullable(TEXT),
    "severity": one_of(SEVERITIES),
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "onset_step": COUNT,
    "onset_window": array(COUNT, minItems=2, maxItems=2),
    "detected_step": nullable(COUNT),
    "resolved_step": nullable(COUNT),
    "rank": nullable(COUNT),
    "layer": nullable(TEXT),
    "tensor": nullable(TEXT),
    "order": nullable(TEXT),
    "affected_tensors": COUNT,
    "summary": TEXT,
    "evidence": array(ANY_OBJECT),
    "alternatives": array(ANY_OBJECT),
    "remedy": ANY_OBJECT,
    "decisive_test": nullable(TEXT),
    "rule": TEXT,
}
_VERDICT = obj(
    {
        "schema": {"const": SCHEMA},
        "source": ANY_OBJECT,
        "status": one_of(STATUSES),
        "summary": TEXT,
        "last_clean_step": nullable(WHOLE),
        "findings": array(ref("Finding")),
        "not_checked": array(ANY_OBJECT),
    },
    description="What is wrong with the run, since when and where; the state after the last step judged.",
    additionalProperties=True,
)
_COLUMNS: Mapping[str, Shape] = {
    "step": array(COUNT, description="Where each bin begins."),
    **{name: array(nullable(NUMBER)) for name in ("min", "max", "mean", "last")},
    **{name: array(COUNT) for name in ("count", "nan", "inf")},
}
_CELLS = array(array(COUNT, minItems=3, maxItems=3), description="[row, column, count] of the first 50,000.")
_TENSOR = obj(
    {
        "name": TEXT,
        "layer": TEXT,
        "role": TEXT,
        "stats": array(TEXT),
        "ranks": array(COUNT),
        "last": by_name(NUMBER),
    },
    description="Beside these what the run said of the tensor: format, call_order, recipe.",
    additionalProperties=True,
)

SHAPES: Mapping[str, Shape] = {
    "Run": obj(_RUN),
    "RunDetails": obj({**_RUN, "ranks": array(_RANK), "tensor_count": COUNT, "info": ANY_OBJECT}),
    "OpenedRun": obj(
        {
            "run_id": TEXT,
            "expected_seq": by_name(COUNT),
            "segment": by_name(COUNT),
            "settings": ANY_OBJECT,
            "url": TEXT,
        },
        description="By rank: the seq of the batch that is expected next, and the segment.",
    ),
    "Found": obj(
        {
            "runs": array(obj({name: _RUN[name] for name in FOUND_OF_RUN})),
            "more_runs": FLAG,
            "tensors": array(obj({"run_id": TEXT, "run_name": TEXT, "name": TEXT})),
            "more_tensors": FLAG,
        },
        description="Of a search. The flags say that there is more than is listed, or was looked at.",
    ),
    "DeletedRun": obj({"deleted": TEXT}),
    "Receipt": obj(
        {"expected_seq": COUNT, "segment": COUNT, "settings": _SETTINGS}, {"verdict": _VERDICT_IN_SHORT}
    ),
    "Finding": obj(FINDING, additionalProperties=True),
    "Verdict": {
        "anyOf": [_VERDICT, {"type": "object", "maxProperties": 0, "description": "Nothing was judged."}]
    },
    "Columns": obj(_COLUMNS, description="Bins of steps as arrays of one length; null: no finite value."),
    "Scalars": obj({"run_id": TEXT, "step": array(COUNT), "series": by_name(ref("Columns"))}),
    "Series": obj({"run_id": TEXT, "tensor": TEXT, "stat": TEXT, "rank": COUNT, **_COLUMNS}),
    "HeatMap": obj(
        {
            "stat": TEXT,
            "tensors": array(TEXT),
            "from": array(COUNT),
            "to": array(COUNT),
            "encoding": {"const": "u1"},
            "lo": nullable(FINITE),
            "hi": nullable(FINITE),
            "data": {
                "type": "string",
                "contentEncoding": "base64",
                "description": "A byte for each tensor and column: 0 to 253 from lo to hi, 254 missing, "
                "255 not finite.",
            },
            "nan": _CELLS,
            "inf": _CELLS,
        },
        {"nan_left_out": COUNT, "inf_left_out": COUNT},
        additionalProperties=True,
    ),
    "HistogramSeries": obj(
        {
            "run_id": TEXT,
            "tensor": TEXT,
            "rank": COUNT,
            "sampled": COUNT,
            "looked_at": COUNT,
            "step": array(COUNT),
            "lowest": array(WHOLE),
            "counts": array(array(COUNT)),
            "scale": array(nullable(NUMBER)),
            "amax": array(nullable(NUMBER)),
        },
        description="Counts of each step by exponent, from the lowest that has values; sampled: steps that "
        "have histograms of some tensor, of which looked_at were read.",
    ),
    "Ticks": obj(
        {
            "run_id": TEXT,
            "axis": {"enum": ["step", "tokens", "time"]},
            "title": TEXT,
            "ticks": array(obj({"step": FINITE, "text": TEXT})),
            "why": nullable(TEXT),
        }
    ),
    "RankMap": obj(
        {
            "run_id": TEXT,
            "name": TEXT,
            "worst": {"enum": ["low", "high"]},
            "ranks": array(array(COUNT), description="The ranks of each row."),
            "from": array(COUNT),
            "to": array(COUNT),
            "values": array(array(nullable(FINITE)), description="By row and column; null: no finite value."),
            "nan": array(array(COUNT, minItems=3, maxItems=3)),
            "inf": array(array(COUNT, minItems=3, maxItems=3)),
            "throttled": array(
                array(COUNT, minItems=3, maxItems=3),
                description="[row, column, reasons]; reasons: bits of NVML's nvmlClocksEventReasons.",
            ),
        },
        {"ranks_left_out": COUNT},
    ),
    "Tensor": _TENSOR,
    "Frame": obj(
        {
            "run_id": TEXT,
            "rank": COUNT,
            "segment": nullable(COUNT),
            "step": nullable(COUNT),
            "tensors": array(TEXT),
            "stats": by_name(obj({"step": COUNT, "values": array(nullable(NUMBER))})),
        },
        {"hist_log2": obj({"step": nullable(COUNT), "counts": by_name(array(COUNT))})},
        description="A value for each tensor; null where there is none.",
    ),
    "LogLine": {
        "description": "A line of a floatscope log. First the run, then a step a line, last the end, so that "
        "an answer that was cut off can be told from a whole one.",
        "anyOf": [
            obj({"run": ANY_OBJECT}),
            obj({"step": COUNT}, additionalProperties=True),
        ],
    },
}
