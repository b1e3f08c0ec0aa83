"""The callback in Lightning's real Trainer: it records what Lightning did, and nothing changes by it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from floatscope.integrations.lightning import FloatscopeCallback
from tests.integrations.recorded import QUIET, diagnose_as_critical, first_found, recorded_in, run_example

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
WORDS = 19


class Tiny(LightningModule):  # type: ignore[misc] # the library has no types
    """Predicts its input; keeps what Lightning shows it."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net: Any = nn.Sequential(
            nn.Embedding(WORDS, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, WORDS)
        )
        self.losses: list[Tensor] = []
        self.norms: list[float] = []
        self.rates: list[float] = []
        self.val_losses: dict[int, float] = {}

    def loss(self, batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch).flatten(0, 1), batch.flatten())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.val_losses[self.trainer.global_step] = float(self.trainer.callback_metrics["val_loss"])

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        self.norms.append(float(torch.nn.utils.get_total_norm(grads)))
        self.rates.append(optimizer.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9), "interval": "step"}
        ]


def loader(count: int = 24) -> Any:
    data = torch.randint(0, WORDS, (count, 6), generator=torch.Generator().manual_seed(5))
    return DataLoader(list(data), batch_size=2)  # type: ignore[arg-type]


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "max_steps": 6,
        "accumulate_grad_batches": 2,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
        "default_root_dir": str(folder),
        **options,
    }
    return Trainer(callbacks=list(callbacks), **settings)


def test_it_records_what_lightning_does(tmp_path: Path, spool: Path) -> None:
    """One row an optimizer step; its loss is the mean of its micro-batches, its norm that before clipping."""
    module = Tiny()
    trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), gradient_clip_val=0.1).fit(module, loader())
    run = recorded_in(spool)
    pairs = [module.losses[i] / 2 + module.losses[i + 1] / 2 for i in range(0, 12, 2)]
    assert run.steps == [1, 2, 3, 4, 5, 6]
    assert run.column("loss") == [float(loss) for loss in pairs]
    assert run.column("lr") == module.rates
    assert run.column("grad_norm") == pytest.approx(module.norms, rel=1e-6)
    assert run.column("tokens") == [2 * 2 * 6] * 6
    assert "net.1/weight" in run.tensors("grad_norm")
    assert "net.1/input" in run.tensors("amax")
    assert run.head["status"] == "finished"


def test_the_weights_are_the_same_without_it(tmp_path: Path, spool: Path) -> None:
    """Bit for bit, and no hook stays behind."""
    watched, plain = Tiny(), Tiny()
    trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), gradient_clip_val=0.1).fit(watched, loader())
    trainer(tmp_path, gradient_clip_val=0.1).fit(plain, loader())
    pairs = zip(watched.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)
    assert not any(part._forward_hooks for part in watched.modules())


@pytest.mark.parametrize("interval", [4, 1.0])
def test_a_validation_belongs_to_the_step_it_follows(tmp_path: Path, spool: Path, interval: float) -> None:
    """Its loss is eval_loss in the row of that step, inside an epoch and at its end; no row is added."""
    module = Tiny()
    trainer(
        tmp_path,
        FloatscopeCallback(run="tiny", **QUIET),
        limit_val_batches=1,
        val_check_interval=interval,
        max_steps=-1,
        max_epochs=2,
    ).fit(module, loader(), loader(4))
    run = recorded_in(spool)
    assert run.steps == list(range(1, 13))
    assert {row["step"]: row["eval_loss"] for row in run.rows if "eval_loss" in row} == module.val_losses
    assert len(module.val_losses) >= 2


def test_a_resumed_fit_goes_on_in_its_run(tmp_path: Path, spool: Path) -> None:
    """The checkpoint knows the run; steps follow on and the first is marked as resumed."""
    first = trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), max_steps=3)
    first.fit(Tiny(), loader())
    first.save_checkpoint(tmp_path / "half.ckpt")
    again = trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET))
    again.fit(Tiny(), loader(), ckpt_path=tmp_path / "half.ckpt")
    run = recorded_in(spool)
    assert run.steps == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in run.rows if row.get("resumed")] == [4]


class _TwoOptimizers(Tiny):
    """Steps two optimizers a batch, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        first, second = self.optimizers()
        loss = self.loss(batch)
        self.manual_backward(loss)
        first.step()
        second.step()
        self.zero_grad()
        return loss.detach()

    def configure_optimizers(self) -> Any:
        parts = [self.net[:2].parameters(), self.net[2:].parameters()]
        return [torch.optim.SGD(part, lr=0.1) for part in parts]


def test_optimizers_that_are_stepped_by_hand(tmp_path: Path, spool: Path) -> None:
    """One row a batch, under the number that Lightning has counted to; gradients of both are there."""
    ran = trainer(tmp_path, FloatscopeCallback(run="two", **QUIET), accumulate_grad_batches=1)
    ran.fit(_TwoOptimizers(), loader())
    run = recorded_in(spool)
    assert run.steps == [2, 4, 6]
    assert all(loss > 0 for loss in run.column("loss"))
    assert {"net.1/weight", "net.3/weight"} <= run.tensors("grad_norm")


def test_the_library_under_its_older_name(tmp_path: Path, spool: Path) -> None:
    """``pytorch_lightning`` is the same library in another package; its Trainer takes the callback."""
    import pytorch_lightning

    class Older(pytorch_lightning.LightningModule):  # type: ignore[misc] # the library has no types
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            loss: Tensor = self.net(batch).square().mean()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    pytorch_lightning.Trainer(
        max_steps=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
        callbacks=[FloatscopeCallback(run="older", **QUIET)],
    ).fit(Older(), DataLoader(list(torch.randn(12, 4)), batch_size=2))  # type: ignore[arg-type]
    assert recorded_in(spool).steps == [1, 2, 3]


class _At(Callback):  # type: ignore[misc] # the library has no types
    """Does something when a step begins."""

    def __init__(self, step: int, action: Any) -> None:
        self._step, self._action = step, action

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step and self._action is not None:
            action, self._action = self._action, None
            action(trainer)


@pytest.mark.parametrize(("stop", "last"), [(True, 3), (False, 6)])
def test_a_finding_stops_the_fit_only_if_asked_to(tmp_path: Path, spool: Path, stop: bool, last: int) -> None:
    """With stop=True Lightning ends after the step in which the finding arrived."""
    ours = FloatscopeCallback(run="tiny", stop=stop, diagnose=False, **QUIET)

    def find(_: Any) -> None:
        assert ours.monitor is not None
        diagnose_as_critical(ours.monitor, onset_step=2)

    ran = trainer(tmp_path, ours, _At(2, find), min_epochs=0)
    ran.fit(Tiny(), loader())
    assert ran.global_step == last
    assert recorded_in(spool).steps == list(range(1, last + 1))


def test_checkpoints_say_whether_they_are_clean(tmp_path: Path, spool: Path) -> None:
    """One from before the first bad step is clean, one from after it is not, one not judged is None."""
    ours = FloatscopeCallback(run="tiny", diagnose=False, **QUIET)

    def find(ran: Any) -> None:
        ran.save_checkpoint(tmp_path / "unknown.ckpt")
        assert ours.monitor is not None
        diagnose_as_critical(ours.monitor, onset_step=4)

    ran = trainer(tmp_path, ours, _At(4, find))
    ran.fit(Tiny(), loader())
    ran.save_checkpoint(tmp_path / "bad.ckpt")
    tags = {
        name: torch.load(tmp_path / f"{name}.ckpt", weights_only=True)["floatscope"]
        for name in ("unknown", "bad")
    }
    assert ours.monitor is not None
    assert tags["unknown"] == {"run_id": ours.monitor.run_id, "step": 4, "is_clean": None}
    assert tags["bad"]["is_clean"] is False
    assert ours.monitor.is_clean(3) is True


def test_an_exception_ends_the_run_with_its_reason(tmp_path: Path, spool: Path) -> None:
    """It reaches the caller unchanged, and the record says why the run ended, even if it is caught there."""

    def fail(_: Any) -> None:
        raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), _At(3, fail)).fit(Tiny(), loader())
    run = recorded_in(spool)
    assert run.head["status"] == "crashed"
    assert run.head["reason"] == "RuntimeError: device lost"
    assert run.steps[:3] == [1, 2, 3]


def test_a_person_who_interrupts_has_not_crashed_the_run(tmp_path: Path, spool: Path) -> None:
    """Lightning turns Ctrl-C into an orderly exit; the run is failed, by KeyboardInterrupt."""

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), _At(3, interrupt)).fit(Tiny(), loader())
    head = recorded_in(spool).head
    assert (head["status"], head["reason"]) == ("failed", "KeyboardInterrupt")


def test_the_example_runs(spool: Path) -> None:
    """As it stands, in a process of its own."""
    run = run_example("lightning", spool)
    assert run.steps == list(range(1, 33))
    assert [row["step"] for row in run.rows if "eval_loss" in row] == [16, 32]
    assert run.head["status"] == "finished"


def test_a_nan_is_found_without_a_server(tmp_path: Path, spool: Path) -> None:
    """The verdict on disk names the step in which it began."""

    def poison(ran: Any) -> None:
        ran.lightning_module.net[1].weight.data[0, 0] = float("nan")

    trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), _At(4, poison)).fit(Tiny(), loader())
    found = first_found(spool)
    assert (found["severity"], found["onset_step"]) == ("critical", 5)
