"""How wrong predictions of this kind were when they were checked against true casts.

``own_errors.json`` is written by ``python -m benchmarks.whatif --write``: for each variant and class of data
the largest difference on data that the predictor was not tuned on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from floatscope_diagnostics.whatif.variant import Predicted

_DEVIATIONS = 2.0


def class_of(blocks: str, *, is_concentrated: bool) -> str:
    """Of data.  blocks: "tensor" for one scale, or alike, unlike, even, unknown."""
    return f"{blocks}, power concentrated" if is_concentrated else blocks


def with_own_error(found: Predicted, *, blocks: str, is_concentrated: bool) -> Predicted:
    """The prediction with the largest errors of its class, absent where the class was not measured.

    That of SQNR is at least two standard deviations of what chance makes of this very tensor. Where a few
    elements hold the power, chance is the larger part, and the model's own error is that of the bulk.
    """
    data_class = class_of(blocks, is_concentrated=is_concentrated)
    measured = _errors().get(found.variant.key, {}).get(data_class)
    if measured is None:
        return replace(found, data_class=data_class)
    chance = _DEVIATIONS * (found.sqnr_chance_db or 0.0)
    if is_concentrated:
        sqnr = math.hypot(measured["bulk_sqnr_db"], chance)
    else:
        sqnr = max(measured["sqnr_db"], chance)
    return replace(
        found,
        data_class=data_class,
        underflow_error_pct=measured["underflow_pct"],
        sqnr_error_db=sqnr if found.sqnr_db is not None else None,
    )


@cache
def _errors() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    path = files("floatscope_diagnostics.whatif").joinpath("own_errors.json")
    table: dict[str, Any] = json.loads(path.read_text("utf-8"))
    errors: Mapping[str, Mapping[str, Mapping[str, float]]] = table["errors"]
    return errors
