"""What an output can show, and text from outside made harmless."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest

from floatscope_diagnostics.reports.numbers import count, number, size
from floatscope_diagnostics.reports.terminal import Style, plain, style_of


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Quiet(io.StringIO):
    """A file of text in UTF-8."""

    encoding = "utf-8"


class Ascii(io.StringIO):
    encoding = "ascii"


@pytest.mark.parametrize(
    ("terminal", "env", "colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_only_where_it_is_wanted(terminal: bool, env: Mapping[str, str], colour: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    assert style_of(stream, env).colour is colour


def test_many_colours_only_where_the_terminal_has_them() -> None:
    assert "38;5;" in style_of(Terminal(), {"TERM": "xterm-256color"}).paint("x", "critical")
    assert "38;5;" not in style_of(Terminal(), {"TERM": "xterm"}).paint("x", "critical")


def test_an_encoding_without_blocks_gets_ascii() -> None:
    style = style_of(Ascii(), {})
    assert style.fit("▲ ▁▂▃▄▅▆▇█ ✕ ✓").isascii()
    assert Style().fit("▲") == "▲"


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert plain("a\x1b[31mb\x00\r\n\u202e") == "a?[31mb????"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (2.10812, "2.108"),
        (65536.0, "65,536"),
        (123456.7, "123,457"),
        (1.23e9, "1.23e9"),
        (3e-5, "3e-5"),
        (0.00031, "0.00031"),
        (-1.5e-300, "-1.5e-300"),
        (1e308, "1e308"),
        (float("nan"), "NaN"),
        (float("inf"), "Inf"),
        (float("-inf"), "-Inf"),
        (None, "not logged"),
        ("finite", "finite"),
    ],
)
def test_numbers(value: float | str | None, text: str) -> None:
    assert number(value) == text


def test_counts_and_sizes() -> None:
    assert (count(1, "run"), count(1200, "run")) == ("1 run", "1,200 runs")
    assert (size(12), size(3_400_000), size(250e6), size(5e12)) == ("12 B", "3.4 MB", "250 MB", "5000 GB")
