"""The training loop's one step, and the whole state of a run that a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from floatscope_trainer.backends import TrainingBackend
from floatscope_trainer.checkpoint import (
    Checkpoint,
    CheckpointError,
    optimizer_tensors,
    restore_in_place,
    restore_optimizer,
    save_checkpoint,
)
from floatscope_trainer.config import TrainConfig
from floatscope_trainer.data import IGNORED_LABEL, CharText, TokenBatch
from floatscope_trainer.faults.fault import Fault
from floatscope_trainer.schedule import learning_rate


@dataclass(frozen=True)
class StepRecord:
    """What one step gives to log.

    loss: mean over micro-batches, NaN and infinity as they come.  grad_norm: before clipping.  tokens: of the
    step.  data_id: of its first micro-batch.  loss_scale: in force during the step, skipped_steps: running
    total; both only with fp16.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    passes: int
    data_id: int
    loss_scale: float | None = None
    skipped_steps: int | None = None
    eval_loss: float | None = None

    def scalars(self) -> dict[str, float]:
        """By their names in the log; what does not apply is absent."""
        named = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "tokens": self.tokens,
            "passes": self.passes,
            "data_id": self.data_id,
            "loss_scale": self.loss_scale,
            "skipped_steps": self.skipped_steps,
            "eval_loss": self.eval_loss,
        }
        return {name: value for name, value in named.items() if value is not None}


class Training:
    """A run's state and how to take a step of it.

    next_step: the first step not yet trained.
    """

    def __init__(self, config: TrainConfig, *, backend: TrainingBackend, text: CharText) -> None:
        self.config = config
        self.backend = backend
        self.faults: Sequence[Fault] = ()
        self.next_step = 0
        self.skipped_steps = 0
        self._text = text
        self.scaler = (
            torch.amp.GradScaler(
                "cpu", init_scale=config.init_loss_scale, growth_interval=config.growth_interval
            )
            if config.precision.precision == "fp16"
            else None
        )
        self.optimizer = backend.make_optimizer(config.optim, scaled_gradients=self.scaler is not None)

    @property
    def model(self) -> nn.Module:
        """The backend's model."""
        return self.backend.model

    def step(self, *, see_batch: Callable[[TokenBatch], None]) -> StepRecord:
        """Trains one step.  see_batch: called with each micro-batch before its forward pass.

        Gradients stay until the next step begins. Raises IndexError on the CPU for a token id outside the
        vocabulary.
        """
        step, config = self.next_step, self.config
        for fault in self.faults:
            fault.begin_step(step)
        lr = learning_rate(step, config.optim, steps=config.steps)
        for fault in self.faults:
            lr = fault.learning_rate(step, lr)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        losses = [self._train_pass(step, micro, see_batch) for micro in range(config.passes)]
        loss_scale = None if self.scaler is None else self.scaler.get_scale()
        grad_norm = self._update()
        for fault in self.faults:
            fault.end_step(step)
        self.next_step += 1
        every = config.eval_every
        return StepRecord(
            step=step,
            loss=sum(loss for loss, _ in losses) / config.passes,
            grad_norm=grad_norm,
            lr=lr,
            tokens=config.passes * config.batch * config.model.context,
            passes=config.passes,
            data_id=losses[0][1],
            loss_scale=loss_scale,
            skipped_steps=None if self.scaler is None else self.skipped_steps,
            eval_loss=self.evaluate() if every and self.next_step % every == 0 else None,
        )

    def _train_pass(
        self, step: int, micro: int, see_batch: Callable[[TokenBatch], None]
    ) -> tuple[float, int]:
        """Forward and backward of one micro-batch. Returns its loss and data id."""
        config = self.config
        batch = self._text.batch(
            step, seed=config.seed, micro=micro, size=config.batch, context=config.model.context
        )
        for fault in self.faults:
            batch = fault.batch(step, micro, batch)
        see_batch(batch)
        with self.backend.autocast():
            loss = self._loss(batch)
        scaled = loss / config.passes
        if self.scaler is not None:
            scaled = self.scaler.scale(scaled)
        torch.autograd.backward(scaled)  # outside the autocast, as Transformer Engine wants it
        for fault in self.faults:
            fault.end_pass(step)
        return loss.item(), batch.data_id

    def _loss(self, batch: TokenBatch) -> Tensor:
        device = self.backend.device
        logits = self.model(batch.ids.to(device))
        return functional.cross_entropy(
            logits.flatten(0, 1), batch.labels.to(device).flatten(), ignore_index=IGNORED_LABEL
        )

    def _update(self) -> float:
        """Clips and applies the gradients. Returns their norm before clipping, in true units."""
        scaler, optimizer = self.scaler, self.optimizer
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip).item()
        if scaler is None:
            optimizer.step()
            return norm
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        self.skipped_steps += (
            scaler.get_scale() < before
        )  # the scale falls when, and only when, a step was skipped
        return norm

    @torch.no_grad()
    def evaluate(self) -> float:
        """Loss on the fixed held-out batch, in the run's precision; leaves no trace in the run."""
        config = self.config
        batch = self._text.eval_batch(size=config.batch, context=config.model.context)
        with self.backend.evaluating(), self.backend.autocast():
            return self._loss(batch).item()

    def save(self, path: Path, *, run_id: str) -> None:
        """Writes a checkpoint of everything the next step depends on."""
        tensors = {f"model.{name}": tensor for name, tensor in self._weights().items()}
        tensors |= {f"optim.{n}": t for n, t in optimizer_tensors(self.model, self.optimizer).items()}
        tensors |= {f"scale.{n}": t for n, t in self.backend.scale_state().items()}
        tensors["rng.torch"] = torch.get_rng_state()
        scalars = {
            "skipped_steps": self.skipped_steps,
            "group_steps": [group.get("step") for group in self.optimizer.param_groups],
            "grad_scaler": None if self.scaler is None else self.scaler.state_dict(),
        }
        save_checkpoint(
            path,
            config=self.config,
            next_step=self.next_step,
            run_id=run_id,
            scalars=scalars,
            tensors=tensors,
        )

    def _weights(self) -> dict[str, Tensor]:
        """All parameters. Not `state_dict`: Transformer Engine adds a pickle to it (`_extra_state`)."""
        return dict(self.model.named_parameters())

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues where the checkpoint stopped.

        The scale state is restored if both runs keep one of the same shape; a run that changes recipe starts
        anew with it. Raises CheckpointError if something in it does not fit.
        """
        where = str(checkpoint.path)
        restore_in_place(self._weights(), checkpoint.part("model."), what=where)
        restore_optimizer(self.model, self.optimizer, checkpoint.part("optim."))
        if same_scale_recipe(self.config, checkpoint.config):
            if not self.backend.scale_state() and checkpoint.part("scale."):
                self.evaluate()  # Transformer Engine makes its scale state in the first forward pass
            restore_in_place(self.backend.scale_state(), checkpoint.part("scale."), what=where)
        try:
            self._restore_counters(checkpoint)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{where}: counters or random state cannot be restored ({error!r})"
            ) from error
        self.next_step = checkpoint.next_step

    def _restore_counters(self, checkpoint: Checkpoint) -> None:
        scalars = checkpoint.scalars
        for group, step in zip(self.optimizer.param_groups, scalars["group_steps"], strict=True):
            if step is not None:  # FusedAdam counts its steps in the group
                group["step"] = int(step)
        torch.set_rng_state(checkpoint.tensors["rng.torch"])
        self.skipped_steps = int(scalars["skipped_steps"])
        if self.scaler is not None and scalars["grad_scaler"] is not None:
            self.scaler.load_state_dict(scalars["grad_scaler"])


def same_scale_recipe(a: TrainConfig, b: TrainConfig) -> bool:
    """Whether the scale state of one run means the same in the other."""
    keys = ("precision", "recipe", "amax_history_len", "precision_map")
    return all(getattr(a.precision, key) == getattr(b.precision, key) for key in keys)
