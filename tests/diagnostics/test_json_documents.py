"""JSON documents: trainer states, curves, records; and JSON lines with a logger's own idea of steps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from floatscope_diagnostics.readers.run_log import UnreadableLog
from tests.diagnostics.read_back import read_all, read_one

LOSS = {s: 3.0 - s / 64 for s in range(1, 61)}


def write(folder: Path, value: object, name: str = "log") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def golden(values: dict[int, float | str]) -> dict[str, Any]:
    return {
        "start_step": 1,
        "end_step": 60,
        "step_interval": 1,
        "values": {str(k): v for k, v in values.items()},
    }


STATE: list[dict[str, Any]] = [
    {"step": 10, "loss": 2.0, "learning_rate": 0.1},
    {"step": 10, "eval_loss": 2.5},
    {"step": 20, "loss": 1.5, "learning_rate": 0.1},
    {"predict_loss": 9.0},
    {"step": 20, "train_runtime": 9.0, "train_loss": 1.75},
]


def test_trainer_state_merges_evaluations_and_leaves_summaries_out(tmp_path: Path) -> None:
    text = json.dumps({"best_metric": None, "log_history": STATE}, indent=2).replace("\n", "\r\n")
    run = read_one(write(tmp_path, text))
    assert run.curves == {"loss": {10: 2.0, 20: 1.5}, "lr": {10: 0.1, 20: 0.1}, "eval_loss": {10: 2.5}}
    assert (run.format, run.skipped) == ("hf_trainer_state", 0)


@pytest.mark.parametrize("cut", range(60, 170, 7))
def test_a_trainer_state_that_is_cut_off_keeps_its_complete_entries(tmp_path: Path, cut: int) -> None:
    text = json.dumps({"best_metric": None, "log_history": STATE[:3]})
    path = write(tmp_path, text[:cut])
    if cut < text.index("}, {"):
        with pytest.raises(UnreadableLog, match="not complete JSON"):
            read_one(path)
        return
    run = read_one(path)
    assert run.curves["loss"][10] == 2.0
    assert any("cut off" in n for n in run.notes) == (cut < len(text))


def test_golden_values_leave_out_what_was_not_run(tmp_path: Path) -> None:
    ran: dict[int, float | str] = {s: v if s <= 40 else "nan" for s, v in LOSS.items()}
    rare: dict[int, float | str] = {s: 0.5 if s <= 40 and s % 10 == 0 else "nan" for s in LOSS}
    run = read_one(write(tmp_path, {"lm loss": golden(ran), "iteration-time": golden(rare)}))
    assert run.curves["loss"] == {s: v for s, v in LOSS.items() if s <= 40}
    assert run.curves["step_time_s"] == {s: 0.5 for s in (10, 20, 30, 40)}
    assert any("20 steps from 41 to 60" in n for n in run.notes)


def test_golden_values_that_begin_later_are_a_resume(tmp_path: Path) -> None:
    second: dict[int, float | str] = {s: "nan" if s <= 30 else v for s, v in LOSS.items()}
    run = read_one(write(tmp_path, {"lm loss": golden(second)}))
    assert run.steps[0] == 31
    assert run.curves["resumed"] == {31: 1.0}


def test_a_loss_that_is_nan_where_the_run_went_on_is_a_fault(tmp_path: Path) -> None:
    loss: dict[int, float | str] = {s: "nan" if 20 <= s <= 30 else v for s, v in LOSS.items()}
    memory: dict[int, float | str] = dict.fromkeys(LOSS, 1.0)
    alone = read_one(write(tmp_path, {"lm loss": golden(loss)}))
    beside = read_one(write(tmp_path, {"lm loss": golden(loss), "mem": golden(memory)}))
    for run in (alone, beside):
        assert math.isnan(run.curves["loss"][20])
        assert len(run.steps) == 60


def test_the_older_golden_values_are_lists(tmp_path: Path) -> None:
    old = {"lm loss": {"start_step": 0, "end_step": 15, "step_interval": 5, "values": [3.0, 2.5, 2.0]}}
    assert read_one(write(tmp_path, old)).curves["loss"] == {0: 3.0, 5: 2.5, 10: 2.0}


@pytest.mark.parametrize(
    "value",
    [
        {"loss": [3.0, 2.5, 2.0], "val_loss": [3.5, 3.0, "NaN"]},
        {"loss": {"0": 3.0, "1": 2.5, "2": 2.0}, "val_loss": {"0": 3.5, "1": 3.0, "2": "nan"}},
        {"step": [0, 1, 2], "loss": [3.0, 2.5, 2.0], "val_loss": [3.5, 3.0, "nan"]},
        {"history": {"loss": [3.0, 2.5, 2.0], "val_loss": [3.5, 3.0, "NaN"]}, "params": {"epochs": 3}},
        {
            "loss": {
                "train": {"x": [0, 1, 2], "y": [3.0, 2.5, 2.0]},
                "val": {"x": [0, 1, 2], "y": [3.5, 3.0, "nan"]},
            }
        },
    ],
)
def test_columns_and_values_by_step(tmp_path: Path, value: object) -> None:
    run = read_one(write(tmp_path, value))
    assert run.format == "json_series"
    assert run.curves["loss"] == {0: 3.0, 1: 2.5, 2: 2.0}
    assert math.isnan(run.curves["eval_loss"][2])


def test_columns_over_a_step_column(tmp_path: Path) -> None:
    table = {"global_step": {"0": 100, "1": 200}, "loss": {"0": 3.0, "1": None}, "acc": {"0": 0.1, "1": 0.2}}
    run = read_one(write(tmp_path, table))
    assert run.curves == {"loss": {100: 3.0}, "acc": {100: 0.1, 200: 0.2}}


def test_lists_of_records(tmp_path: Path) -> None:
    chainer = [{"epoch": 0, "iteration": 1, "main/loss": 1.5, "main/accuracy": 0.5, "elapsed_time": 4.8}]
    run = read_one(write(tmp_path, json.dumps(chainer, indent=4)))
    assert run.format == "json_records"
    assert run.curves["loss"] == {1: 1.5}


def test_tensorboards_json_export_takes_its_name_from_the_file(tmp_path: Path) -> None:
    points = [[1.7e9 + k, 10 * k, 3.0 - k] for k in range(3)]
    run = read_one(write(tmp_path, points, "run-train-loss.json"))
    assert run.curves["loss"] == {0: 3.0, 10: 2.0, 20: 1.0}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {"b": {}}}, "without a curve"),
        ([1, 2, 3], "not a log|without records|holds no step"),
        ([{"a": "text"}], "without records"),
        ([[1, 2], [3, 4]], "without records"),
        ("[{", "not complete JSON"),
        ('{"loss": [1, 2, "x"]}', "without a curve"),
        ('{"loss": ' + "[" * 5000, "not complete JSON|nested"),
    ],
)
def test_documents_without_a_curve_are_refused(tmp_path: Path, value: object, words: str) -> None:
    with pytest.raises(UnreadableLog, match=words):
        read_all(write(tmp_path, value))


def test_a_document_with_too_many_values_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from floatscope_diagnostics.readers import json_document

    monkeypatch.setattr(json_document, "MAX_VALUES", 1000)
    with pytest.raises(UnreadableLog, match="too large"):
        read_one(write(tmp_path, {"loss": [1.0] * 2000}))


@pytest.mark.parametrize("opening", ["[", '{"a": '])
def test_a_document_that_is_nested_too_deep_is_told_so(tmp_path: Path, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    path = tmp_path / "deep.json"
    path.write_text('{"loss": [1, 2, 3], "a": ' + opening * 100_000 + "1" + closing * 100_000 + "}")
    with pytest.raises(UnreadableLog, match="nested too deep"):
        read_all(path)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(r) + "\n" for r in rows)


def test_mmdet_iterations_count_on_over_epochs(tmp_path: Path) -> None:
    train = [
        {
            "mode": "train",
            "epoch": e,
            "iter": i,
            "lr": 0.1,
            "loss": 2.0,
            "time": 0.25,
            "data_time": 0.01,
            "memory": 9,
        }
        for e in (1, 2, 3)
        for i in (50, 100)
    ]
    val = {"mode": "val", "epoch": 1, "iter": 20, "lr": 0.1, "mAP": 0.5}
    run = read_one(write(tmp_path, lines({"env_info": "x", "seed": 1}, *train[:2], val, *train[2:])))
    assert run.format == "mmdet_json"
    assert run.steps == [50, 100, 150, 200, 250, 300]
    assert run.curves["step_time_s"][50] == 0.25
    assert run.curves["mAP"] == {100: 0.5}
    assert "seed" not in run.curves


def test_mmengine_validation_counts_epochs_as_step(tmp_path: Path) -> None:
    train = [
        {"lr": 0.1, "data_time": 0.0, "loss": 2.0, "iter": i, "step": i, "epoch": 1} for i in (500, 1000)
    ]
    run = read_one(write(tmp_path, lines(*train, {"coco/bbox_mAP": 0.4, "data_time": 0.1, "step": 1})))
    assert run.steps == [500, 1000]
    assert run.curves["coco/bbox_mAP"] == {1000: 0.4}


def test_detectron2_time_is_seconds_an_iteration(tmp_path: Path) -> None:
    rows = [
        {"data_time": 0.1, "eta_seconds": 9.0, "iteration": i, "time": 1.5, "total_loss": 2.0}
        for i in (19, 39)
    ]
    run = read_one(write(tmp_path, lines(*rows, {"bbox/AP": 50.0, "iteration": 40})))
    assert run.format == "detectron2_json"
    assert run.curves["loss"] == {19: 2.0, 39: 2.0}
    assert run.curves["step_time_s"][19] == 1.5
    assert math.isnan(run.times[19])


def test_epoch_lines(tmp_path: Path) -> None:
    rows = [{"train_loss": 3.0 - k / 4, "test_loss": 3.5, "train_lr": 0.1, "epoch": k} for k in range(5)]
    run = read_one(write(tmp_path, lines(*rows)))
    assert run.format == "epoch_json"
    assert [run.curves["loss"][s] for s in run.steps] == [3.0, 2.75, 2.5, 2.25, 2.0]
    assert len(run.curves["eval_loss"]) == 5


def test_damaged_json_lines_cost_only_themselves(tmp_path: Path) -> None:
    rows = lines(*({"train_loss": 3.0, "epoch": k} for k in range(4)))
    run = read_one(write(tmp_path, rows + '{"train_loss": 2.0, "epo'))
    assert (len(run.steps), run.skipped) == (4, 1)


@pytest.mark.parametrize(
    ("curve", "value"), [("metric", "value"), ("metricName", "metricValue"), ("key", "value")]
)
def test_records_of_one_point_each(tmp_path: Path, curve: str, value: str) -> None:
    points = [
        {curve: name, value: str(v) if value == "metricValue" else v, "step": s, "timestamp": 1.7e12 + s}
        for s in (10, 20)
        for name, v in (("train/loss", 3.0 - s), ("acc", 0.5))
    ]
    run = read_one(write(tmp_path, points))
    assert run.curves == {"loss": {10: -7.0, 20: -17.0}, "acc": {10: 0.5, 20: 0.5}}
    assert run.times == {10: 1.7e9 + 0.01, 20: 1.7e9 + 0.02}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "value",
    [
        {"name": "toy", "history": [{"step": s, "loss": 2.0} for s in (1, 2)]},
        {"args": {"lr": 0.1}, "logs": {"records": [{"step": s, "loss": 2.0} for s in (1, 2)]}},
        {"name": "toy", "epochs": 2, "history": {"step": [1, 2], "loss": [2.0, 2.0]}},
    ],
)
def test_records_and_curves_inside_a_document(tmp_path: Path, value: object, indent: int | None) -> None:
    run = read_one(write(tmp_path, json.dumps(value, indent=indent)))
    assert run.curves["loss"] == {1: 2.0, 2: 2.0}
