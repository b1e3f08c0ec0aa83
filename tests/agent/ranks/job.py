"""What each rank of the tests' job runs: small trainings under DDP and FSDP2, watched and not.

``python -m tests.agent.ranks.job FOLDER``, with a launcher's environment. Every scenario is trained twice
from the same start, with the agent and without; FOLDER/rank<R>.json says whether the weights are equal bit
for bit.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import floatscope

RANKS = 4
ROWS = 5  # of each rank's batch
MAX_NORM = 0.05  # below the gradients' norm, so that every step is clipped


@dataclass(frozen=True)
class Scenario:
    """wrapper: how the model is spread over the ranks.  copies: ranks that see the same batch, side by side.
    steps: how many.  bent: from this step on one weight of rank ``odd`` is another.  spoilt: on this step
    the batch of ``odd`` holds a NaN."""

    name: str
    wrapper: str
    steps: int
    copies: int = 1
    odd: int = -1
    bent: int = -1
    spoilt: int = -1


SCENARIOS = (
    Scenario("ddp", "ddp", steps=4),
    Scenario("fsdp2", "fsdp2", steps=4),
    Scenario("hsdp", "hsdp", steps=3),
    Scenario("tp", "tp", steps=3, copies=2),
    Scenario("fsdp1", "fsdp1", steps=3),
    Scenario("bent", "ddp", steps=14, odd=3, bent=6),
    Scenario("spoilt", "ddp", steps=10, odd=2, spoilt=6),
)


def model() -> nn.Sequential:
    """The last layer has 6 rows, which 4 ranks cannot share evenly: the last has none."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 6))


def batch(step: int, rank: int) -> Tensor:
    """A rank's inputs, (ROWS, 16)."""
    return torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(net: nn.Module, inputs: Tensor) -> Tensor:
    """The mean over the batch."""
    out: Tensor = net(inputs).square().mean()
    return out


def wrapped(wrapper: str) -> tuple[nn.Module, Any]:
    """The model as its wrapper trains it, and as it is inside."""
    inner: Any = model()
    if wrapper == "ddp":
        return DistributedDataParallel(inner), inner
    if wrapper == "fsdp1":
        return FullyShardedDataParallel(inner, use_orig_params=True, device_id=torch.device("cpu")), inner
    mesh = None
    if wrapper == "hsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    elif wrapper == "tp":
        whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(inner, whole["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = whole["dp"]
    for layer in (inner[0], inner[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(inner, mesh=mesh)
    return inner, inner


def weights(net: nn.Module) -> Tensor:
    """This rank's part of all weights, flat, as bit patterns."""
    parts = [p.to_local() if hasattr(p, "to_local") else p for p in net.parameters()]
    return torch.cat([part.detach().reshape(-1) for part in parts]).view(torch.int32)


def train(scenario: Scenario, rank: int, spool: Path | None) -> Tensor:
    """Trains and returns the weights.  spool: where the agent writes; None: without it."""
    net, inner = wrapped(scenario.wrapper)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    monitor = None
    if spool is not None:
        monitor = floatscope.watch(
            net, optimizer, run=scenario.name, spool_dir=spool, mode="local", stats_every=1, strict=True,
            gpu=False, diagnose=False, recorder_steps=0, capture=False,
        )  # fmt: skip
    for step in range(scenario.steps):
        inputs = batch(step, rank // scenario.copies)
        if scenario.spoilt == step and scenario.odd == rank:
            inputs[0, 0] = math.nan
        if scenario.bent == step and scenario.odd == rank:
            with torch.no_grad():
                inner[0].weight[3, 3] += 0.5
        if monitor is not None:
            monitor.batch(inputs)
        loss = loss_of(net, inputs)
        torch.autograd.backward(loss)
        if isinstance(net, FullyShardedDataParallel):
            net.clip_grad_norm_(MAX_NORM)
        else:
            torch.nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        if monitor is not None:
            monitor.step(loss=loss)
        optimizer.zero_grad()
    if monitor is not None:
        monitor.finish()
    return weights(net)


def main(folder: Path) -> None:
    """All scenarios, one after the other."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    same = {
        scenario.name: torch.equal(train(scenario, rank, folder / scenario.name), train(scenario, rank, None))
        for scenario in SCENARIOS
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(same), encoding="utf-8")
    distributed.destroy_process_group()


def references(steps: int, batches: int = RANKS) -> Iterator[dict[str, float]]:
    """Norms of the gradients by weight, before clipping, of one process that trains on all batches."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for step in range(steps):
        loss = torch.stack([loss_of(net, batch(step, rank)) for rank in range(batches)]).mean()
        torch.autograd.backward(loss)
        yield {name: _norm(p.grad) for name, p in net.named_parameters()}
        torch.nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def _norm(grad: Any) -> float:
    return float(grad.double().norm())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
