"""The agent and other tools that watch training, behind one small interface, each used as its manual says."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import floatscope

OTHERS = {"trainscope": "1.8.1", "torchmortem": "0.1.1", "wandb": "0.31.0"}


class Tool:
    """Watches nothing; the others replace what they need."""

    def attach(self, model: Any, optimizer: Any) -> None:
        """Before the first step."""

    def begin(self, batch: Any) -> None:
        """Before the forward pass."""

    def before_update(self, loss: float) -> None:
        """Between the backward pass and the optimizer's step."""

    def end(self, scalars: Mapping[str, float]) -> None:
        """After the optimizer's step."""

    def detach(self) -> None:
        """After the last step."""


class _Agent(Tool):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings

    def attach(self, model: Any, optimizer: Any) -> None:
        """Watches."""
        self._monitor: Any = floatscope.watch(
            model, optimizer, run="step time", gpu=False, close_timeout_s=0.1, **self._settings
        )

    def begin(self, batch: Any) -> None:
        """Shows the batch."""
        self._monitor.batch(batch)

    def end(self, scalars: Mapping[str, float]) -> None:
        """Ends the step."""
        self._monitor.step(**scalars)

    def detach(self) -> None:
        """Ends the run. What local diagnosis says to the terminal is not wanted here."""
        with contextlib.redirect_stderr(io.StringIO()):
            self._monitor.finish()


def agent(**settings: Any) -> Tool:
    """The agent with everything it does by default, and these settings of ``floatscope.watch``."""
    return _Agent(settings)


class _TrainScope(Tool):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0

    def attach(self, model: Any, optimizer: Any) -> None:
        """Hooks all leaf layers."""
        package = importlib.import_module("trainscope")
        self._runs += 1
        config = package.TrainScopeConfig(run_dir=str(self._folder), run_name=f"run{self._runs}")
        self._scope: Any = package.TrainScope(model, optimizer, config).attach()

    def before_update(self, loss: float) -> None:
        """Where its manual has it: gradients are as the loss left them."""
        self._scope.step(loss)

    def detach(self) -> None:
        """Takes the hooks off."""
        self._scope.detach()


class _Torchmortem(Tool):
    def attach(self, model: Any, optimizer: Any) -> None:
        """Attaches all collectors with the default sampling ("balanced")."""
        package = importlib.import_module("torchmortem")
        self._autopsy: Any = package.Autopsy(model, optimizer=optimizer)
        self._autopsy.attach()

    def end(self, scalars: Mapping[str, float]) -> None:
        """Ends the step."""
        self._autopsy.step(loss=scalars["loss"])

    def detach(self) -> None:
        """Takes the hooks off, without the report that it makes when a run is over."""
        for collector in self._autopsy._collectors:
            collector.detach()
        self._autopsy._attached = False


class _Wandb(Tool):
    def __init__(self, log_freq: int, folder: Path) -> None:
        self._log_freq = log_freq
        self._folder = folder

    def attach(self, model: Any, optimizer: Any) -> None:
        """Histograms of gradients and parameters, every so many batches."""
        self._wandb: Any = importlib.import_module("wandb")
        self._model = model
        self._folder.mkdir(parents=True, exist_ok=True)
        # a run for each block: trainscope would send its own numbers to one that is open
        self._wandb.init(mode="offline", dir=str(self._folder), project="step-time")
        self._wandb.watch(model, log="all", log_freq=self._log_freq)

    def end(self, scalars: Mapping[str, float]) -> None:
        """Logs the step."""
        self._wandb.log(dict(scalars))

    def detach(self) -> None:
        """Takes the hooks off."""
        self._wandb.unwatch(self._model)
        self._wandb.finish()


@contextmanager
def _trainscope(folder: Path) -> Iterator[Tool]:
    logging.getLogger("trainscope").setLevel(logging.ERROR)
    yield _TrainScope(folder / "trainscope")


@contextmanager
def _torchmortem(folder: Path) -> Iterator[Tool]:
    yield _Torchmortem()


def _wandb(log_freq: int) -> Callable[[Path], AbstractContextManager[Tool]]:
    @contextmanager
    def make(folder: Path) -> Iterator[Tool]:
        os.environ.setdefault("WANDB_SILENT", "true")
        yield _Wandb(log_freq, folder / "wandb")

    return make


def other_tools() -> dict[str, Callable[[Path], AbstractContextManager[Tool]]]:
    """Those that are installed, by the name of their row; says which are not."""
    found: dict[str, Callable[[Path], AbstractContextManager[Tool]]] = {}
    for package, version in OTHERS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed and left out: pip install {package}=={version}")
        elif package == "trainscope":
            found["trainscope"] = _trainscope
        elif package == "torchmortem":
            found["torchmortem"] = _torchmortem
        else:
            found["wandb.watch(log='all'), not sampled"] = _wandb(10**6)
            found["wandb.watch(log='all'), sampled"] = _wandb(1)
    return found
