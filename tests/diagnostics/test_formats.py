"""Choice of the format: each fixture is claimed by its own format and by a clear margin, whatever stands
before it in the file; what is no log is refused with what was looked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from floatscope_diagnostics.readers.choosing import SURE, surest
from floatscope_diagnostics.readers.formats import line_formats, open_runs, readers
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.opening import open_log
from floatscope_diagnostics.readers.run_log import UnreadableLog

LOGS = sorted(p for p in (Path(__file__).parent / "logs").iterdir() if p.is_file())
MARGIN = 0.05
TEXT = {f.name for f in line_formats()}
PREAMBLE = "".join(
    f"Collecting package-{k}==1.{k}.0\n  Downloading package_{k}-1.{k}.0-py3-none-any.whl ({k} kB)\n"
    f"     |################| {k} kB 10.{k % 10} MB/s eta 0:00:01\n"
    for k in range(60)
) + "".join(f"ENV_{k}=/opt/tools/{k}/bin:1,{k}\n" for k in range(100))
# A table without names is one only from its first line on; so are files of JSON objects, one a line.
FROM_THE_START = {"yolo_results", "detectron2_json", "epoch_json", "llamafactory", "mmdet_json", "ms_swift"}


def format_of(path: Path) -> str:
    return path.name.split(".")[0].split("-")[0]


def head_of(path: Path) -> Head:
    with open_log(str(path)) as opened:
        return Head(opened.peek, opened.later)


def rated(head: Head) -> list[tuple[float, str]]:
    return sorted(((r.certainty(head), r.name) for r in readers()), reverse=True)


def read(path: Path) -> tuple[str, int]:
    """Format and number of rows; checks that steps rise."""
    rows = 0
    with open_runs(str(path)) as runs:
        for log in runs:
            for _, batch in log.batches:
                assert (np.diff(batch.step) >= 0).all()
                rows += len(batch)
    return log.format, rows


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.name)
def test_a_fixture_is_claimed_by_its_own_format(path: Path) -> None:
    best, second, *_ = rated(head_of(path))
    assert best[1] == format_of(path), (best, second)
    assert best[0] - second[0] > MARGIN - 1e-9, (best, second)
    name, rows = read(path)
    assert name == format_of(path)
    assert rows > 0


@pytest.mark.parametrize(
    "path", [p for p in LOGS if format_of(p) in TEXT - FROM_THE_START], ids=lambda p: p.name
)
def test_a_text_log_is_known_behind_other_output(path: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.log"
    long.write_bytes(PREAMBLE.encode() + path.read_bytes())
    best = rated(head_of(long))[0]
    assert best[1] == format_of(path)
    assert read(long) == read(path)


@pytest.mark.parametrize("path", [p for p in LOGS if format_of(p) in TEXT], ids=lambda p: p.name)
def test_crlf_nul_bytes_and_a_byte_order_mark_change_nothing(path: Path, tmp_path: Path) -> None:
    text = path.read_bytes()
    if b"\r" in text:
        return
    other = tmp_path / "other.log"
    other.write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n\x00\r\n"))
    assert read(other) == read(path)


def test_every_text_format_has_a_fixture() -> None:
    assert sorted(TEXT - {format_of(p) for p in LOGS}) == []


def test_prose_is_claimed_by_nobody() -> None:
    head = Head(b"We trained 3 models.\nThe loss was low, 2 of 3 times.\nStep by step it fell.\n" * 20)
    assert surest(head, readers())[1] < SURE


def refusal(path: Path, format_name: str | None = None) -> str:
    with pytest.raises(UnreadableLog) as caught:
        drain(path, format_name)
    return str(caught.value)


def drain(path: Path, format_name: str | None) -> None:
    with open_runs(str(path), format_name=format_name) as runs:
        for log in runs:
            list(log.batches)


def test_a_refusal_shows_the_first_line_and_what_was_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\nthe quick brown fox\njumps\n")
    text = refusal(path)
    assert "no line with a step and a loss" in text
    assert "'the quick brown fox'" in text


def test_source_code_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import os\nimport sys\n\n" + "def f(x):\n    loss = 1.0\n    return x\n\n" * 10)
    assert "looks like source code" in refusal(path)


def test_a_wrong_format_says_what_it_met(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("step 1: loss 2.0\nstep 2: loss 1.9\n")
    text = refusal(path, "megatron")
    assert "no training values in the format megatron" in text
    assert "step 1: loss 2.0" in text
    assert "did you mean megatron" in refusal(path, "megatrom")


def test_long_lines_are_whole_in_a_first_look_and_cut_in_a_further_one() -> None:
    long = b"loss: 1.0 " * 5_400 + b"\n"
    first = Head(long * 2, long)
    assert [len(x) for x in first.lines] == [len(long) - 1] * 3
    further = Head(long * 70, long)
    assert len(further.lines) == 71
    assert sum(map(len, further.lines)) < 500_000
