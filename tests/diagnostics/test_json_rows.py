"""JSON lines: the quick way reads what the way line by line reads; foreign names, nested objects, steps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_diagnostics.readers import alike_lines, floatscope_jsonl, json_rows_plan
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.names import guess
from floatscope_diagnostics.readers.run_log import Tally, UnreadableLog

Row = tuple[int, int, dict[str, float], float]


def read(
    path: Path, lines: list[str], mapping: dict[str, str] | None = None
) -> tuple[list[list[Row]], Tally]:
    path.write_text("\n".join(lines) + "\n")
    out: list[list[Row]] = []
    tally = Tally()
    with open_runs(str(path), format_name="floatscope", mapping=mapping) as runs:
        for run in runs:
            out.append([])
            tally = run.tally
            for rank, batch in run.batches:
                for t, step in enumerate(batch.step.tolist()):
                    named = zip(batch.scalar_names, batch.scalars[t], batch.scalars_present[t], strict=True)
                    values = {n: float(v) for n, v, here in named if here}
                    out[-1].append((rank, step, dict(sorted(values.items())), float(batch.time[t])))
    return out, tally


def by_rank(run: list[Row]) -> list[str]:
    """The rows as text, so that NaN equals NaN; only the order inside a rank counts."""
    return [repr(row) for row in sorted(run, key=lambda row: row[0])]


def quick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(floatscope_jsonl, "SMALL_BYTES", 0)
    patch.setattr(floatscope_jsonl, "MOSTLY", 0)
    patch.setattr(alike_lines, "OFTEN", 1)
    patch.setattr(floatscope_jsonl, "BLOCK_BYTES", 500)


VALUES = st.one_of(
    st.floats(-1e6, 1e6).map(repr),
    st.floats(allow_nan=False).map(repr),
    st.integers(-(10**6), 10**18).map(str),
    st.sampled_from(["NaN", '"NaN"', '"-inf"', "Infinity", "null", "0", "0.0", "1e5", "true", "[1]", "-0.0"]),
    st.just('"text 5"'),
)
SHAPES = st.sampled_from(
    [
        '{{"step": {0}, "loss": {1}, "lr": {2}}}',
        '{{"step":{0},"loss":{1},"lr":{2}}}',
        '{{"step": {0}, "eval_loss": {1}}}',
        '{{"loss": {1}, "x": {{"y": {2}}}, "step": {0}}}',
        '{{"step": {0}, "time": 17e8, "loss": {1}}}',
        '{{"step": {0}, "loss": {1}, "at": "2024-05-06T01:02:03", "e1": {2}}}',
        '{{"step": {0}, "loss": {1}, "rank": 0}}',
        '{{"step": {0}, "loss": {1}, "loss": {2}}}',
        '{{"step": {0}, "loss": {1}',
        '{{"step": "x", "loss": {1}}}',
        '{{"step": {0}.5, "loss": {1}}}',
        '{{"step": {0}, "loss": {1}, "rank": 1}}',
        '{{"run": {{"name": "r{0}"}}}}',
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(SHAPES, min_size=1, max_size=3),
    rows=st.lists(st.tuples(st.integers(0, 2), VALUES, VALUES), min_size=1, max_size=40),
    steps=st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_both_ways_read_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[str],
    rows: list[tuple[int, str, str]],
    steps: list[int],
) -> None:
    path = tmp_path_factory.mktemp("logs") / "a.jsonl"
    lines, step = ['{"step": 0, "loss": 1.0, "lr": 0.5}'], 0
    for (shape, a, b), more in zip(rows, steps, strict=False):
        step += more
        lines.append(shapes[shape % len(shapes)].format(step, a, b))
    slow, told = read(path, lines)
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        fast, again = read(path, lines)
    assert [by_rank(run) for run in fast] == [by_rank(run) for run in slow]
    assert (again.skipped, again.first_skipped, again.mapping) == (
        told.skipped,
        told.first_skipped,
        told.mapping,
    )


def test_long_logs_are_read_in_bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(floatscope_jsonl, "BLOCK_BYTES", 1 << 20)
    rows: list[dict[str, Any]] = []
    for s in range(500):
        rows.append({"step": s, "loss": 2.5 if s < 400 else math.nan, "lr": 1e-5 * s})
        if s % 100 == 99:
            rows.append({"step": s, "eval_loss": 2.75})
    seen: list[int] = []
    original = floatscope_jsonl._Reader._object

    def counted(
        self: floatscope_jsonl._Reader, number: int, line: bytes, tally: Tally
    ) -> dict[str, Any] | None:
        seen.append(number)
        return original(self, number, line, tally)

    monkeypatch.setattr(floatscope_jsonl._Reader, "_object", counted)
    (run,), tally = read(tmp_path / "a.jsonl", [json.dumps(r) for r in rows])
    assert [r[1] for r in run] == list(range(500))
    assert run[399][2]["eval_loss"] == 2.75
    assert math.isnan(run[450][2]["loss"])
    assert len(seen) < 10
    assert tally.skipped == 0


def test_nested_names_and_a_summary_that_is_no_step(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "train": {"loss": 2.5, "lr": 0.1}, "perf": {"deep": {"er": {"est": {"no": 1}}}}}',
        '{"step": 2, "train": {"loss": 2.25}, "val": {"loss": 3.0}}',
        '{"step": 2, "train_loss": 2.4, "train_runtime": 100.0}',
    ]
    (run,), tally = read(tmp_path / "a.jsonl", lines)
    assert run[0][2] == {"loss": 2.5, "lr": 0.1}
    assert run[1][2] == {"loss": 2.25, "eval_loss": 3.0, "train_loss": 2.4, "train_runtime": 100.0}
    assert tally.mapping == {"train/loss": "loss", "train/lr": "lr", "val/loss": "eval_loss"}


def test_a_log_without_steps_is_counted_and_text_times_are_none(tmp_path: Path) -> None:
    lines = ['{"loss": 2.5, "time": "00:12"}', '{"loss": "NaN", "time": 12.5}']
    (run,), tally = read(tmp_path / "a.jsonl", lines)
    assert [r[1] for r in run] == [0, 1]
    assert math.isnan(run[1][2]["loss"])
    assert run[1][2]["curve/time"] == 12.5
    assert tally.notes == ["no step in the log: rows are counted"]


def test_rivals_have_no_loss_and_the_user_may_say_which(tmp_path: Path) -> None:
    lines = ['{"step": 1, "d_loss": 0.5, "g_loss": 1.0, "total_loss": 1.5}']
    (run,), tally = read(tmp_path / "a.jsonl", lines)
    assert "loss" not in run[0][2]
    assert tally.notes == ["two losses that play against each other: not judged as a falling loss"]
    (run,), _ = read(tmp_path / "b.jsonl", lines, {"total_loss": "loss"})
    assert run[0][2]["loss"] == 1.5


def test_ranks_and_runs_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    lines = []
    for name in ("a", "b"):
        lines.append(json.dumps({"run": {"name": name}}))
        lines += [json.dumps({"step": s, "loss": 2.5, "rank": r}) for s in range(100) for r in range(2)]
    runs, _ = read(tmp_path / "a.jsonl", lines)
    assert [len(r) for r in runs] == [200, 200]
    assert {r[0] for r in runs[1]} == {0, 1}


def test_logs_with_many_other_lines_keep_their_large_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floatscope_jsonl, "SMALL_BYTES", 0)
    tensors = {"a/output": {"amax": 1.0}}
    rows: list[dict[str, Any]] = [{"step": s, "loss": 2.5} for s in range(640)]
    for row in rows[::10]:
        row["tensors"] = tensors
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with open_runs(str(path)) as runs:
        sizes = [len(batch) for _, batch in next(runs).batches]
    assert sum(sizes) == 640
    assert len(sizes) <= 2 * 640 // 64


def test_an_input_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match="holds no step"):
        read(tmp_path / "a.jsonl", ["[1]", "[2]"])


def test_more_names_than_can_be_kept_cost_no_more_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guessed = 0

    def counting(names: Iterable[str]) -> dict[str, str]:
        nonlocal guessed
        guessed += 1
        return guess(names)

    monkeypatch.setattr(json_rows_plan, "guess", counting)
    monkeypatch.setattr(json_rows_plan, "MAX_NAMES", 400)
    lines = [f'{{"step": {k}, "train/loss": 2.0, "key_{k}": 1.0, "own": 3}}' for k in range(3_000)]
    ((*rows,),), tally = read(tmp_path / "log.jsonl", lines)
    assert [step for _, step, _, _ in rows] == list(range(3_000))
    assert all(values["loss"] == 2.0 and values["own"] == 3.0 for _, _, values, _ in rows)
    assert [f"key_{k}" in values for k, (_, _, values, _) in enumerate(rows)] == [
        k < 397 for k in range(3_000)
    ]
    assert "more than 400 names: the rest are left out" in tally.notes
    assert guessed < 500


def test_changing_sets_of_known_names_are_not_guessed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rows_plan, "MAX_KEY_SETS", 2)
    lines = [
        json.dumps(
            {"iteration": k, "train/loss": 2.0, **{f"expert_{j}": 1.0 for j in range(8) if k >> j & 1}}
        )
        for k in range(256)
    ]
    ((*rows,),), _ = read(tmp_path / "log.jsonl", lines)
    assert [(step, values["loss"], len(values)) for _, step, values, _ in rows] == [
        (k, 2.0, 1 + k.bit_count()) for k in range(256)
    ]
