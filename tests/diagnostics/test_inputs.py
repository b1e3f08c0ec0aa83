"""What the user named becomes inputs: folders, patterns, files that belong together."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from floatscope_diagnostics.readers import folders
from floatscope_diagnostics.readers.inputs import MAX_INPUTS, Input, expand, open_input
from floatscope_diagnostics.readers.run_log import UnreadableLog
from tests.diagnostics.read_back import read_all
from tests.diagnostics.tracker_files import events, wandb_run

CSV = "step,loss\n" + "".join(f"{s},{3 - s / 64}\n" for s in range(20))
STATE = json.dumps({"log_history": [{"step": s, "loss": 2.0} for s in range(10)]})


def put(root: Path, **files: str | bytes) -> None:
    """Writes files; in a name ``__`` stands for a folder and ``_dot_`` for a dot."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def names(root: Path, items: list[Input]) -> list[str]:
    return [os.path.relpath(i.path, root) for i in items]


def test_files_and_standard_input_go_through_unchanged(tmp_path: Path) -> None:
    put(tmp_path, a_dot_csv=CSV)
    paths = [str(tmp_path / "a.csv"), "-", str(tmp_path / "missing.csv")]
    assert [(i.path, i.parts, i.error) for i in expand(paths)] == [(p, (p,), None) for p in paths]


def test_patterns_that_the_shell_left_are_matched(tmp_path: Path) -> None:
    put(tmp_path, x__a_dot_csv=CSV, x__b_dot_csv=CSV, y__c_dot_csv=CSV, x__d_dot_txt="no")
    assert names(tmp_path, expand([f"{tmp_path}/**/*.csv"])) == ["x/a.csv", "x/b.csv", "y/c.csv"]
    (nothing,) = expand([f"{tmp_path}/*.parquet"])
    assert "no file matches" in str(nothing.error)
    with pytest.raises(UnreadableLog, match="no file matches"), open_input(nothing) as _:
        pass


def test_a_file_with_a_pattern_in_its_name_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "run[1].csv").write_text(CSV)
    (item,) = expand([f"{tmp_path}/run[1].csv"])
    assert item.parts == (f"{tmp_path}/run[1].csv",)


def test_the_newest_checkpoint_of_a_run_is_taken(tmp_path: Path) -> None:
    put(
        tmp_path,
        out__checkpoint_dot_md="x",
        **{"out__checkpoint-500__trainer_state_dot_json": STATE},
        **{"out__checkpoint-1000__trainer_state_dot_json": STATE},
        **{"out__runs__a__events.out.tfevents.1_dot_h": events({"loss": {1: 2.0}})},
        **{"out__trainer_log_dot_jsonl": '{"step": 1, "loss": 2.0}\n'},
        **{"other__log_dot_csv": CSV},
    )
    items = expand([str(tmp_path)])
    assert names(tmp_path, items) == ["out/checkpoint-1000/trainer_state.json", "other/log.csv"]
    notes = " ".join(items[0].notes)
    assert "of 2 trainer states the newest" in notes
    assert "2 other logs beside trainer_state.json" in notes
    put(tmp_path, out__trainer_state_dot_json=STATE)
    assert names(tmp_path, expand([str(tmp_path / "out")])) == ["out/trainer_state.json"]


def test_wandb_folders(tmp_path: Path) -> None:
    run = tmp_path / "wandb" / "offline-run-1-a"
    put(
        run,
        files__output_dot_log="step 1 loss 2.0\n" * 9,
        logs__debug_dot_log="x",
        files__config_dot_yaml="x",
    )
    put(run, **{"run-a_dot_wandb": wandb_run([{"loss": 2.0}])})
    (tmp_path / "wandb" / "latest-run").symlink_to(run, target_is_directory=True)
    (item,) = expand([str(tmp_path)])
    assert item.path.endswith("run-a.wandb")
    (run / "run-a.wandb").write_bytes(b"")
    (item,) = expand([str(tmp_path)])
    assert item.path.endswith("files/output.log")


def test_lightning_versions_are_runs(tmp_path: Path) -> None:
    put(
        tmp_path,
        lightning_logs__version_0__metrics_dot_csv=CSV,
        lightning_logs__version_1__metrics_dot_csv=CSV,
    )
    assert len(read_all(tmp_path)) == 2


def test_event_files_named_one_by_one_are_one_run(tmp_path: Path) -> None:
    put(tmp_path, **{"events.out.tfevents.1": events({"loss": {1: 2.0}})})
    put(tmp_path, **{"events.out.tfevents.2": events({"loss": {2: 1.0}})})
    put(tmp_path, b_dot_csv=CSV)
    paths = [str(tmp_path / n) for n in ("events.out.tfevents.2", "b.csv", "events.out.tfevents.1")]
    first, second = read_all(*paths)
    assert first.steps == [1, 2]
    assert second.format == "csv"


def test_what_is_no_log_is_left_with_a_note(tmp_path: Path) -> None:
    put(
        tmp_path,
        a_dot_csv=CSV,
        notes_dot_log="hello\nworld\n",
        train_config_dot_json='{"loss": "mse"}',
        results_dot_json='{"hello": 1}',
        _dot_git__x_dot_csv=CSV,
        node_modules__x_dot_csv=CSV,
        weights_dot_bin=b"\0" * 99,
    )
    (item,) = expand([str(tmp_path)])
    assert item.path.endswith("a.csv")
    assert any("2 files that are no training log" in n for n in item.notes)


@pytest.mark.parametrize("name", ["classic.txt", "model_X.md", "0b1f.txt", "Discriminator loss"])
def test_where_no_name_is_a_logs_the_content_decides(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("".join(f"17000000000{k:02} {3 - k / 64} {k}\n" for k in range(30)))
    (tmp_path / "README.md").write_text("# Our model\n\nThe loss fell from 3.0 to 2.1 at step 500.\n")
    (tmp_path / "weights.bin").write_bytes(b"\0" * 500)
    (item,) = expand([str(tmp_path)])
    assert item.parts == (str(tmp_path / name),)
    assert any("2 files that are no training log" in n for n in item.notes)


def test_text_files_with_other_names_are_logs_by_their_content(tmp_path: Path) -> None:
    nano = "".join(f"iter {s}: loss {3 - s / 64:.4f}, time 150.12ms, mfu 10.1%\n" for s in range(20))
    plain = "".join(f"step {s} | loss {3 - s / 64:.4f}\n" for s in range(20))
    put(
        tmp_path,
        a__m_dot_csv=CSV,
        a__x_dot_txt=nano,
        a__notes_dot_txt="step 1: buy a GPU",
        b__x_dot_txt=plain,
    )
    assert names(tmp_path, expand([str(tmp_path / "a")])) == ["a/m.csv", "a/x.txt"]
    assert names(tmp_path, expand([str(tmp_path / "b")])) == ["b/x.txt"]


def test_a_folder_without_a_log_is_an_error_with_advice(tmp_path: Path) -> None:
    (item,) = expand([str(tmp_path)])
    assert "no training log that is known" in str(item.error)


def test_links_that_loop_or_lead_to_devices_are_not_followed(tmp_path: Path) -> None:
    put(tmp_path, a__log_dot_csv=CSV)
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a" / "zero.log").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "a" / "pipe.log")
    assert names(tmp_path, expand([str(tmp_path)])) == ["a/log.csv"]


def test_a_link_to_a_folder_that_the_user_names_is_followed(tmp_path: Path) -> None:
    put(tmp_path, a__log_dot_csv=CSV)
    (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    assert names(tmp_path, expand([str(tmp_path / "link")])) == ["link/log.csv"]


def test_large_and_deep_folders_are_searched_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path
    for _ in range(folders.MAX_DEPTH + 3):
        deep = deep / "d"
    put(deep, log_dot_csv=CSV)
    put(tmp_path, log_dot_csv=CSV)
    (item,) = expand([str(tmp_path)])
    assert any("deeper than" in n for n in item.notes)
    monkeypatch.setattr(folders, "MAX_ENTRIES", 1)
    (item,) = expand([str(tmp_path)])
    assert folders.TOO_LARGE in f"{item.error} {item.notes}"
    monkeypatch.setattr(folders, "MAX_ENTRIES", 999)
    monkeypatch.setattr(folders, "MAX_SECONDS", -1.0)
    (item,) = expand([str(tmp_path)])
    assert folders.TOO_LARGE in f"{item.error} {item.notes}"


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    put(tmp_path, log_dot_csv=CSV, locked__log_dot_csv=CSV)
    (tmp_path / "locked").chmod(0)
    try:
        items = expand([str(tmp_path)])
    finally:
        (tmp_path / "locked").chmod(0o755)
    if os.geteuid() != 0:
        assert any("locked" in n for n in items[0].notes)
    assert items[0].path.endswith("log.csv")


def test_too_many_inputs_are_cut_with_a_note(tmp_path: Path) -> None:
    items = expand([str(tmp_path / f"{k}.csv") for k in range(MAX_INPUTS + 5)])
    assert len(items) == MAX_INPUTS
    assert "5 more inputs" in items[-1].notes[-1]
