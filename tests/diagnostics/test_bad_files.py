"""Whatever a file holds: a verdict or a clear refusal through the command, never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope_diagnostics.cli import main
from tests.diagnostics.strange import ROW, SCALARS, SLOW


def diagnose(path: Path) -> tuple[int, Any]:
    """Exit code and JSON document of ``floatscope diagnose --json``."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(path), "--json"])
    assert "Traceback" not in err.getvalue()
    assert code in (0, 1, 2), err.getvalue()
    return code, json.loads(out.getvalue())


JSON_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
KEY = st.sampled_from(
    [*SCALARS, "step", "rank", "time", "tensors", "run", "segment", "iteration", "train/loss"]
)
LINE = st.one_of(
    st.dictionaries(KEY, JSON_VALUE, max_size=6).map(json.dumps),
    ROW.map(json.dumps),
    ROW.map(json.dumps).map(lambda text: text[: len(text) // 2]),
    st.text(max_size=30),
)


@SLOW
@given(st.lists(LINE, max_size=30), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_any_lines_give_a_document(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str
) -> None:
    path = tmp_path_factory.mktemp("bad") / "log.jsonl"
    path.write_text('{"step": 0, "loss": 2.5}\n' + end.join(lines), encoding="utf-8", errors="surrogatepass")
    code, document = diagnose(path)
    assert ("unread" in document) == (code == 2)


@SLOW
@given(st.binary(max_size=300))
def test_any_bytes_give_a_document(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bad") / "log.jsonl"
    path.write_bytes(content)
    code, document = diagnose(path)
    assert code == 2 or document["source"]["steps"] >= 0


FIELD = st.one_of(
    st.floats().map(str), st.integers().map(str), st.text(max_size=8), st.sampled_from(["", "nan", '"'])
)


@SLOW
@given(
    st.lists(st.sampled_from(["step", "loss", "lr", "grad_norm", "rank", "x", ""]), min_size=1, max_size=5),
    st.lists(st.lists(FIELD, max_size=6), max_size=12),
    st.sampled_from(",;\t"),
)
def test_any_table_gives_a_document(
    tmp_path_factory: pytest.TempPathFactory, header: list[str], rows: list[list[str]], sep: str
) -> None:
    path = tmp_path_factory.mktemp("bad") / "log.csv"
    text = "\n".join(sep.join(fields) for fields in [["step", *header], *rows])
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    diagnose(path)


@SLOW
@given(st.lists(st.dictionaries(KEY, JSON_VALUE, max_size=5), max_size=9), JSON_VALUE)
def test_any_trainer_state_gives_a_document(
    tmp_path_factory: pytest.TempPathFactory, history: list[dict[str, Any]], other: Any
) -> None:
    path = tmp_path_factory.mktemp("bad") / "trainer_state.json"
    path.write_text(json.dumps({"global_step": other, "log_history": history}))
    diagnose(path)


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(r) for r in rows))
    return path


def test_a_scalar_that_changes_its_type_is_passed_over_where_it_is_no_number(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": s, "loss": 2.0 + 0.01 * (s % 3)} for s in range(40)]
    rows[10]["loss"] = "2.01"
    rows[11]["loss"] = None
    rows[12]["loss"] = {"mean": 2.0}
    rows[13]["loss"] = [2.0]
    rows[14]["loss"] = True
    code, document = diagnose(written(tmp_path / "a.jsonl", rows))
    assert code == 0
    assert document["source"]["skipped_lines"] >= 2
    assert document["source"]["last_step"] == 39


def test_steps_that_are_no_steps_are_passed_over(tmp_path: Path) -> None:
    strange = [2**62, 2**64, -1, 1.5, "7", "x", None, True, 1e30]
    rows: list[dict[str, Any]] = [{"step": s, "loss": 2.0} for s in [1, 2, 3, *strange, 4]]
    code, document = diagnose(written(tmp_path / "a.jsonl", rows))
    assert code in (0, 1)
    assert document["source"]["skipped_lines"] >= 5


def test_ten_thousand_ranks_in_one_file_are_too_many_and_it_says_so(tmp_path: Path) -> None:
    rows = [{"step": 1, "rank": r, "loss": 2.0} for r in range(10_000)]
    _, document = diagnose(written(tmp_path / "a.jsonl", rows))
    assert "more than 1,024 ranks in one file" in document["source"]["first_skipped"]


def odd_log(path: Path, tensor: str) -> str:
    rows: list[dict[str, Any]] = [{"run": {"name": "'; DROP TABLE runs; --"}}]
    for s in range(60):
        bad = s > 40
        stats = {"amax": 1.0, "nan_count": float(bad)}
        rows.append({"step": s, "loss": math.nan if bad else 2.0, "tensors": {tensor: stats}})
    return str(written(path, rows))


@pytest.mark.parametrize(
    "tensor", ["\u00fc.\u4e2d/input", "<b>{x}%s$(y)/input", "a b/c d/input", "/", "input"]
)
def test_odd_names_are_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tensor: str
) -> None:
    assert main([odd_log(tmp_path / "log.jsonl", tensor)]) == 1
    text = capsys.readouterr().out
    assert "CRITICAL" in text
    assert tensor in text


def test_names_that_could_drive_a_terminal_are_left_out_and_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = odd_log(tmp_path / "odd\x1b[31m.jsonl", "\u202e\u2028\x1b[31mx/input")
    assert main([path]) == 1
    out = capsys.readouterr()
    assert "CRITICAL" in out.out
    assert r"were left out: 1, the first '\u202e\u2028\x1b[31mx/input'" in out.out
    assert not {"\x1b", "\u202e", "\u2028"} & set(out.out + out.err)


BAD_NAMES = ["a\x1b[31m", "\x00", "a\u2028", "", "x" * 1_500, "\ud800"]


@pytest.mark.parametrize("shape", ["lines", "tensors", "curves", "state", "csv"])
def test_a_field_whose_name_cannot_be_kept_costs_only_itself(tmp_path: Path, shape: str) -> None:
    names = BAD_NAMES[:1] if shape == "csv" else BAD_NAMES
    rows: list[dict[str, Any]] = [
        {"step": s, "loss": 2.0 - s / 50, **dict.fromkeys(names, 1.0), "kept": 3.0} for s in range(60)
    ]
    path = tmp_path / "log"
    if shape == "csv":
        path.write_text(
            "".join(",".join(map(str, row)) + "\n" for row in [rows[0], *(r.values() for r in rows)])
        )
    elif shape == "curves":
        path.write_text(json.dumps({key: [row[key] for row in rows] for key in rows[0]}))
    elif shape == "state":
        path.write_text(json.dumps({"log_history": rows}))
    else:
        if shape == "tensors":
            rows = [
                {**row, "tensors": {"a/input": {"amax": 1.0}, "b\x07/input": {"amax": 1.0}}} for row in rows
            ]
        written(path, rows)
    code, document = diagnose(path)
    assert code in (0, 1)
    source = document["source"]
    assert source["steps"] == 60
    count = len(names) + (shape == "tensors")
    (note,) = [n for n in source["notes"] if "were left out" in n]
    assert f"{count:,}, the first 'a\\x1b[31m'" in note
