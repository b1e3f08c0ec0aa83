"""Checkpoints: one safetensors file with every tensor of a run and its settings as JSON. Nothing in it is
ever executed.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from floatscope_trainer.config import TrainConfig

SCHEMA = "floatscope.checkpoint/1"
_META_KEY = "floatscope"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what is wrong."""


@dataclass(frozen=True)
class Checkpoint:
    """A read checkpoint.

    next_step: the first step not yet trained.  tensors: by `model.`, `optim.`, `scale.` and `rng.` names.
    scalars: loss scale and counters.  run_id: the run that wrote it.
    """

    path: Path
    config: TrainConfig
    next_step: int
    run_id: str
    scalars: dict[str, Any]
    tensors: dict[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under a prefix, without it."""
        return {name[len(prefix) :]: t for name, t in self.tensors.items() if name.startswith(prefix)}


def save_checkpoint(
    path: Path,
    *,
    config: TrainConfig,
    next_step: int,
    run_id: str,
    scalars: dict[str, Any],
    tensors: dict[str, Tensor],
) -> None:
    """Writes the file beside its place, then moves it there: a crash leaves the old one or the new one."""
    described = {
        "schema": SCHEMA,
        "config": config.to_json(),
        "next_step": next_step,
        "run_id": run_id,
        "scalars": scalars,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(contiguous, partial, metadata={_META_KEY: json.dumps(described)})
    os.replace(partial, path)


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint. Raises CheckpointError if the file is missing, damaged or something else."""
    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads((file.metadata() or {}).get(_META_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: no such checkpoint; give the path of a .safetensors file of --checkpoint-every"
        ) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from error
    if not isinstance(described, dict) or described.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path}: a safetensors file, but not a checkpoint of floatscope train ({SCHEMA})"
        )
    try:
        return Checkpoint(
            path=path,
            config=TrainConfig.from_json(described["config"]),
            next_step=int(described["next_step"]),
            run_id=str(described["run_id"]),
            scalars=dict(described["scalars"]),
            tensors=tensors,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the settings in it cannot be read ({error!r}); it was written by another version"
        ) from error


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by `<parameter>/<state>`; a count of steps becomes a tensor of shape ()."""
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                found[f"{name}/{key}"] = torch.as_tensor(value)
    return found


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Puts `optimizer_tensors` back. Raises CheckpointError naming a tensor that fits no parameter."""
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        if owner not in parameters:
            raise CheckpointError(f"the optimizer state {name!r} belongs to no parameter of this model")
        parameter = parameters[owner]
        device = "cpu" if tensor.dim() == 0 else parameter.device  # step counts live on the CPU
        optimizer.state[parameter][key] = tensor.to(device).clone()


def restore_in_place(live: dict[str, Tensor], saved: dict[str, Tensor], *, what: str) -> None:
    """Copies saved tensors into live ones. Raises CheckpointError on a name or shape that does not match."""
    if live.keys() != saved.keys():
        odd = sorted(live.keys() ^ saved.keys())[0]
        raise CheckpointError(
            f"{what}: {odd!r} is only in {'this model' if odd in live else 'the checkpoint'}"
        )
    with torch.no_grad():
        for name, tensor in live.items():
            if tensor.shape != saved[name].shape:
                raise CheckpointError(
                    f"{what}: {name!r} has shape {tuple(saved[name].shape)} in the checkpoint, "
                    f"{tuple(tensor.shape)} here"
                )
            tensor.copy_(saved[name])
