"""What the formats of language-model training make of their logs, number by number."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest

from floatscope_diagnostics.readers.fields import fields, measure
from floatscope_diagnostics.readers.formats import line_formats
from floatscope_diagnostics.readers.head import Head, split_lines
from floatscope_diagnostics.readers.line_prefix import split_prefix, split_rank
from floatscope_diagnostics.readers.piece import Piece
from tests.diagnostics import llm_logs, tuning_logs

CASES = llm_logs.CASES | tuning_logs.CASES
LOGS = Path(__file__).parent / "logs"


def read(path: Path) -> list[Piece]:
    """The pieces of a log, by the format that its name begins with."""
    name = path.name.split(".")[0].split("-")[0]
    parser = next(f for f in line_formats() if f.name == name).parser()
    out: list[Piece] = []
    for number, text in enumerate(split_lines(path.read_text(encoding="utf-8")), start=1):
        if text.strip():
            out += parser.line(number, text)
    return out + list(parser.end())


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_log(name: str) -> None:
    expected, pieces = CASES[name], read(LOGS / name)
    for series, points in expected.series.items():
        found = [(p.step, p.values[series]) for p in pieces if series in p.values]
        assert [s for s, _ in found] == [s for s, _ in points], series
        assert [v for _, v in found] == pytest.approx([v for _, v in points], nan_ok=True, rel=1e-6), series
    for series in expected.absent:
        assert not any(series in p.values for p in pieces), series
    for kind, count in expected.kinds.items():
        assert sum(p.kind == kind for p in pieces) == count
    if expected.note is not None:
        assert any(expected.note in (p.note or "") for p in pieces)


@pytest.mark.parametrize("name", CASES)
def test_the_format_is_found_by_content(name: str) -> None:
    head = Head((LOGS / name).read_bytes())
    best = max(line_formats(), key=lambda f: f.certainty(head))
    assert best.name == name.split(".")[0].split("-")[0]


@pytest.mark.parametrize("name", CASES)
def test_cut_and_glued_lines_do_no_harm(name: str) -> None:
    """Every prefix of every line, and lines glued to each other, give pieces or nothing, never an error."""
    format_name = name.split(".")[0].split("-")[0]
    parser = next(f for f in line_formats() if f.name == format_name).parser()
    lines = split_lines((LOGS / name).read_text(encoding="utf-8"))
    cut = [line[:n] for line in lines for n in range(0, len(line), 7)]
    for text in cut + [a + b for a, b in pairwise(lines)]:
        for piece in parser.line(1, text):
            assert all(isinstance(v, float) for v in piece.values.values())


def test_ranks_of_launchers() -> None:
    assert split_rank("[rank3]: step 1") == (3, "step 1")
    assert split_rank("[default12]: iteration") == (12, "iteration")
    assert split_rank("[1,5]<stdout>:loss 3") == (5, "loss 3")
    assert split_rank("worker-2: loss 3") == (2, "loss 3")
    assert split_rank(" 7: loss 3") == (7, "loss 3")
    assert split_rank("(TrainWorker pid=12, ip=10.0.0.1) loss 3") == (None, "loss 3")
    assert split_rank("step 3: loss 3") == (None, "step 3: loss 3")
    assert split_rank("12:30:00 loss 3") == (None, "12:30:00 loss 3")


def test_time_and_rank_in_front_of_a_line() -> None:
    assert split_prefix("2024-01-01T10:00:00.123456789Z step 1") == (None, "step 1")
    assert split_prefix("[2024-01-01 10:00:00] 3: step 1") == (3, "step 1")
    assert split_prefix("[rank2]: 2024-01-01 10:00:00,123 step 1") == (2, "step 1")
    assert split_prefix("10:00 step 1") == (None, "10:00 step 1")


@pytest.mark.parametrize("prefix", ["[rank0]: ", "2024-01-01T10:00:00.1234567Z ", "[default0]:", "0: "])
@pytest.mark.parametrize("name", ["llmc.log", "build_nanogpt.log", "modded_nanogpt.log", "nanochat.log"])
def test_prefixed_logs_read_alike(name: str, prefix: str) -> None:
    text = (LOGS / name).read_text(encoding="utf-8")
    prefixed = "".join(prefix + line for line in text.splitlines(keepends=True))
    head = Head(prefixed.encode())
    best = max(line_formats(), key=lambda f: f.certainty(head))
    assert best.name == name.split(".")[0]
    parser = best.parser()
    found = [p for line in split_lines(prefixed) if line.strip() for p in parser.line(1, line)]
    assert str([(p.step, p.values) for p in found]) == str([(p.step, p.values) for p in read(LOGS / name)])


def test_fields_of_a_line() -> None:
    assert fields("a b: 1 | c 2 | d=3 | e:4 | nothing") == {"a b": "1", "c": "2", "d": "3", "e": "4"}
    assert fields("12:00 step=3, loss: nan", between=",") == {"step": "3", "loss": "nan"}


def test_measures_with_units() -> None:
    assert measure("153.5ms") == pytest.approx(0.1535)
    assert measure("60.5K") == 60_500
    assert measure("1,008,246") == 1_008_246
    assert measure("47.5%") == 47.5
    assert measure("n/a") is None
    assert math.isnan(measure("nanms") or 0.0)
