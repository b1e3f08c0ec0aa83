"""A step of a run is run again, and what makes its fault go away is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from floatscope_trainer import cli
from floatscope_trainer.replay import cli as replay
from floatscope_trainer.replay.answer import AS_IT_WAS, BF16, FP8_OFF, LAYER_BF16, Verdict, answer
from floatscope_trainer.replay.variants import GradError, Outcome, Variant

LAYER = "blocks.1.mlp.fc1"
SMALL = [
    "--layers",
    "2",
    "--width",
    "32",
    "--heads",
    "2",
    "--hidden",
    "64",
    "--context",
    "16",
    "--batch",
    "4",
]
FAULTS = {
    "stale": f"stale_scale@6:{LAYER}/input*64",
    "infinite": f"scale_inf@6:{LAYER}/input",
    "poor": "round_to_zero@6",
    "data": "nan_input@6",
    "rate": "lr_spike@6",
}


@pytest.fixture(autouse=True)
def _spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATSCOPE_SPOOL_DIR", str(tmp_path / "spool"))
    monkeypatch.delenv("FLOATSCOPE_URL", raising=False)


def train(
    path: Path, *, fault: str | None, precision: tuple[str, ...] = ("--recipe", "delayed")
) -> list[float]:
    """Eight steps with checkpoints after 2, 4, 6 and 8. Returns their losses."""
    log = path / "run.jsonl"
    inject = [] if fault is None else ["--inject", fault]
    keep = ["--checkpoint-every", "2", "--checkpoint-dir", str(path / "kept")]
    arguments = [*SMALL, "--steps", "8", "--quiet", "--log", str(log), "--run-id", "r", *precision, *keep]
    cli.main([*arguments, *inject])
    return [float(json.loads(line)["loss"]) for line in log.read_text().splitlines()[1:]]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The replay's JSON."""
    capsys.readouterr()
    assert replay.main([*arguments, "--json"]) == 0
    out = capsys.readouterr().out
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize(
    ("fault", "layer", "expected"),
    [
        ("stale", LAYER, "layer"),
        ("stale", "blocks.0.attn.proj", "precision"),
        ("infinite", LAYER, "layer"),
        ("poor", LAYER, "precision"),
        ("data", LAYER, "not_precision"),
        ("rate", LAYER, "not_precision"),
    ],
)
def test_the_answer_follows_the_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, layer: str, expected: str
) -> None:
    losses = train(tmp_path, fault=FAULTS[fault])
    where = [str(tmp_path / "kept"), "--step", "6", "--inject", FAULTS[fault], "--layer", layer]
    found = run(capsys, *where)
    assert found["answer"] == expected, found["summary"]
    was = found["variants"][0]
    assert was["name"] == AS_IT_WAS
    if math.isfinite(losses[6]):
        assert was["loss"] == losses[6], "the step is the same to the bit"
    off = found["variants"][-1]
    assert off["name"] == FP8_OFF
    assert off["grad_error"] is None if fault == "data" else off["grad_error"]["whole"] == 0


def test_the_verdict_gets_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, fault=FAULTS["infinite"])
    verdict = tmp_path / "verdict.json"
    finding = {
        "id": "a",
        "severity": "critical",
        "onset_step": 6,
        "layer": LAYER,
        "cause": "scale_state_fault",
    }
    other = {"id": "b", "severity": "warning", "onset_step": 4, "layer": "tok_emb", "confidence": math.inf}
    document = {"schema": "floatscope.verdict/1", "findings": [other, finding], "last_clean_step": 5}
    verdict.write_text(json.dumps(document).replace("Infinity", '"Infinity"'))
    arguments = [str(tmp_path / "kept"), "--verdict", str(verdict), "--inject", FAULTS["infinite"]]
    before = verdict.read_text()
    run(capsys, *arguments, "--dry-run")
    assert verdict.read_text() == before
    found = run(capsys, *arguments)
    after = json.loads(verdict.read_text())
    assert after["findings"][1].pop("replay") == found
    assert after == json.loads(before), "nothing else has changed"
    assert (found["answer"], found["step"], found["layer"]) == ("layer", 6, LAYER)
    assert replay.main([*arguments, "--finding", "b", "--dry-run"]) == 0
    assert "'tok_emb' is none of the model's linear layers" in capsys.readouterr().err


def test_a_captured_batch_takes_the_place_of_the_runs_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, fault=FAULTS["stale"])
    folder = tmp_path / "spool" / "r" / "captures" / "step7-rank0"
    assert not folder.exists(), "nothing has asked for it"
    losses = _with_a_capture(tmp_path)
    found = run(capsys, str(tmp_path / "kept"), "--capture", str(folder))
    assert (found["step"], found["same_batch"]) == (7, True)
    assert found["variants"][0]["loss"] == losses[7], "the faults of the run are in the capture"


def _with_a_capture(path: Path) -> list[float]:
    """The same run, whose last step is captured when it ends."""
    import floatscope

    class Watched:
        def __init__(self, monitor: floatscope.Monitor) -> None:
            self._monitor = monitor
            self.run_id = monitor.run_id
            self.batch, self.step = monitor.batch, monitor.step

        def finish(self, *args: Any, **kwargs: Any) -> None:
            self._monitor.capture()
            self._monitor.finish(*args, **kwargs)

    log = path / "again.jsonl"
    keep = ["--checkpoint-every", "2", "--checkpoint-dir", str(path / "kept")]
    arguments = [*SMALL, "--steps", "8", "--quiet", "--log", str(log), "--run-id", "r", "--recipe", "delayed"]
    cli.main(
        [*arguments, *keep, "--inject", FAULTS["stale"]],
        watch=lambda *args, **kwargs: Watched(floatscope.watch(*args, **kwargs)),
    )
    return [float(json.loads(line)["loss"]) for line in log.read_text().splitlines()[1:]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "which step"),
        (["--step", "1"], "no checkpoint at or before step 1; there are: 2, 4, 6, 8"),
        (["--step", "6", "--layer", "nose"], "'nose' is none of"),
        (["--step", "6", "--finding", "a"], "--verdict"),
        (["--step", "6", "--threads", "0"], "--threads 0"),
        (["--verdict", "missing.json"], "missing.json: cannot be read"),
        (["--capture", "missing"], "missing: not a capture"),
    ],
)
def test_wrong_usage_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    train(tmp_path, fault=None)
    assert replay.main([str(tmp_path / "kept"), *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_run_without_fp8_has_nothing_to_switch_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, fault=None, precision=("--precision", "bf16"))
    assert replay.main([str(tmp_path / "kept"), "--step", "3"]) == 2
    assert "there is no FP8" in capsys.readouterr().err


def outcome(name: str, error: float | None, *, loss: float = 2.0) -> Outcome:
    found = None if error is None else GradError(error, error, "x.weight")
    return Outcome(Variant(name), loss, 1.0 if math.isfinite(loss) else math.nan, found)


NAN = math.nan


@pytest.mark.parametrize(
    ("was", "layer", "bf16", "off", "clean", "expected"),
    [
        (0.4, 0.1, 0.01, 0.0, 0.1, "layer"),
        (0.4, 0.39, 0.01, 0.0, 0.1, "precision"),
        (0.4, None, 0.01, 0.0, 0.1, "precision"),
        (0.15, 0.1, 0.01, 0.0, 0.1, "not_precision"),
        (0.4, 0.1, 0.01, 0.0, None, "unclear"),
        (NAN, 0.1, 0.01, 0.0, 0.1, "layer"),
        (NAN, NAN, 0.01, 0.0, 0.1, "precision"),
        (NAN, NAN, NAN, 0.0, 0.1, "precision"),
        (NAN, NAN, NAN, NAN, 0.1, "not_precision"),
        (0.4, 0.1, 0.01, NAN, 0.1, "unclear"),
    ],
)
def test_every_pattern_has_its_answer(
    was: float, layer: float | None, bf16: float, off: float, clean: float | None, expected: Verdict
) -> None:
    """A NaN stands for a step that is not finite."""
    given = ((AS_IT_WAS, was), (LAYER_BF16, layer), (BF16, bf16), (FP8_OFF, off))
    outcomes = [
        outcome(name, None if math.isnan(error) else error, loss=error if math.isnan(error) else 2.0)
        for name, error in given
        if error is not None
    ]
    found = answer(
        outcomes,
        layer=None if layer is None else "x",
        clean=None if clean is None else GradError(clean, clean, "x.weight"),
    )
    assert found.verdict == expected
    assert found.summary
