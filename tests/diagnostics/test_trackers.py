"""W&B's offline runs and MLflow's two stores."""

from __future__ import annotations

import contextlib
import math
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from floatscope_diagnostics.readers.run_log import UnreadableLog
from tests.diagnostics.read_back import read_all, read_one
from tests.diagnostics.tracker_files import mlflow_database, wandb_run

ROWS: list[dict[str, Any]] = [
    {"_step": 10 * k, "_timestamp": 1.7e9 + k, "train/loss": 3.0 - k / 64} for k in range(100)
]
LOSS = {10 * k: 3.0 - k / 64 for k in range(100)}


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_wandb_history_name_and_end(tmp_path: Path) -> None:
    run = read_one(write(tmp_path / "run-a.wandb", wandb_run(ROWS, name="toy", exit_code=0)))
    assert run.format == "wandb_offline"
    assert run.curves == {"loss": LOSS}
    assert run.times[10] == 1.7e9 + 1
    assert (run.run.name, run.run.project, run.run.status) == ("toy", "p", "finished")
    assert run.run.config == {"lr": 0.1}


def test_wandb_run_that_failed_or_was_killed(tmp_path: Path) -> None:
    failed = read_one(write(tmp_path / "a.wandb", wandb_run(ROWS, exit_code=137)))
    assert (failed.run.status, failed.run.reason) == ("failed", "exit code 137")
    killed = read_one(write(tmp_path / "b.wandb", wandb_run(ROWS, exit_code=None)))
    assert killed.run.status is None


def test_wandb_records_over_block_borders(tmp_path: Path) -> None:
    run = read_one(write(tmp_path / "a.wandb", wandb_run(ROWS, filler=40_000)))
    assert run.curves["loss"] == LOSS


def test_wandb_values_keep_nan_nesting_and_text_apart(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"loss": math.nan, "a": {"b": 1}, "t": "hello", "ok": True},
        {"loss": "Infinity", "h": {"_type": "x"}},
    ]
    run = read_one(write(tmp_path / "a.wandb", wandb_run(rows)))
    assert math.isnan(run.curves["loss"][0])
    assert run.curves["loss"][1] == math.inf
    assert run.curves["a/b"] == {0: 1.0}
    assert set(run.curves) == {"loss", "a/b"}


def test_wandb_file_cut_off_and_damaged(tmp_path: Path) -> None:
    data = wandb_run(ROWS, filler=2_000)
    cut = read_one(write(tmp_path / "a.wandb", data[: len(data) // 2]))
    assert 40 < len(cut.steps) < 60
    assert any("damaged" in n or "cut off" in n for n in cut.notes)
    bad = bytearray(data)
    bad[len(bad) // 2] ^= 1
    assert len(read_one(write(tmp_path / "b.wandb", bytes(bad))).steps) > 60


def test_wandb_without_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match=r"no history.*output\.log"):
        read_one(write(tmp_path / "a.wandb", wandb_run([])))


def test_any_wandb_damage_gives_a_run_or_a_refusal(tmp_path: Path) -> None:
    data = wandb_run(ROWS)
    for seed in range(60):
        rng = random.Random(seed)
        bad = bytearray(data[: rng.randrange(8, len(data))])
        for _ in range(5):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        bad[:4] = b":W&B"
        with contextlib.suppress(UnreadableLog):
            read_one(write(tmp_path / "a.wandb", bytes(bad)))


def test_mlflow_database_gives_each_run_its_name(tmp_path: Path) -> None:
    points = [("train_loss", k, math.nan if k == 7 else 3.0 - k / 64) for k in range(20)]
    path = mlflow_database(
        tmp_path / "mlflow.db", {"a": points, "b": [("val_loss", 0, 1.0), ("val_loss", 0, 2.0)]}
    )
    first, second = read_all(path)
    assert (first.run.name, first.run.status) == ("exp/a", "finished")
    assert len(first.curves["loss"]) == 20
    assert math.isnan(first.curves["loss"][7])
    assert second.curves["eval_loss"] == {0: 1.0, 1: 2.0}
    assert any("without a step" in n for n in second.notes)


def test_mlflow_stores_infinity_as_the_largest_float(tmp_path: Path) -> None:
    path = mlflow_database(tmp_path / "m.db", {"a": [("loss", 0, 1.7976931348623157e308), ("loss", 1, 2.0)]})
    assert read_one(path).curves["loss"][0] == math.inf


def test_mlflow_database_is_not_written(tmp_path: Path) -> None:
    path = mlflow_database(tmp_path / "m.db", {"a": [("loss", 0, 1.0)]})
    before = path.read_bytes()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        read_one(path)
    finally:
        tmp_path.chmod(0o755)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.db"]


def test_other_and_damaged_databases_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE cats (name TEXT)")
    db.close()
    with pytest.raises(UnreadableLog, match="not MLflow's"):
        read_one(tmp_path / "other.db")
    with sqlite3.connect(tmp_path / "own.db") as db:
        db.executescript("CREATE TABLE tensor_table (id TEXT); CREATE TABLE engine_state (id TEXT)")
    db.close()
    with pytest.raises(UnreadableLog, match="floatscope's own database"):
        read_one(tmp_path / "own.db")
    data = bytearray(
        mlflow_database(tmp_path / "m.db", {"a": [("loss", k, 1.0) for k in range(999)]}).read_bytes()
    )
    for seed in range(30):
        rng = random.Random(seed)
        bad = bytearray(data)
        for _ in range(40):
            bad[rng.randrange(16, len(bad))] = rng.randrange(256)
        with contextlib.suppress(UnreadableLog):
            read_all(write(tmp_path / "bad.db", bytes(bad)))
    empty = mlflow_database(tmp_path / "empty.db", {})
    with pytest.raises(UnreadableLog, match="no run in it has a metric"):
        read_one(empty)


def test_a_view_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from floatscope_diagnostics.readers import mlflow_database as reader

    monkeypatch.setattr(reader, "_MAX_CHECKS", 3)
    endless = "WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM n) SELECT"
    with sqlite3.connect(tmp_path / "m.db") as db:
        db.executescript(
            "CREATE TABLE experiments (experiment_id, name);"
            "CREATE TABLE runs (run_uuid, name, status, start_time, experiment_id);"
            "INSERT INTO runs VALUES ('a', 'a', 'FINISHED', 0, 0);"
            f"CREATE VIEW metrics AS {endless} 'k' || x AS key, 1.0 AS value, 0 AS timestamp,"
            " 'b' AS run_uuid, 0 AS step, 0 AS is_nan FROM n;"
        )
    db.close()
    with pytest.raises(UnreadableLog, match="cannot be read"):
        read_one(tmp_path / "m.db")


def metric(points: dict[int, float], end: str = "\r\n") -> bytes:
    return "".join(f"{1_700_000_000_000 + s} {v!r} {s}{end}" for s, v in points.items()).encode()


def test_mlflow_metric_files(tmp_path: Path) -> None:
    run = read_one(write(tmp_path / "train_loss", metric(LOSS)))
    assert run.curves == {"loss": LOSS}
    assert run.times[10] == pytest.approx(1_700_000_000.01)


def test_mlflow_run_folder_is_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "mlruns" / "1" / "abc"
    write(folder / "metrics" / "train_loss", metric(LOSS))
    write(folder / "metrics" / "val" / "acc", metric({0: 0.5}))
    write(folder / "params" / "lr", b"0.1")
    write(folder / "meta.yaml", b"artifact_uri: x\nrun_name: brave-cat\nstatus: 4\n")
    run = read_one(tmp_path / "mlruns")
    assert run.curves == {"loss": LOSS, "val/acc": {0: 0.5}}
    assert (run.run.name, run.run.status) == ("brave-cat", "failed")


def test_mlflow_metric_with_bad_lines(tmp_path: Path) -> None:
    data = (
        metric(LOSS)
        + b"rubbish\n1700000000000 nan 2000\n1700000000000 x 3\n1700000000000 1.0 99999999999999\n"
    )
    run = read_one(write(tmp_path / "loss", data))
    assert run.skipped == 2
    assert math.isnan(run.curves["loss"][2000])
