"""Faults and hardships in the data that the trainer has no option for, made through its public ``Fault``."""

from __future__ import annotations

import argparse
import configparser
import decimal
import inspect
import statistics as statistics_module
import zipfile
from dataclasses import replace
from functools import lru_cache
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope_trainer.data import TokenBatch, bundled_text
from floatscope_trainer.faults.fault import Fault, Scene

OTHER_DOMAIN: tuple[ModuleType, ...] = (argparse, configparser, decimal, statistics_module, zipfile)
"""Source code of the standard library: the same characters as the help texts, otherwise distributed."""


class LabelNoise(Fault):
    """A share of the labels is random from the step on."""

    def __init__(self, scene: Scene, *, step: int, share: float) -> None:
        self._scene, self._first, self._share = scene, step, share

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        if step < self._first:
            return batch
        draw = np.random.default_rng([self._scene.seed, step, micro, 11])
        wrong = torch.from_numpy(draw.random(tuple(batch.labels.shape)) < self._share)
        noise = torch.from_numpy(draw.integers(self._scene.vocab_size, size=tuple(batch.labels.shape)))
        return replace(batch, labels=torch.where(wrong, noise, batch.labels))


class Permutation(Fault):
    """A share of the vocabulary changes its meaning from the step on: ids and labels are permuted alike."""

    def __init__(self, scene: Scene, *, step: int, share: float) -> None:
        self._first = step
        draw = np.random.default_rng([scene.seed, step, 12])
        moved = np.flatnonzero(draw.random(scene.vocab_size) < share)
        table = np.arange(scene.vocab_size)
        table[moved] = draw.permutation(moved)
        self._table = torch.from_numpy(table)

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        if step < self._first:
            return batch
        return replace(batch, ids=self._table[batch.ids], labels=self._table[batch.labels])


class OtherDomain(Fault):
    """Sequences of another text, in the same vocabulary.

    share: of a batch's sequences, when fully there.  ramp: steps over which it grows from 0.  steps: how
    long it lasts, None for ever.
    """

    def __init__(
        self, scene: Scene, *, step: int, share: float, ramp: int = 0, steps: int | None = None
    ) -> None:
        self._scene, self._first, self._share, self._ramp, self._steps = scene, step, share, ramp, steps
        self._tokens = other_tokens()

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        age = step - self._first
        if age < 0 or (self._steps is not None and age >= self._steps):
            return batch
        share = self._share * min(1.0, (age + 1) / (self._ramp + 1))
        draw = np.random.default_rng([self._scene.seed, step, micro, 13])
        rows, time = batch.ids.shape
        exact = share * rows
        count = int(exact) + int(draw.random() < exact - int(exact))
        starts = draw.integers(0, len(self._tokens) - time - 1, size=count)
        window = torch.from_numpy(self._tokens[starts[:, None] + np.arange(time + 1)])
        ids, labels = batch.ids.clone(), batch.labels.clone()
        ids[:count], labels[:count] = window[:, :-1], window[:, 1:]
        return replace(batch, ids=ids, labels=labels)


class RepeatedBatches(Fault):
    """The same two batches for ever from the step on."""

    def __init__(self, scene: Scene, *, step: int) -> None:
        self._first = step
        self._kept: list[TokenBatch] = []

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        if step < self._first:
            return batch
        if len(self._kept) < 2:
            self._kept.append(batch)
        return self._kept[(step - self._first) % 2]


@lru_cache(maxsize=1)
def other_tokens() -> NDArray[np.int64]:
    """The other domain's text as ids of the bundled text's vocabulary; characters outside it are left out."""
    known = np.unique(np.frombuffer(bundled_text().encode("utf-32-le"), np.uint32))
    source = "\n".join(inspect.getsource(module) for module in OTHER_DOMAIN)
    points = np.frombuffer(source.encode("utf-32-le"), np.uint32)
    ids = np.searchsorted(known, points).clip(max=len(known) - 1)
    kept: NDArray[np.int64] = ids[known[ids] == points].astype(np.int64)
    return kept
