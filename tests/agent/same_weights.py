"""Trains a job without the agent and with it, and compares the two: weights, random states, what is left."""

from __future__ import annotations

import gc
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import floatscope
from tests.agent.conftest import read_log

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {"stats_every": 1, "check_format": "e4m3", "flush_every_s": 0.0, "clean_after": 0},
}
"""What the agent is asked for: what it does by itself; all there is, at every step."""

_HOOKS = "hook"
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Silent:
    """A monitor that is not there."""

    def batch(self, batch: Any, **more: Any) -> None:
        """Nothing."""

    def step(self, step: Any = None, **scalars: Any) -> None:
        """Nothing."""

    def log(self, values: Any, step: Any = None) -> None:
        """Nothing."""

    def finish(self, *args: Any) -> None:
        """Nothing."""

    def capture(self, *args: Any, **more: Any) -> None:
        """Nothing."""


@dataclass
class Watcher:
    """What a job calls to be watched, or not.  models: those it has shown, with what hung on them before."""

    settings: dict[str, Any] | None
    folder: Path
    monitors: list[Any] = field(default_factory=list)
    models: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, model: Any = None, optimizer: Any = None, **more: Any) -> Any:
        self.models.append(((model, optimizer), traces(model, optimizer)))
        if self.settings is None:
            self.monitors.append(Silent())
        else:
            log = self.folder / f"run{len(self.monitors)}.jsonl"
            options: dict[str, Any] = {"gpu": False, "mode": "local", "log_path": log, "close_timeout_s": 60}
            options |= {**self.settings, **more}
            self.monitors.append(floatscope.watch(model, optimizer, run="same", **options))
        return self.monitors[-1]


Job = Callable[[Watcher], Any]
"""Trains something; returns tensors, or anything that holds them, whose bits are to be the same."""


@dataclass(frozen=True)
class Outcome:
    """bits: of what a job returned, and the random states after it.  left: what is there that was not before,
    some of it the job's own.  said: the warnings.  rows, run: what the log of the first monitor holds."""

    bits: list[object]
    left: dict[str, Any]
    said: list[str]
    rows: list[dict[str, Any]]
    run: dict[str, Any]


def traces(model: Any, optimizer: Any) -> dict[str, Any]:
    """Everything of a model, an optimizer, torch and the process that an agent might have changed."""
    found: dict[str, Any] = {
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "threads": sorted(t.name for t in threading.enumerate() if t.is_alive() and "floatscope" in t.name),
    }
    for place in (torch.nn.utils, torch.nn.utils.clip_grad, torch.nn.modules.module, torch.amp.GradScaler):
        for name, value in vars(place).items():
            if callable(value) or _HOOKS in name:
                found[f"{place.__name__}.{name}"] = dict(value) if isinstance(value, dict) else value
    for at, one in enumerate([*_as_list(model), *_as_list(optimizer)]):
        modules = dict(one.named_modules()) if isinstance(one, nn.Module) else {"": one}
        for path, module in modules.items():
            for name, value in getattr(module, "__dict__", {}).items():
                key = f"{at}.{path}.{name}"
                found[key] = [*value.values()] if isinstance(value, dict) and _HOOKS in name else "there"
        for path, parameter in one.named_parameters() if isinstance(one, nn.Module) else ():
            for name in _PARAMETER_HOOKS:
                found[f"{at}.{path}.{name}"] = dict(getattr(parameter, name, None) or {})
    return found


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [] if given is None else [given]


def bits_of(value: Any) -> list[object]:
    """Shape, dtype and memory of every tensor in lists, dicts and modules; other values as they are."""
    if isinstance(value, nn.Module):
        return bits_of([*value.parameters(), *value.buffers()])
    if isinstance(value, torch.Tensor):
        if value.device.type == "meta":
            return [tuple(value.shape)]
        if value.is_sparse:
            return bits_of(value.coalesce().to_dense())
        if value.is_quantized:
            return bits_of(value.int_repr())
        plain = value.detach().resolve_conj().contiguous().reshape(-1)
        return [str(value.dtype), tuple(value.shape), plain.view(torch.uint8).numpy().tobytes()]
    if isinstance(value, dict):
        return [part for item in value.values() for part in bits_of(item)]
    if isinstance(value, list | tuple):
        return [part for item in value for part in bits_of(item)]
    return [value]


def outcome_of(job: Job, settings: dict[str, Any] | None, folder: Path) -> Outcome:
    """Runs a job from fixed random states."""
    folder.mkdir()
    heard = _Heard()
    logger = logging.getLogger("floatscope")
    logger.addHandler(heard)
    try:
        torch.manual_seed(7)
        random.seed(7)
        watch = Watcher(settings, folder)
        bits = bits_of(job(watch))
        bits += [*bits_of(torch.get_rng_state()), random.getstate()]
        for monitor in watch.monitors:
            monitor.finish()
    finally:
        logger.removeHandler(heard)
    left: dict[str, Any] = {}
    for (model, optimizer), before in watch.models[:1]:
        after = traces(model, optimizer)
        for key, value in after.items():
            if isinstance(value, list):
                value = [one for one in value if one not in before.get(key, [])]
            if value and value != before.get(key):
                left[key] = value
    run, rows = read_log(folder / "run0.jsonl") if settings is not None else ({}, [])
    gc.collect()
    return Outcome(bits, left, heard.lines, rows, run)


def _sizes(left: dict[str, Any]) -> dict[str, int]:
    return {key: len(value) if isinstance(value, list) else 1 for key, value in left.items()}


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.lines.append(record.getMessage())


def check(
    job: Job, tmp_path: Path, *, settings: str, fails: Sequence[str] = (), rows: int | None = None
) -> Outcome:
    """Asserts that the agent changes nothing, leaves nothing behind and has not failed.

    fails: areas of the agent that may fail, with a message.  rows: how many steps the log has to hold.
    """
    alone = outcome_of(job, None, tmp_path / "alone")
    watched = outcome_of(job, SETTINGS[settings], tmp_path / "watched")
    assert watched.bits == alone.bits, "the agent has changed the training"
    assert _sizes(watched.left) == _sizes(alone.left), f"left behind: {watched.left}"
    failed = [line for line in watched.said if " failed (" in line and not any(f in line for f in fails)]
    assert not failed, failed
    if rows is not None:
        assert len(watched.rows) == rows
    return watched


def parametrise(*jobs: Job) -> Callable[[Any], Any]:
    """Each job with each of ``SETTINGS``; the test takes ``job`` and ``settings``."""
    made = [pytest.param(job, name, id=f"{job.__name__}-{name}") for job in jobs for name in SETTINGS]
    return pytest.mark.parametrize(("job", "settings"), made)
