"""Numbers, durations and sparklines as people read them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from floatscope_dashboards import sparkline, wording
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.say import catalogues
from floatscope_dashboards.wording import (
    CAUSES,
    as_float,
    as_int,
    cause_label,
    number_text,
    signal_of,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\u2013"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
        (0.0, "0"),
        (412380.0, "412,380"),
        (12345.6, "12,346"),
        (4.1, "4.1"),
        (-4.1, "\u22124.1"),
        (-12345.6, "\u221212,346"),
        (-0.000012345, "\u22121.23e-05"),
        (2.123456, "2.123"),
        (0.000012345, "1.23e-05"),
        (3.4e38, "3.4e+38"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (2.9, "2 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (7 * 3600 + 14 * 60, "7 h 14 min"),
        (21 * 86400 + 6 * 3600, "21 d 6 h"),
        (86400, "1 d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert Pages().say("en").duration(seconds) == text


def test_plurals_of_templates_are_called_as_the_catalogue_finds_them() -> None:
    """The tool reads ``plural(...)`` in a template, not ``say.plural(...)``: that would stay English."""
    templates = Path(wording.__file__).parent / "templates"
    assert [path.name for path in templates.glob("*.html") if "say.plural(" in path.read_text()] == []


def test_json_numbers_are_read_strictly() -> None:
    assert as_float("Infinity") == math.inf
    assert math.isnan(as_float("NaN") or 0.0)
    assert as_float(True) is None
    assert as_float("4") is None
    assert (as_int(4.0), as_int(4.5), as_int("4")) == (4, None, None)
    say = Pages().say("en")
    assert (say.step(None), say.step(412380)) == ("\u2013", "412,380")


def test_every_cause_has_words_and_an_unknown_one_is_readable() -> None:
    assert all(text and "_" not in text for text in CAUSES.values())
    assert cause_label("brand_new_cause") == "Brand new cause"
    assert cause_label(None) == ""
    assert signal_of("queue_wait_s").unit == "s"


def test_sparkline_has_no_line_over_a_gap_and_marks_nan() -> None:
    text = str(sparkline.svg([1.0, 2.0, None, 3.0, math.nan, 4.0, 5.0], width=100, height=20))
    assert text.count('class="sp-nan"') == 1
    assert text.count("M") >= 4
    assert 'class="sp-dot"' in text


def test_sparkline_shades_what_came_after_the_onset() -> None:
    assert sparkline.onset_share(first_step=100, last_step=200, onset_step=150) == 0.5
    assert sparkline.onset_share(first_step=100, last_step=100, onset_step=100) is None
    assert 'class="sp-after"' in str(sparkline.svg([1.0, 2.0], width=100, height=20, onset_share=0.5))


@pytest.mark.parametrize("values", [[], [None], [math.nan], [math.inf], [1.0], [1.0, 1.0]])
def test_any_sparkline_is_well_formed(values: list[float | None]) -> None:
    text = str(sparkline.svg(values, width=100, height=20, onset_share=0.2))
    assert text.startswith("<svg")
    assert "nan" not in text.replace("sp-nan", "")


def test_chinese_sentences_stand_without_a_space_between_them() -> None:
    said = catalogues()
    assert said["zh-CN"].sentences(("\u4e00\u3002", "", "\u4e8c\u3002")) == "\u4e00\u3002\u4e8c\u3002"
    assert said["en"].sentences(("One.", "", "Two.")) == "One. Two."
