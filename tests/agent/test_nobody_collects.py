"""Where nobody collects any more what probes measure, they measure nothing and keep nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import backward, batch, loss_of, recording, small_model


def one_step(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    backward(loss_of(model, batch(step)))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def hooks_of(model: Any, optimizer: torch.optim.Optimizer) -> int:
    on_layers = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return on_layers + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def test_when_recording_is_switched_off_the_probes_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step of a closer look, too: no hook stays, and steps after it add to nothing."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    clip = torch.nn.utils.clip_grad._clip_grads_with_norm_
    with recording(tmp_path, model, optimizer, strict=False) as found:
        monitor = found.monitor
        probes: Any = monitor._probes
        assert hooks_of(model, optimizer) > 0
        removals: list[int] = []
        remove = probes.remove

        def leave() -> None:
            removals.append(1)
            remove()

        monitor._stepping.on_trip = leave

        def broken(*args: Any) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(monitor, "_end_step", broken)
        for step in range(30):
            one_step(model, optimizer, step)
            monitor.step()
        assert monitor._stepping.tripped
        assert removals == [1]
        assert hooks_of(model, optimizer) == 0
        assert torch.nn.utils.clip_grad._clip_grads_with_norm_ is clip
        kept = len(probes._stats._real._slots)
        for step in range(30):
            one_step(model, optimizer, step)
            monitor.step()
        assert len(probes._stats._real._slots) == kept


def test_the_monitor_has_its_probes_removed_then(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer, strict=False) as found:
        for _ in range(20):
            with found.monitor._stepping:
                raise RuntimeError("broken")
        assert hooks_of(model, optimizer) == 0


def test_a_forked_child_that_trains_keeps_nothing(tmp_path: Path) -> None:
    """Its steps end nowhere. Forked in a step of a closer look, with what its parent had measured."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        probes: Any = found.monitor._probes
        model(batch(0))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                sizes = []
                for step in range(30):
                    one_step(model, optimizer, step)
                    found.monitor.step(loss=1.0)
                    gathered = [
                        len(p.__dict__.get("_readout", probes._readout)._ready) for p in probes._probes
                    ]
                    sizes.append((len(probes._stats._real._slots), *gathered))
                code = 0 if len(set(sizes)) == 1 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        found.monitor.step()
    assert found.rows[0]["tensors"]["1/input"]["amax"] > 0
