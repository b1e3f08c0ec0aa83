"""The card that says what other formats would do to a tensor: rows in words, and the one that is marked."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from floatscope_dashboards.format_table import MEASURED, FormatRow, WhatIf
from floatscope_dashboards.say import NO_VALUE, Say
from floatscope_dashboards.tensor_words import format_words, value_words
from floatscope_dashboards.wording import number_text

MAX_ZERO_PCT = 1.0
"""Share of values that may become 0: the advisor's own limit for a scaling that is fine enough."""
MAX_CLIPPED_PCT = 0.5
"""Share of values that may clip: below it are all healthy runs under delayed scaling."""
MIN_SQNR_DB = 24.0
"""What E5M2, the coarsest of the FP8 formats, keeps of values in its range is 25.6 dB; 1.6 dB less is its
worst published prediction error."""
FULL_SQNR_DB = 56.0
"""What BF16 keeps, and the whole bar."""
OFFERED = ("bf16", "e4m3_", "e5m2_", "mxfp8_", "nvfp4")
"""Formats for which training libraries have recipes."""
AS_USED = "_tensor_as_used"
"""End of the key of a format under the scale that the run itself used."""
NOT_OFFERED = ("floor", "fnuz", "e5m2_row")


@dataclass(frozen=True)
class FormatLine:
    """One row as it is shown. tone: its class.  width: of the bar, in percent, None for none."""

    name: str
    how: str
    bits: str
    clipped: str
    zero: str
    zero_error: str
    sqnr: str
    sqnr_error: str
    width: int | None
    words: str
    tone: str


@dataclass(frozen=True)
class WhatIfCard:
    """lines: the format in use, then those with a recipe; others: the rest, folded away."""

    title: str
    sub: str
    lines: tuple[FormatLine, ...]
    others: tuple[FormatLine, ...]
    notes: tuple[str, ...]
    flags: tuple[str, ...]
    why_not: str


def what_if_card(found: WhatIf | None, recipe: str, say: Say) -> WhatIfCard | None:
    """The card; None where nothing is known. recipe: of the format in use, in words."""
    if found is None:
        return None
    marked = fewest_bits(found.rows)
    predicted = any(not row.in_use for row in found.rows)
    used = next((row.name for row in found.rows if row.in_use), "")
    lines = [(row, _line(row, recipe, row is marked, say)) for row in found.rows]
    title = (
        say("What if this tensor were in another format?")
        if predicted
        else say("How well its format keeps this tensor")
    )
    return WhatIfCard(
        title,
        _sub(found, say),
        tuple(line for row, line in lines if _is_shown(row, used)),
        tuple(line for row, line in lines if not row.in_use and not offered(row)),
        tuple(_notes(found, marked, predicted, say)),
        tuple(say.engine(text) for text in found.flags),
        found.why_not,
    )


def _is_shown(row: FormatRow, used: str) -> bool:
    """Whether it is shown at once; of the scale that the run used only with the format that it used."""
    if row.key.endswith(AS_USED):
        return row.key == f"{used}{AS_USED}"
    return row.in_use or offered(row)


def offered(row: FormatRow) -> bool:
    """Whether a training library has a recipe with this format and these scales."""
    return row.key.startswith(OFFERED) and not any(part in row.key for part in NOT_OFFERED)


def fewest_bits(rows: Sequence[FormatRow]) -> FormatRow | None:
    """Of the predictions that can be trusted and stay inside every limit by more than their own error, the
    one with the fewest bits; of equals the coarsest scale, then the format in use, since nothing is gained by
    another. BF16 is no answer to the question.
    """
    good = [row for row in rows if _asked_for(row) and fits(row)]
    coarse = {"tensor": 0, "row": 1, "block": 2}
    used = next((f"{row.name}_" for row in rows if row.in_use), "")

    def order(row: FormatRow) -> tuple[float, int, bool, float]:
        other = not (used and row.key.startswith(used))
        return row.bits or math.inf, coarse.get(row.granularity, 3), other, -(row.sqnr_db or 0.0)

    return min(good, key=order, default=None)


def _asked_for(row: FormatRow) -> bool:
    """Whether the row can be the answer: a format with a recipe for any tensor, under a scale of its own."""
    square = re.search(r"\dx\d+$", row.key) is not None  # of weights alone
    given = row.key.endswith(AS_USED)
    return offered(row) and not row.in_use and not square and not given and not row.key.startswith("bf16")


def fits(row: FormatRow) -> bool:
    """Whether it is inside every limit by more than its error; not where a number or its error is unknown."""
    if not row.valid or row.bits is None:
        return False
    if row.zero_pct is None or row.clipped_pct is None or row.sqnr_db is None:
        return False
    errors = (0.0, 0.0) if row.measured else (row.zero_error_pct, row.sqnr_error_db)
    if errors[0] is None or errors[1] is None:
        return False
    return (
        row.zero_pct + errors[0] <= MAX_ZERO_PCT
        and row.clipped_pct <= MAX_CLIPPED_PCT
        and _kept_db(row) - errors[1] >= MIN_SQNR_DB
    )


def _kept_db(row: FormatRow) -> float:
    """SQNR of all values or of the bulk, the lower: where a few hold the power, that of all is theirs alone.
    Infinite where neither is known.
    """
    return min((db for db in (row.sqnr_db, row.bulk_sqnr_db) if db is not None), default=math.inf)


def _line(row: FormatRow, recipe: str, marked: bool, say: Say) -> FormatLine:
    sqnr = row.sqnr_db
    share = None if sqnr is None or not math.isfinite(sqnr) else sqnr / FULL_SQNR_DB
    return FormatLine(
        _name(row),
        (row.how or recipe) if row.in_use else _scales(row, say),
        number_text(row.bits),
        value_words(row.clipped_pct, 2),
        value_words(row.zero_pct, 2),
        _error(row.zero_pct, row.zero_error_pct, 1),
        value_words(sqnr, 1),
        _error(sqnr, row.sqnr_error_db, 1),
        None if share is None else round(100 * min(max(share, 0.0), 1.0)),
        _words(row, marked, say),
        "now" if row.in_use else "best" if marked else "not" if not row.valid else "",
    )


def _name(row: FormatRow) -> str:
    """Without what the line below says of the scales."""
    return format_words(row.name) if row.in_use else row.name.partition(", ")[0]


def _scales(row: FormatRow, say: Say) -> str:
    if row.granularity == "none":
        return say("no scale")
    if row.key.endswith(AS_USED):
        return say("the scale that the run used")
    if row.granularity == "tensor":
        return say("one scale for the tensor")
    if row.granularity == "row":
        power = row.key.endswith("_pow2")
        return say("a power of two for each row") if power else say("a scale for each row")
    block = re.search(r"(\d+)x(\d+)$", row.key)
    if block is not None:
        return say("a scale for {rows} \u00d7 {columns} values", rows=block[1], columns=block[2])
    n = f"{row.block:,}" if row.block else NO_VALUE
    if row.key.endswith("_up"):
        return say("a scale for {n} values, rounded up", n=n)
    if row.key.endswith("_floor"):
        return say("a scale for {n} values, rounded down", n=n)
    return say("a scale for {n} values", n=n)


def _error(value: float | None, error: float | None, digits: int) -> str:
    if value is None or error is None or not math.isfinite(error):
        return ""
    return f"\u00b1{max(error, 10.0**-digits):.{digits}f}"


def _words(row: FormatRow, marked: bool, say: Say) -> str:
    if row.in_use:
        if row.headroom is None:
            return say("In use, as the run measured it")
        return say("In use, as the run measured it; {n} binades of headroom", n=value_words(row.headroom, 2))
    if not row.valid:
        return _sentence(say.engine(row.why_not)) or say("Cannot be predicted here")
    if marked:
        return say("Fewest bits inside the limits")
    if row.zero_pct is None and row.sqnr_db is None:
        return _sentence(say.engine(row.why_not)) or NO_VALUE
    told = []
    if row.clipped_pct is not None and row.clipped_pct > MAX_CLIPPED_PCT:
        told.append(say("clips"))
    if row.zero_pct is not None and row.zero_pct > MAX_ZERO_PCT:
        told.append(say("loses small values"))
    if _kept_db(row) < MIN_SQNR_DB:
        told.append(say("coarse"))
    if told:
        return _sentence(say(", ").join(told))
    if not row.measured and (row.zero_error_pct is None or row.sqnr_error_db is None):
        return say("Fits; the error of this was not measured")
    return say("Fits") if fits(row) else say("Near a limit: the error decides")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sub(found: WhatIf, say: Say) -> str:
    step = say.step(found.step)
    if found.predicted_step is None:
        return say("Step {step}", step=step)
    if found.source == MEASURED:
        return say("From stored values of step {step}", step=say.step(found.predicted_step))
    if found.predicted_step == found.step:
        return say("Predicted from the histogram of step {step}", step=step)
    return say(
        "Predicted from the histogram of step {near}, the nearest to {step}",
        near=say.step(found.predicted_step),
        step=step,
    )


def _notes(found: WhatIf, marked: FormatRow | None, predicted: bool, say: Say) -> list[str]:
    notes = []
    if not predicted:
        notes.append(say("Measured in the format in use."))
    else:
        limits = say(
            "Limits: at most {zero}\u202f% become 0, at most {clipped}\u202f% clipped, at least {sqnr} dB, "
            "with the prediction's error counted against the format.",
            zero=f"{MAX_ZERO_PCT:g}",
            clipped=f"{MAX_CLIPPED_PCT:g}",
            sqnr=f"{MIN_SQNR_DB:g}",
        )
        if marked is None:
            limits += " " + say("No format with fewer bits than BF16 is inside them for certain.")
        notes.append(limits)
        notes.append(
            say(
                "\u00b1 is the largest error of such a prediction in the benchmark, and more where a few "
                "values hold the power; where there is none, it was not measured for values like these."
            )
        )
    notes.append(
        say(
            "SNR: signal to quantisation noise, more is better, 6 dB is one bit. It says how well this "
            "tensor is kept, not what the loss will do."
        )
    )
    return notes
