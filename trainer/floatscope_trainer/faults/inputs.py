"""Faults in what the model is fed and how fast it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from floatscope_trainer.data import IGNORED_LABEL, TokenBatch
from floatscope_trainer.faults.fault import Fault, Scene

GPT2_VOCABULARY = 50_257  # the id that GPT-2 data preparation hands to models with a smaller vocabulary


class NonfiniteEmbedding(Fault):
    """One token's row of the embedding output is `value` in the first micro-batch of the step."""

    def __init__(self, scene: Scene, *, step: int, value: float) -> None:
        embedding = scene.model.get_submodule("tok_emb")
        self._embedding, self._step, self._value, self._scene = embedding, step, value, scene
        self._hook: torch.utils.hooks.RemovableHandle | None = None

    def begin_step(self, step: int) -> None:
        """Hooks the embedding for one call."""
        if step == self._step:
            self._hook = self._embedding.register_forward_hook(self._poke, prepend=True)

    def _poke(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        assert self._hook is not None
        self._hook.remove()
        poked = output.clone()
        rows = poked.view(-1, poked.shape[-1])
        rows[self._scene.draw(len(rows), step=self._step)] = self._value
        return poked


class IdOutOfRange(Fault):
    """One id of the step's first micro-batch is outside the vocabulary: `id`, or the vocabulary's size if
    that is larger.
    """

    def __init__(self, scene: Scene, *, step: int, token_id: float) -> None:
        self._scene, self._step = scene, step
        self._id = max(int(token_id), scene.vocab_size)

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        """Replaces one id; labels stay."""
        if step != self._step or micro != 0:
            return batch
        ids = batch.ids.clone()
        ids.view(-1)[self._scene.draw(ids.numel(), step=step)] = self._id
        return replace(batch, ids=ids)


class LabelsIgnored(Fault):
    """Every label of the step is the one that the loss leaves out."""

    def __init__(self, scene: Scene, *, step: int) -> None:
        self._step = step

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        """Replaces all labels; ids stay."""
        if step != self._step:
            return batch
        return replace(batch, labels=torch.full_like(batch.labels, IGNORED_LABEL))


class BadBatch(Fault):
    """Random characters for some steps, in a row."""

    def __init__(self, scene: Scene, *, step: int, steps: float) -> None:
        self._scene, self._first, self._steps = scene, step, steps

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        """Replaces ids and labels, which still follow each other; `data_id` stays: the loader believes in the
        batch.
        """
        if not self._first <= step < self._first + self._steps:
            return batch
        generator = torch.Generator().manual_seed(self._scene.draw(2**31, step=step) + micro)
        rows, time = batch.ids.shape
        noise = torch.randint(self._scene.vocab_size, (rows, time + 1), generator=generator)
        return replace(batch, ids=noise[:, :-1].contiguous(), labels=noise[:, 1:].contiguous())


class LearningRateTimes(Fault):
    """The learning rate is `factor` times the schedule's from the step on."""

    def __init__(self, scene: Scene, *, step: int, factor: float) -> None:
        self._first, self._factor = step, factor

    def learning_rate(self, step: int, lr: float) -> float:
        """Multiplies."""
        return lr * self._factor if step >= self._first else lr


NAN, INF = math.nan, math.inf
