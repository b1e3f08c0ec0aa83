"""The callback in Composer's real Trainer: it records what Composer did, and nothing changes by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.integrations import composer_cpu
from tests.integrations.recorded import QUIET, diagnose_as_critical, first_found, recorded_in, run_example

composer = composer_cpu.load_composer()
from composer.core import Callback  # noqa: E402 - after the package can be loaded
from composer.loggers import InMemoryLogger  # noqa: E402
from composer.models import ComposerModel  # noqa: E402

from floatscope.integrations.composer import FloatscopeCallback  # noqa: E402

WORDS = 19


class Tiny(ComposerModel):  # type: ignore[misc] # the library has no types
    """Predicts its input."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net: Any = nn.Sequential(
            nn.Embedding(WORDS, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, WORDS)
        )

    def forward(self, batch: Tensor) -> Any:
        return self.net(batch)

    def loss(self, outputs: Tensor, batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.flatten())

    def eval_forward(self, batch: Tensor, outputs: Any = None) -> Any:
        return self.forward(batch)

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        from composer.metrics import LanguageCrossEntropy

        return {} if is_train else {"LanguageCrossEntropy": LanguageCrossEntropy()}

    def update_metric(self, batch: Tensor, outputs: Tensor, metric: Any) -> None:
        metric.update(outputs, batch)


def loader(count: int = 24) -> Any:
    data = torch.randint(0, WORDS, (count, 6), generator=torch.Generator().manual_seed(5))
    return DataLoader(list(data), batch_size=4)  # type: ignore[arg-type]


@pytest.fixture
def trainers(tmp_path: Path) -> Iterator[Any]:
    """Makes Trainers and closes them."""
    made: list[Any] = []

    def make(*callbacks: Any, of: Any = None, **options: Any) -> Any:
        module = of or Tiny()
        settings: dict[str, Any] = {
            "max_duration": "6ba",
            "device": "cpu",
            "device_train_microbatch_size": 2,
            "progress_bar": False,
            "loggers": [InMemoryLogger()],
            "run_name": "tiny",
            "optimizers": torch.optim.AdamW(module.parameters(), lr=1e-2),
            "auto_log_hparams": False,
            **options,
        }
        trainer = composer.Trainer(
            model=module, train_dataloader=loader(), callbacks=list(callbacks), **settings
        )
        made.append(trainer)
        return trainer

    yield make
    for trainer in made:
        trainer.close()


def logged(trainer: Any, name: str) -> list[float]:
    return [float(value) for _, value in trainer.logger.destinations[0].data[name]]


def test_it_records_what_composer_logs(trainers: Any, spool: Path) -> None:
    """One row a batch, numbered from 1, with the loss that Composer logs; micro-batches count together."""
    trainer = trainers(FloatscopeCallback(run="tiny", **QUIET))
    trainer.fit()
    run = recorded_in(spool)
    assert run.steps == [1, 2, 3, 4, 5, 6]
    assert run.column("loss") == logged(trainer, "loss/train/total")
    assert run.column("lr") == [1e-2] * 6
    assert run.column("tokens") == [4 * 6] * 6
    assert all(norm > 0 for norm in run.column("grad_norm"))
    assert "net.1/weight" in run.tensors("grad_norm")
    assert "net.1/input" in run.tensors("amax")
    assert run.head["status"] == "finished"


def test_the_gradient_norm_is_that_of_this_step(trainers: Any, spool: Path) -> None:
    """Composer computes gradients inside the optimizer's step; the norm is not that of the step before."""
    norms: list[float] = []

    class Norms(Callback):  # type: ignore[misc] # the library has no types
        def after_train_batch(self, state: Any, logger: Any) -> None:
            grads = [p.grad for p in state.model.parameters()]
            norms.append(float(torch.nn.utils.get_total_norm(grads)))

    trainers(FloatscopeCallback(run="tiny", **QUIET), Norms()).fit()
    assert recorded_in(spool).column("grad_norm") == pytest.approx(norms, rel=1e-6)


def test_the_weights_are_the_same_without_it(trainers: Any, spool: Path) -> None:
    """Bit for bit, and no hook stays behind."""
    watched, plain = Tiny(), Tiny()
    trainers(FloatscopeCallback(run="tiny", **QUIET), of=watched).fit()
    trainers(of=plain).fit()
    pairs = zip(watched.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)
    assert not any(part._forward_hooks for part in watched.modules())


@pytest.mark.parametrize("interval", ["2ba", "1ep", "5ba"])
def test_an_evaluation_belongs_to_the_step_it_follows(trainers: Any, spool: Path, interval: str) -> None:
    """Also the one at the end of an epoch, and the one after the fit; no row is added for it."""
    trainer = trainers(
        FloatscopeCallback(run="tiny", **QUIET), eval_dataloader=loader(4), eval_interval=interval
    )
    trainer.fit()
    run = recorded_in(spool)
    assert run.steps == [1, 2, 3, 4, 5, 6]
    steps = {"2ba": [2, 4, 6], "1ep": [6], "5ba": [5, 6]}[interval]
    assert [row["step"] for row in run.rows if "eval_loss" in row] == steps
    losses = [row["eval_loss"] for row in run.rows if "eval_loss" in row]
    assert losses == logged(trainer, "metrics/eval/LanguageCrossEntropy")
    assert run.head["status"] == "finished"


def test_a_resumed_fit_goes_on_in_its_run(trainers: Any, spool: Path, tmp_path: Path) -> None:
    """The checkpoint knows the run; steps follow on and the first is marked as resumed."""
    first = FloatscopeCallback(run="tiny", **QUIET)
    folder = str(tmp_path / "saved")
    trainers(first, max_duration="3ba", save_folder=folder, save_interval="3ba").fit()
    again = FloatscopeCallback(run="tiny", **QUIET)
    trainers(again, load_path=f"{folder}/ep0-ba3-rank0.pt", load_weights_only=False).fit()
    run = recorded_in(spool)
    assert run.steps == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in run.rows if row.get("resumed")] == [4]
    kept = torch.load(f"{folder}/ep0-ba3-rank0.pt", weights_only=False)["state"]["callbacks"]
    assert first.monitor is not None
    assert kept["FloatscopeCallback"] == {
        "run": "tiny",
        "run_id": first.monitor.run_id,
        "step": 3,
        "is_clean": None,
    }


class _At(Callback):  # type: ignore[misc] # the library has no types
    """Does something when a batch begins."""

    def __init__(self, step: int, action: Any) -> None:
        self._step, self._action = step, action

    def batch_start(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.batch) == self._step:
            self._action()


@pytest.mark.parametrize(("stop", "last"), [(True, 3), (False, 6)])
def test_a_finding_stops_the_fit_only_if_asked_to(trainers: Any, spool: Path, stop: bool, last: int) -> None:
    """With stop=True Composer ends after the batch in which the finding arrived, and its log counts it."""
    ours = FloatscopeCallback(run="tiny", stop=stop, diagnose=False, **QUIET)

    def find() -> None:
        assert ours.monitor is not None
        diagnose_as_critical(ours.monitor, onset_step=2)

    trainer = trainers(ours, _At(2, find))
    trainer.fit()
    assert recorded_in(spool).steps == list(range(1, last + 1))
    assert logged(trainer, "floatscope/warnings") == [1]


def test_a_fit_that_fails_is_no_finished_run(trainers: Any, spool: Path) -> None:
    """Composer does not tell its callbacks; the run ends as failed when the Trainer is closed."""

    def fail() -> None:
        raise RuntimeError("device lost")

    trainer = trainers(FloatscopeCallback(run="tiny", **QUIET), _At(3, fail))
    with pytest.raises(RuntimeError, match="device lost"):
        trainer.fit()
    trainer.close()
    run = recorded_in(spool)
    assert run.head["status"] == "failed"
    assert run.steps[:3] == [1, 2, 3]


def test_no_stand_in_is_left_behind() -> None:
    """Other tests of this process see what is installed."""
    assert not {name.partition(".")[0] for name in sys.modules} & {"mcli"}


def test_the_example_runs(spool: Path) -> None:
    """As it stands, in a process of its own."""
    run = run_example("composer", spool, composer_cpu.__file__)
    assert run.steps == list(range(1, 17))
    assert run.head["status"] == "finished"


def test_a_nan_is_found_without_a_server(trainers: Any, spool: Path) -> None:
    """The verdict on disk names the step in which it began."""
    ill = Tiny()

    def poison() -> None:
        ill.net[1].weight.data[0, 0] = float("nan")

    trainers(FloatscopeCallback(run="tiny", **QUIET), _At(4, poison), of=ill).fit()
    found = first_found(spool)
    assert (found["severity"], found["onset_step"]) == ("critical", 5)
