"""Readers: what they take, what they pass over and say, and what they refuse with advice."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floatscope_diagnostics.diagnose import Diagnosed, diagnose_paths, document, read_baseline
from floatscope_diagnostics.readers import line_blocks, unpacking
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.run_log import UnreadableLog
from tests.diagnostics.synthetic import Run

STEPS = [{"step": s, "loss": 2.0 + 0.01 * (s % 5), "grad_norm": 1.0} for s in range(40)]


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(r) + "\n" for r in rows)


def one(path: Path | str) -> Diagnosed:
    done, unread = diagnose_paths([str(path)])
    assert not unread, unread
    assert len(done) == 1
    return done[0]


def refusal(path: Path | str) -> str:
    done, unread = diagnose_paths([str(path)])
    assert not done
    assert len(unread) == 1
    return unread[0].error


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_jsonl_with_a_run_object(tmp_path: Path) -> None:
    run = Run(steps=20)
    path = write(tmp_path / "a.jsonl", json.dumps({"run": run.info()}) + "\n" + jsonl(run.rows()))
    source = one(path).verdict.source
    assert (source.format, source.steps, source.tensors, source.skipped_lines) == ("floatscope", 20, 13, 0)


def test_gzip_is_seen_by_content_not_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.log", gzip.compress(jsonl(STEPS).encode()))
    assert one(path).verdict.source.steps == 40


def test_bad_lines_are_counted_and_the_first_is_told(tmp_path: Path) -> None:
    lines = jsonl(STEPS).splitlines()
    lines[3] = '{"step": 3, "loss": '
    lines[7] = "[1, 2]"
    lines[9] = '{"step": "nine", "loss": 2.0}'
    lines[11] = '{"step": 11, "loss": {"a": 1}}'
    source = one(write(tmp_path / "a.jsonl", "\n".join(lines))).verdict.source
    assert source.steps == 37  # a loss that is an object is read as loss/a
    assert source.skipped_lines == 3
    assert (source.first_skipped or "").startswith("line 4 passed over: line 4: expected valid JSON")


def test_nan_in_every_spelling_is_nan_and_null_is_missing(tmp_path: Path) -> None:
    words = ["NaN", '"NaN"', '"nan"', "Infinity", '"-inf"', "null"]
    text = "".join(f'{{"step": {k}, "loss": {w}}}\n' for k, w in enumerate(words))
    with open_runs(str(write(tmp_path / "a.jsonl", text))) as runs:
        parts = [batch.scalar("loss") for _, batch in next(runs).batches]
    values, here = (np.concatenate(column) for column in zip(*parts, strict=True))
    assert here.tolist() == [True, True, True, True, True, False]
    assert np.isnan(values[:3]).all()
    assert values[3:5].tolist() == [np.inf, -np.inf]


def test_nul_bytes_and_crlf_and_bom_do_not_hurt(tmp_path: Path) -> None:
    lines = jsonl(STEPS).splitlines()
    lines.insert(5, "\x00\x00\x00")
    source = one(write(tmp_path / "a.jsonl", "\ufeff" + "\r\n".join(lines))).verdict.source
    assert source.steps == 40
    assert source.first_skipped == "line 6 passed over: only NUL bytes"


def test_names_of_other_loggers_are_guessed_and_told(tmp_path: Path) -> None:
    rows = [{"iteration": s, "train/loss": 2.0, "learning_rate": 1e-3, "host": "n1"} for s in range(20)]
    source = one(write(tmp_path / "a.jsonl", jsonl(rows))).verdict.source
    assert set(source.scalars) == {"loss", "lr"}
    told = (("iteration", "step"), ("train/loss", "loss"), ("learning_rate", "lr"))
    assert source.mapping == told


def test_two_runs_in_one_file(tmp_path: Path) -> None:
    text = json.dumps({"run": {"name": "a"}}) + "\n" + jsonl(STEPS)
    text += json.dumps({"run": {"name": "b"}}) + "\n" + jsonl(STEPS[:10])
    done, _ = diagnose_paths([str(write(tmp_path / "a.jsonl", text))])
    assert [(d.run.name, d.verdict.source.steps) for d in done] == [("a", 40), ("b", 10)]


def test_files_of_one_run_that_differ_in_rank_are_one_run(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        rows = [{**r, "rank": rank} for r in STEPS]
        head = json.dumps({"run": {"name": "two"}}) + "\n"
        paths.append(str(write(tmp_path / f"rank{rank}.jsonl", head + jsonl(rows))))
    other = str(write(tmp_path / "other.jsonl", jsonl(STEPS)))
    done, unread = diagnose_paths([paths[0], other, paths[1]])
    assert not unread
    assert [d.verdict.source.path for d in done] == [paths[0], other]
    assert "needs the same scalars" not in str(document(done, unread))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(tmp_path: Path, delimiter: str) -> None:
    rows = [delimiter.join(["Step", "Train Loss", "Grad Norm", "comment"])]
    rows += [
        delimiter.join([str(s), "nan" if s == 30 else f"{2 + s % 3 / 100}", "1.0", "x"]) for s in range(40)
    ]
    rows[5] = "too short"
    diagnosed = one(write(tmp_path / "a.csv", "\n".join(rows)))
    source = diagnosed.verdict.source
    assert source.format == "csv"
    assert source.steps == 39
    assert source.skipped_lines == 1
    assert source.first_skipped == "line 6 passed over: 1 fields, the header has 4"
    assert dict(source.mapping) == {"Step": "step", "Train Loss": "loss", "Grad Norm": "grad_norm"}
    finding = diagnosed.verdict.findings[0].finding
    assert (finding.symptom, finding.onset) == ("nonfinite", 30)


def test_csv_without_a_step_column_counts_rows(tmp_path: Path) -> None:
    source = one(write(tmp_path / "a.csv", "loss,lr\n" + "2.0,0.1\n" * 12)).verdict.source
    assert (source.first_step, source.last_step) == (0, 11)
    assert "no step column: the row number is used" in source.notes


def test_an_endless_csv_field_costs_one_line(tmp_path: Path) -> None:
    lines = ["step,loss,text"] + [f"{s},2.0,{'x' * (200_000 if s == 7 else 1)}" for s in range(20)]
    source = one(write(tmp_path / "a.csv", "\n".join(lines))).verdict.source
    assert (source.steps, source.skipped_lines) == (19, 1)
    assert source.first_skipped == "line 9 passed over: a field of over 131,072 characters"


def test_hugging_face_trainer_state(tmp_path: Path) -> None:
    history: list[dict[str, Any]] = []
    for step in range(10, 310, 10):
        history.append(
            {"epoch": step / 100, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-4, "step": step}
        )
        if step % 100 == 0:
            history.append({"epoch": step / 100, "eval_loss": 2.1, "eval_runtime": 3.0, "step": step})
    history.append({"epoch": 3.0, "step": 300, "train_loss": 0.7, "train_runtime": 99.0})
    state = {"best_metric": None, "global_step": 300, "log_history": history}
    source = one(write(tmp_path / "trainer_state.json", json.dumps(state, indent=2))).verdict.source
    assert (source.format, source.steps, source.skipped_lines) == ("hf_trainer_state", 30, 0)
    assert {"loss", "lr", "grad_norm", "eval_loss"} <= set(source.scalars)


def test_a_trainer_state_that_is_cut_off_says_so(tmp_path: Path) -> None:
    text = json.dumps({"log_history": [{"step": s, "loss": 2.0} for s in range(50)]}, indent=2)[:-200]
    source = one(write(tmp_path / "trainer_state.json", text)).verdict.source
    assert source.steps > 40
    assert "cut off" in " ".join(source.notes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\x00" * 500, "NUL"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x28\xb5\x2f\xfdrest", "before its first line"),
        (b"\x80\x02ccollections", "checkpoint"),
        (bytes(range(256)) * 20, "binary"),
        (b"the quick brown fox\njumps over\n", "not a log of a known format"),
        (b'{"hello": "world"}\n' * 10, "holds no step"),
        (b"step,loss\n", "no row"),
        (b"\x1f\x8b\x08\x00" + b"garbage" * 500, "damaged"),
        (gzip.compress(jsonl(STEPS).encode() * 300)[:20], "ends in the middle"),
    ],
)
def test_what_is_no_log_is_refused_with_advice(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refusal(write(tmp_path / "file", data))


def test_missing_directory_and_device(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nothing")
    assert "holds no training log that is known" in refusal(tmp_path)
    assert "device" in refusal("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refusal(tmp_path / "pipe")


def test_a_line_without_end_is_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_blocks, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"step": 1, "loss": 2.0}\n{"step": 2, "x": "' + b"x" * 100_000)
        file.truncate(1 << 30)  # a hole of a gibibyte
    assert "line 2 is longer" in refusal(path)


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "RATIO_FROM_BYTES", 1 << 20)
    row = b'{"step": 1, "loss": 2.0}' + b" " * 5000 + b"\n"
    assert "not a training log" in refusal(write(tmp_path / "bomb.gz", gzip.compress(row * 4000)))


def test_a_baseline_needs_a_loss(tmp_path: Path) -> None:
    baseline = read_baseline(str(write(tmp_path / "b.jsonl", jsonl(STEPS))))
    assert baseline.step.tolist() == list(range(40))
    with pytest.raises(UnreadableLog, match="logs no loss"):
        read_baseline(str(write(tmp_path / "c.jsonl", jsonl([{"step": 1, "lr": 0.1}]))))


@pytest.mark.parametrize("rank", ["-1", "1.5", '"zero"', "true", "99999999999"])
def test_an_absurd_rank_is_passed_over(tmp_path: Path, rank: str) -> None:
    text = jsonl(STEPS) + f'{{"step": 99, "loss": 2.0, "rank": {rank}}}\n'
    source = one(write(tmp_path / "a.jsonl", text)).verdict.source
    assert (source.steps, source.skipped_lines) == (40, 1)
    assert "rank is" in (source.first_skipped or "")


def test_markup_and_control_characters_in_names_are_shown_harmless(tmp_path: Path) -> None:
    tensors = {"<b>x</b>\u202e/input": {"amax": 1.0, "nan_count": 1}}
    diagnosed = one(write(tmp_path / "a.jsonl", jsonl([{**STEPS[0], "tensors": tensors}, *STEPS[1:]])))
    assert diagnosed.verdict.source.steps == 40
