"""The tracker in a loop around the real Accelerator: it records what the loop did, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.utils.data import DataLoader

from floatscope.integrations.accelerate import FloatscopeTracker
from tests.integrations.recorded import QUIET, diagnose_as_critical, first_found, recorded_in, run_example

WORDS = 19


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Accelerate keeps one state for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def small(seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, WORDS))


def loader(count: int = 24) -> Any:
    data = torch.randint(0, WORDS, (count, 6), generator=torch.Generator().manual_seed(5))
    return DataLoader(list(data), batch_size=2)  # type: ignore[arg-type]


class Loop:
    """A usual loop; keeps what it saw."""

    def __init__(self, tracker: FloatscopeTracker | None, *, accumulate: int = 2) -> None:
        trackers = [] if tracker is None else [tracker]
        self.accelerator = Accelerator(cpu=True, log_with=trackers, gradient_accumulation_steps=accumulate)
        self.accelerator.init_trackers("project", config={"width": 8})
        self.tracker = tracker
        self.model = small()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        self.prepared, self.optimizer, self.data, self.schedule = self.accelerator.prepare(
            self.model, optimizer, loader(), schedule
        )
        self.losses: list[Tensor] = []
        self.rates: list[float] = []
        self.norms: list[float] = []

    def attach(self) -> None:
        if self.tracker is not None:
            self.tracker.attach(self.prepared, self.optimizer, accelerator=self.accelerator)

    def run(self, *, extra: dict[str, Any] | None = None) -> None:
        for batch in self.data:
            with self.accelerator.accumulate(self.prepared):
                if self.tracker is not None:
                    self.tracker.batch(batch)
                loss = nn.functional.cross_entropy(self.prepared(batch).flatten(0, 1), batch.flatten())
                self.losses.append(loss.detach())
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.norms.append(
                        float(self.accelerator.clip_grad_norm_(self.prepared.parameters(), 0.1))
                    )
                    self.rates.append(self.optimizer.param_groups[0]["lr"])
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
                if self.tracker is not None:
                    self.tracker.step(loss=loss)
            if self.accelerator.sync_gradients and extra is not None:
                self.accelerator.log(extra, step=len(self.rates))
            if self.tracker is not None and self.tracker.should_stop():
                break
        self.accelerator.end_training()


def test_it_records_what_the_loop_did(spool: Path) -> None:
    """One row a synchronised step; the mean loss of its micro-batches, the rate it was made with."""
    loop = Loop(FloatscopeTracker(run="tiny", **QUIET))
    loop.attach()
    loop.run(extra={"accuracy": 0.25, "note": "a text"})
    run = recorded_in(spool)
    assert run.steps == [0, 1, 2, 3, 4, 5]
    assert run.column("loss") == [float((loop.losses[i] + loop.losses[i + 1]) / 2) for i in range(0, 12, 2)]
    assert run.column("lr") == loop.rates
    assert run.column("grad_norm") == pytest.approx(loop.norms, rel=1e-6), "before clipping"
    assert run.column("accuracy") == [0.25] * 6, "accelerator.log goes to the step that has just ended"
    assert run.column("tokens") == [2 * 2 * 6] * 6
    assert all(seconds >= 0 for seconds in run.column("data_time_s")[1:])
    assert "1/weight" in run.tensors("grad_norm")
    assert "1/input" in run.tensors("amax")
    assert run.head["status"] == "finished"
    assert run.head["config"]["width"] == 8


def test_the_weights_are_the_same_without_it(spool: Path) -> None:
    """Bit for bit, and no hook stays behind."""
    watched, plain = Loop(FloatscopeTracker(run="tiny", **QUIET)), Loop(None)
    watched.attach()
    watched.run()
    plain.run()
    pairs = zip(watched.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)
    assert not any(part._forward_hooks for part in watched.model.modules())
    assert not watched.optimizer.optimizer._optimizer_step_pre_hooks


def test_as_a_plain_tracker_it_records_what_is_logged(spool: Path) -> None:
    """Without a model: values of one step that come in two calls are one row."""
    accelerator = Accelerator(cpu=True, log_with=[FloatscopeTracker(run="scalars", **QUIET)])
    accelerator.init_trackers("project")
    for step in range(3):
        accelerator.log({"loss": 2.0 - step}, step=step)
        accelerator.log({"grad_norm": 1.0}, step=step)
    accelerator.end_training()
    run = recorded_in(spool)
    assert run.steps == [0, 1, 2]
    assert run.column("loss") == [2.0, 1.0, 0.0]
    assert run.column("grad_norm") == [1.0] * 3


def test_a_resumed_loop_goes_on_in_its_run(spool: Path, tmp_path: Path) -> None:
    """The checkpoint knows the run and the step."""
    first = Loop(FloatscopeTracker(run="tiny", **QUIET))
    assert first.tracker is not None
    first.accelerator.register_for_checkpointing(first.tracker)
    first.attach()
    first.run()
    first.accelerator.save_state(str(tmp_path / "saved"))
    again = Loop(FloatscopeTracker(run="tiny", **QUIET))
    assert again.tracker is not None
    again.accelerator.register_for_checkpointing(again.tracker)
    again.accelerator.load_state(str(tmp_path / "saved"))
    again.attach()
    again.run()
    run = recorded_in(spool)
    assert run.steps == list(range(12))
    assert [row["step"] for row in run.rows if row.get("resumed")] == [6]


def test_a_finding_can_stop_the_loop(spool: Path) -> None:
    """should_stop() is true after the step in which the finding arrived."""
    tracker = FloatscopeTracker(run="tiny", diagnose=False, **QUIET)
    loop = Loop(tracker, accumulate=1)
    loop.attach()
    assert tracker.monitor is not None
    diagnose_as_critical(tracker.monitor, onset_step=0)
    loop.run()
    assert recorded_in(spool).steps == [0]
    assert tracker.state_dict()["is_clean"] is False


def test_the_example_runs(spool: Path) -> None:
    """As it stands, in a process of its own."""
    run = run_example("accelerate", spool)
    assert run.steps == list(range(16))
    assert [row["step"] for row in run.rows if "accuracy" in row] == [7, 15]
    assert run.head["status"] == "finished"


def test_a_nan_is_found_without_a_server(spool: Path) -> None:
    """The verdict on disk names the step in which it began."""
    loop = Loop(FloatscopeTracker(run="tiny", **QUIET))
    loop.attach()
    calls: list[int] = []

    def poison(module: Any, args: Any, output: Tensor) -> Tensor:
        calls.append(1)
        return output * float("nan") if len(calls) > 8 else output

    loop.model[3].register_forward_hook(poison)
    loop.run()
    found = first_found(spool)
    assert (found["severity"], found["onset_step"]) == ("critical", 4)
