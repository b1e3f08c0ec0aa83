"""The card of other formats: what is marked, what is not claimed, and that names stay names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from floatscope_dashboards.format_table import FormatRow, WhatIf, flags_of, predicted_rows
from floatscope_dashboards.what_if_card import WhatIfCard, fewest_bits, fits, offered, what_if_card
from floatscope_diagnostics.whatif.document import tensor_json
from floatscope_diagnostics.whatif.stored import what_if
from tests.dashboards.sample import HOSTILE
from tests.dashboards.showing import Shown

IN_USE = FormatRow(
    "", "e4m3", 8.0, 4.1, 0.3, 11.8, how="delayed scaling", headroom=-1.4, in_use=True, measured=True
)


@pytest.fixture(scope="module")
def shown() -> Shown:
    return Shown()


def row(key: str, bits: float = 8.0, **more: Any) -> FormatRow:
    made = FormatRow(key, key.upper(), bits, 0.0, 0.1, 31.5, granularity="tensor")
    return replace(made, **({"zero_error_pct": 0.2, "sqnr_error_db": 0.5} | more))


def card(*rows: FormatRow, **more: Any) -> WhatIf:
    return WhatIf((IN_USE, *rows), 410, predicted_step=400, source="histogram", **more)


def made(found: WhatIf, shown: Shown) -> WhatIfCard:
    told = what_if_card(found, "delayed scaling", shown.say)
    assert told is not None
    return told


def test_the_fewest_bits_inside_the_limits_are_marked_and_errors_count_against() -> None:
    good, fewer = row("e4m3_tensor"), row("nvfp4", 4.5, zero_pct=7.0, sqnr_db=20.0)
    assert fewest_bits((IN_USE, row("bf16", 16.0), good, fewer)) is good
    near = row("nvfp4", 4.5, zero_pct=0.9)
    assert not fits(near), "0.9 % with an error of 0.2 may be beyond 1 %"
    assert fewest_bits((good, near)) is good
    assert fits(replace(near, zero_error_pct=0.05))
    unknown = row("nvfp4", 4.5, zero_error_pct=None)
    assert not fits(unknown), "an error that is not known is not small"
    assert not fits(replace(good, clipped_pct=None)), "clipping that is not known is not none"
    assert fits(replace(unknown, measured=True)), "values that were cast have none"
    assert fewest_bits((row("e4m3_tensor", valid=False, why_not="blocks differ"),)) is None
    assert fewest_bits((row("bf16", 16.0),)) is None
    assert not fits(row("e4m3_tensor", clipped_pct=0.6))
    assert not fits(row("e4m3_tensor", bulk_sqnr_db=10.0)), "a few values hide what the rest lose"
    assert fits(row("e4m3_tensor", bulk_sqnr_db=31.0))


def test_of_equals_the_format_in_use_is_kept_and_a_scale_of_the_past_is_no_answer(shown: Shown) -> None:
    other, same = row("e5m2_tensor", sqnr_db=40.0), row("e4m3_tensor")
    assert fewest_bits((IN_USE, other, same)) is same
    assert fewest_bits((other, same)) is other
    past = row("e4m3_tensor_as_used", sqnr_db=40.0)
    assert fewest_bits((IN_USE, past, same)) is same
    told = made(card(past, row("e5m2_tensor_as_used"), same), shown)
    assert [line.how for line in told.lines[1:]] == [
        "the scale that the run used",
        "one scale for the tensor",
    ]


def test_formats_without_a_recipe_are_folded_and_never_marked(shown: Shown) -> None:
    others = [row(key, 4.0) for key in ("mxfp6_e2m3_up", "int8_row", "mxfp8_e4m3_floor", "e4m3fnuz_tensor")]
    assert not any(offered(one) for one in others)
    told = made(card(row("e4m3_tensor"), *others), shown)
    assert [line.tone for line in told.lines] == ["now", "best"]
    assert len(told.others) == 4
    assert told.lines[1].zero_error == "\u00b10.2"
    assert told.lines[1].words == "Fewest bits inside the limits"
    square = made(card(row("nvfp4_16x16", 4.03, granularity="block")), shown)
    assert square.lines[1].tone == ""
    assert square.lines[1].how == "a scale for 16 \u00d7 16 values"


def test_the_step_of_the_histogram_and_what_speaks_against_it_are_said(shown: Shown) -> None:
    told = made(card(row("e4m3_tensor", valid=False, why_not="blocks differ"), flags=("Few values.",)), shown)
    assert told.sub == "Predicted from the histogram of step 400, the nearest to 410"
    assert told.flags == ("Few values.",)
    assert (told.lines[1].tone, told.lines[1].words) == ("not", "Blocks differ")
    assert any("No format with fewer bits" in note for note in told.notes)
    alone = made(WhatIf((IN_USE,), 410, why_not="Nothing was sampled."), shown)
    assert (alone.title, alone.sub) == ("How well its format keeps this tensor", "Step 410")
    assert alone.why_not == "Nothing was sampled."
    assert not any("benchmark" in note for note in alone.notes)
    assert what_if_card(None, "", shown.say) is None


def test_the_engines_document_becomes_rows_and_names_stay_names(shown: Shown) -> None:
    size = np.abs(np.random.default_rng(0).normal(size=20_000))
    counts = np.bincount(np.clip(np.frexp(size)[1] - 1 + 40, 0, 63), minlength=64)
    found = what_if("t", counts.tolist(), {"amax": float(size.max())}, {"format": "e4m3"}, step=400)
    entry = tensor_json(found)
    rows = predicted_rows(entry)
    assert len(rows) == len(found.predicted)
    e4m3 = next(one for one in rows if one.key == "e4m3_tensor")
    assert e4m3.sqnr_db == pytest.approx(31.5, abs=0.2)
    hostile = replace(e4m3, name=HOSTILE)
    html = shown.part("_what_if.html", what_if=made(card(hostile, flags=(HOSTILE, *flags_of(entry))), shown))
    assert "<script>window" not in html
    assert "<img" not in html
    assert flags_of({"flags": [{"sentence": 3}, "x", {"sentence": "y"}]}) == ("y",)
    assert predicted_rows({"variants": "none"}) == ()
