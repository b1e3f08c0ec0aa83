"""A finding, a crash or the user has the batch of a step and its random states saved."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from floatscope import capture as capturing
from floatscope.protocol.capture_folder import INFO_FILE, TENSORS_FILE, read_info
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.judgement import BriefFinding
from tests.agent.training import backward, batch, loss_of, recording, small_model


def alarm(step: int, **changes: Any) -> BriefFinding:
    value = {
        "id": f"at {step}", "family": "input_nan", "cause": "invalid_input", "severity": "critical",
        "state": "raised", "summary": "NaN", "onset_step": step, **changes,
    }  # fmt: skip
    found = BriefFinding.from_json(value)
    assert found is not None
    return found


def run(monitor: Any, model: Any, steps: int = 6, each: Any = None) -> dict[int, Any]:
    """A loop with dropout and Python's random numbers. Returns what each step drew."""
    drawn = {}
    for step in range(steps):
        ids = batch(step)
        monitor.batch({"input_ids": ids, "meta": {"shard": 3, "name": "web"}}, data_id=f"doc-{step}")
        drawn[step] = (ids, torch.rand(3), random.random())
        backward(loss_of(model, ids))
        if each is not None:
            each(step)
        monitor.step(loss=1.0)
    return drawn


def test_a_step_can_be_drawn_again(tmp_path: Path) -> None:
    model, paths = small_model(), []
    with recording(tmp_path, model) as found:
        drawn = run(found.monitor, model)
        paths = [
            found.monitor.capture("a look"),
            found.monitor.capture(step=2),
            found.monitor.capture(step=99),
        ]
    last, second, never = paths
    assert never is None
    assert last is not None
    assert second is not None
    info = read_info(second)
    assert (info.step, info.reason, info.data_ids) == (2, "asked for", ("doc-2",))
    assert info.values == {"batch.0/meta/shard": 3, "batch.0/meta/name": "web"}
    assert info.run["name"] == "probes"
    assert read_info(last).reason == "a look"
    tensors = load_file(second / TENSORS_FILE)
    assert torch.equal(tensors["batch.0/input_ids"], drawn[2][0])
    torch.set_rng_state(tensors["random.torch"])
    kept = info.random["python"]
    random.setstate((kept["version"], tuple(tensors["random.python"].tolist()), kept["gauss"]))
    assert torch.equal(torch.rand(3), drawn[2][1])
    assert random.random() == drawn[2][2]


def test_a_finding_saves_the_step_where_it_began_once(tmp_path: Path) -> None:
    model = small_model()
    with recording(tmp_path, model, most_captures=2) as found:
        captures = found.monitor._captures
        assert captures is not None

        def each(step: int) -> None:
            if step >= 4:
                captures.on_finding(alarm(3))
                captures.on_finding(alarm(1, severity="info"))
                captures.on_finding(alarm(77))
                captures.on_finding(alarm(2, id="another"))
                captures.on_finding(alarm(0, id="one too many"))

        run(found.monitor, model, each=each)
    folders = sorted((tmp_path / "spool" / found.monitor.run_id / "captures").iterdir())
    assert [folder.name for folder in folders] == ["step2-rank0", "step3-rank0"]
    info = read_info(folders[1])
    assert info.finding is not None
    assert (info.step, info.finding["cause"]) == (3, "invalid_input")


def test_a_finding_that_is_over_when_it_is_heard_of_is_saved_too(tmp_path: Path) -> None:
    """A bad batch lasts one step, and is heard of a second later. Notes and what is replaced save nothing."""
    model = small_model()
    with recording(tmp_path, model) as found:
        captures = found.monitor._captures
        assert captures is not None
        run(found.monitor, model)
        captures.on_finding(alarm(1, state="replaced"))
        captures.on_finding(alarm(2, severity="info", state="recovered"))
        captures.on_finding(alarm(3, state="recovered", resolved_step=4))
        folder = tmp_path / "spool" / found.monitor.run_id / "captures"
    assert [path.name for path in folder.iterdir()] == ["step3-rank0"]


def test_memory_is_bounded_and_the_newest_step_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "HELD_BYTES", 30_000)
    model = small_model()
    with recording(tmp_path, model) as found:
        run(found.monitor, model, steps=40)
        captures = found.monitor._captures
        assert captures is not None
        assert captures._bytes == sum(held.kept.nbytes for held in captures._held) < 40_000
        assert [held.step for held in captures._held][-1] == 39


def test_a_step_of_many_large_micro_batches_is_kept_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop frees each micro-batch when it is through with it; holding them all could cost the memory."""
    monkeypatch.setattr(capturing, "HELD_BYTES", 30_000)
    with recording(tmp_path, nn.Linear(2, 2)) as found:
        for micro in range(8):
            found.monitor.batch({"x": torch.full((5000,), float(micro))}, data_id=micro)
        path = found.monitor.capture()
        assert found.monitor._captures is not None
        assert found.monitor._captures._bytes < 60_000
    assert path is not None
    tensors, info = load_file(path / TENSORS_FILE), read_info(path)
    kept = sorted(name for name in tensors if name.startswith("batch."))
    assert kept == ["batch.0/x", "batch.1/x"][: len(kept)] != []
    assert set(info.left_out) == {f"batch.{micro}" for micro in range(len(kept), 8)}
    assert info.data_ids == tuple(range(8)), "which batches they were is known of all"
    assert "tensors" not in info.run, "a table of 100,000 of them would make a file that nobody reads back"
    assert path.stat().st_mode & 0o077 == 0, "the data is the owner's alone"


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    odd = {
        "sparse": torch.eye(3).to_sparse(), "meta": torch.empty(2, device="meta"), "what": object(),
        "view": torch.arange(6)[::2], "half": torch.ones(2, dtype=torch.bfloat16), "empty": torch.empty(0),
    }  # fmt: skip
    with recording(tmp_path, nn.Linear(2, 2)) as found:
        found.monitor.batch([odd, odd["view"]])
        path = found.monitor.capture()
    assert path is not None
    tensors, info = load_file(path / TENSORS_FILE), read_info(path)
    assert set(info.left_out) == {"batch.0/0/sparse", "batch.0/0/meta", "batch.0/0/what"}
    assert tensors["batch.0/0/view"].tolist() == tensors["batch.0/1"].tolist() == [0, 2, 4]
    assert tensors["batch.0/0/half"].dtype == torch.bfloat16


def test_a_disk_that_refuses_costs_the_capture_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with recording(tmp_path, small_model(), spool_dir=blocked, strict=False) as found:
        run(found.monitor, small_model(), steps=2)
        found.monitor.capture()
    assert [row["step"] for row in found.rows] == [0, 1]


def test_off_means_nothing_is_held(tmp_path: Path) -> None:
    with recording(tmp_path, small_model(), capture=False) as found:
        run(found.monitor, small_model(), steps=2)
        assert found.monitor.capture() is None


CRASH = """
import floatscope, torch
model = torch.nn.Linear(2, 2)
monitor = floatscope.watch(model, run="crash", run_id="crash", gpu=False)
for step in range(3):
    monitor.batch({"x": torch.full((1, 2), float(step))})
    if step == 2:
        raise RuntimeError("CUDA error")
    monitor.step()
"""


def test_a_crash_saves_the_last_batch(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True)
    assert done.returncode == 1
    folder = tmp_path / "spool" / "crash" / "captures" / "step2-rank0"
    assert read_info(folder).reason == "RuntimeError: CUDA error"
    assert load_file(folder / TENSORS_FILE)["batch.0/x"].tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "capture.json"),
        ('{"schema": "floatscope.capture/2"}', "floatscope.capture/1"),
        ('{"schema": "floatscope.capture/1", "run_id": 3}', "run_id"),
    ],
)
def test_a_damaged_description_is_a_clear_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / INFO_FILE).write_text(text)
    with pytest.raises(ProtocolError, match=says):
        read_info(tmp_path)
