"""`floatscope train` from its arguments to its exit code, with a stand-in for the agent."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from floatscope_trainer.cli import main
from tests.trainer.small_runs import RecordingMonitor

SMALL = [
    "--layers",
    "2",
    "--width",
    "32",
    "--heads",
    "2",
    "--hidden",
    "48",
    "--context",
    "16",
    "--batch",
    "2",
]


@pytest.fixture
def story(tmp_path: Path) -> list[str]:
    """--data with a small text."""
    path = tmp_path / "story.txt"
    path.write_text("It was a dark and stormy night; the rain fell in torrents. " * 40, encoding="utf-8")
    return ["--data", str(path)]


def run(*argv: str) -> tuple[int, RecordingMonitor]:
    monitor = RecordingMonitor()
    return main([*SMALL, "--quiet", *argv], watch=monitor.watch), monitor


def test_a_run_is_watched_from_start_to_end(story: list[str]) -> None:
    code, monitor = run(*story, "--steps", "3", "--run", "mine", "--run-id", "mine-1", "--baseline", "bf16",
                        "--project", "p", "--passes", "2")  # fmt: skip
    assert code == 0
    assert monitor.ending == ("finished", None)
    wanted = {"run": "mine", "run_id": "mine-1", "baseline": "bf16", "project": "p", "stats_every": 1}
    assert wanted.items() <= monitor.watched.items()
    assert monitor.watched["recipe"]["name"] == "fp8_delayed_scaling"
    assert monitor.watched["vocab_size"] == monitor.watched["config"]["model"]["vocab_size"]
    assert [row["step"] for row in monitor.steps] == [0, 1, 2]
    assert len(monitor.batches) == 6
    assert set(monitor.batches[0]) == {"input_ids", "labels", "step"}
    assert [batch["step"] for batch in monitor.batches] == [0, 0, 1, 1, 2, 2]
    row = monitor.steps[0]
    assert {"loss", "lr", "grad_norm", "tokens", "passes", "data_id"} <= row.keys()
    assert "resumed" not in row
    assert (row["passes"], row["tokens"]) == (2, 64)


def test_fp16_reports_its_loss_scale(story: list[str]) -> None:
    _, monitor = run(*story, "--steps", "1", "--precision", "fp16")
    assert monitor.steps[0]["loss_scale"] == 65536.0
    assert monitor.steps[0]["skipped_steps"] == 0
    assert monitor.watched["scaler"] is not None
    assert monitor.watched["recipe"] == {"name": "fp16_amp"}


def test_resume_continues_the_run_and_fork_starts_another(story: list[str], tmp_path: Path) -> None:
    keep = ["--checkpoint-dir", str(tmp_path / "ck")]
    _, through = run(*story, "--steps", "6", "--seed", "3")
    every = ["--checkpoint-every", "2", "--run-id", "one"]
    code, first = run(*story, *keep, *every, "--steps", "4", "--decay-steps", "6", "--seed", "3")
    assert code == 0
    assert sorted(p.name for p in (tmp_path / "ck").iterdir()) == [
        "step-000002.safetensors",
        "step-000004.safetensors",
    ]
    code, resumed = run("--resume", str(tmp_path / "ck"), "--steps", "6")
    assert code == 0
    assert resumed.watched["run_id"] == "one"
    assert [row["step"] for row in resumed.steps] == [4, 5]
    assert [row.get("resumed") for row in resumed.steps] == [1, None]
    losses = [row["loss"] for row in [*first.steps, *resumed.steps]]
    assert losses == [row["loss"] for row in through.steps]
    start = str(tmp_path / "ck" / "step-000002.safetensors")
    code, fork = run("--fork", start, "--run", "other", "--inject", "lr_spike@3")
    assert code == 0
    assert fork.watched["run_id"] is None
    assert fork.steps[0]["resumed"] == 1
    assert [row["data_id"] for row in fork.steps] == [row["data_id"] for row in through.steps[2:4]]


def test_a_crash_is_reported_with_its_reason(story: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, monitor = run(*story, "--steps", "4", "--inject", "id_out_of_range@2")
    assert code == 1
    assert monitor.ending is not None
    status, reason = monitor.ending
    assert status == "crashed"
    assert reason is not None
    assert reason.startswith("IndexError at step 2: ")
    assert len(monitor.steps) == 2
    assert len(monitor.batches) == 3  # the agent saw the batch that broke the run
    assert "crashed: IndexError at step 2" in capsys.readouterr().err


def test_a_crash_shows_where_it_happened(story: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    monitor = RecordingMonitor()
    argv = [*SMALL, *story, "--steps", "4", "--inject", "id_out_of_range@2"]
    assert main(argv, watch=monitor.watch) == 1
    assert "Traceback" in capsys.readouterr().err


def test_what_the_agent_refuses_is_wrong_usage(story: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *story, "--steps", "1", "--quiet", "--run-id", "no spaces"]) == 2
    assert "run_id: expected" in capsys.readouterr().err


def test_ctrl_c_ends_the_run(story: list[str]) -> None:
    class Interrupting(RecordingMonitor):
        def step(self, step: int | None = None, **scalars: object) -> None:
            raise KeyboardInterrupt

    monitor = Interrupting()
    assert main([*SMALL, *story, "--quiet", "--steps", "4"], watch=monitor.watch) == 130
    assert monitor.ending == ("failed", "interrupted by the user at step 1")


def test_a_run_of_nan_can_end_itself(story: list[str]) -> None:
    code, monitor = run(*story, "--steps", "20", "--inject", "nan_input@2", "--max-nonfinite", "3")
    assert code == 1
    assert math.isnan(monitor.steps[-1]["loss"])
    assert len(monitor.steps) == 5
    assert monitor.ending == ("failed", "the loss has not been finite for 3 steps, up to step 4")


def test_lists_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inject", "list"]) == 0
    assert "history_poison: " in capsys.readouterr().out


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["--help"])
    assert ending.value.code == 0
    assert "--inject stale_scale@150:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--inject", "stale_scale@2"], "needs a tensor to act on"),
        (["--inject", "stale_scale@2:nowhere/*"], "no tensor matches 'nowhere/*'"),
        (["--inject", "nonsense@2"], "there is no such fault"),
        (["--inject", "nan_input@99"], "step 99 is never trained"),
        (["--inject", "nan_input@two"], "expected a step"),
        (["--width", "33"], "not a multiple of --heads"),
        (["--layers", "4000", "--width", "4096"], "parameters; at most"),
        (["--batch", "100000"], "tokens"),
        (["--width", "30", "--heads", "2"], "odd head width"),
        (["--precision-map", "first=9"], "a number of blocks"),
        (["--data", "/nonexistent/text"], "/nonexistent/text: cannot be read"),
        (["--fork", "/nonexistent/ck"], "/nonexistent/ck: no such checkpoint"),
        (["--backend", "transformer_engine"], "--backend emulated"),
    ],
)
def test_wrong_usage_is_exit_2_and_says_what_to_do(
    argv: list[str], message: str, story: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, monitor = run(*story, "--steps", "4", *argv)
    assert code == 2
    assert message in capsys.readouterr().err
    assert monitor.watched == {}  # nothing was started


@pytest.mark.parametrize(
    "argv", [["--steps", "0"], ["--steps", "x"], ["--precision", "fp4"], ["--lr", "-1"], ["--lr", "nan"],
             ["--resume", "a", "--fork", "b"]]
)  # fmt: skip
def test_wrong_options_are_refused_by_the_parser(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(argv)
    assert ending.value.code == 2


def test_an_empty_checkpoint_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--resume", str(tmp_path))[0] == 2
    assert "no step-*.safetensors" in capsys.readouterr().err


def test_a_finished_checkpoint_asks_for_more_steps(
    story: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*story, "--steps", "2", "--checkpoint-every", "2", "--checkpoint-dir", str(tmp_path))
    assert run("--resume", str(tmp_path))[0] == 2
    assert "step 2 is trained already" in capsys.readouterr().err


def test_another_text_than_the_checkpoints_is_refused(
    story: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*story, "--steps", "1", "--checkpoint-every", "1", "--checkpoint-dir", str(tmp_path))
    other = tmp_path / "other.txt"
    other.write_text("0123456789" * 100, encoding="utf-8")
    assert run("--resume", str(tmp_path), "--steps", "2", "--data", str(other))[0] == 2
    assert "give the same --data" in capsys.readouterr().err
