"""Statistics at the quantizer, where a layer tells what it casts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.agent.training import Recording, backward, recording


class Manager:
    """Calls inspectors as the bundled trainer's emulation does."""

    inspectors: list[Callable[..., None]] = []  # noqa: RUF012 - shared by the class, as in the original

    @classmethod
    def register_inspector(cls, inspect: Callable[..., None]) -> Any:
        cls.inspectors.append(inspect)

        class Handle:
            def remove(self) -> None:
                cls.inspectors.remove(inspect)

        return Handle()


class Quantized(nn.Module):
    """Casts its input with a fixed scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.fp8_global_state = Manager
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.scale = torch.tensor(scale)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            used = (x * self.scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() / self.scale
            for inspect in Manager.inspectors:
                inspect(self, "input", x, used, self.scale, "e4m3")
                inspect(self, "weight", self.weight, self.weight, None, "bf16")
        out: Tensor = x @ self.weight
        return out


def stats(found: Recording, row: int, tensor: str) -> dict[str, Any]:
    return dict(found.rows[row]["tensors"][tensor])


def test_the_cast_is_measured_with_its_scale(tmp_path: Path) -> None:
    model = nn.Sequential(Quantized(100.0), Quantized(1.0))
    x = torch.tensor([[1.0, 2.0, 8.0, 1e-9]])
    with recording(tmp_path, model) as found:
        model(x)
        found.monitor.step()
    assert not Manager.inspectors, "nothing is left behind"
    first = stats(found, 0, "0/input")
    assert (first["amax"], first["scale"]) == (8.0, 100.0)
    assert (first["overflow_pct"], first["underflow_pct"]) == (25.0, 25.0)
    assert 0 < first["sqnr_db"] < 10
    assert "scale" not in stats(found, 0, "0/weight")
    assert found.run["tensors"]["0/input"] == {"format": "e4m3", "call_order": 0, "row_length": 4}
    assert found.run["tensors"]["1/weight"]["format"] == "bf16"


@pytest.mark.parametrize("every", [1, 3])
def test_only_sampled_steps_cost_anything(tmp_path: Path, every: int) -> None:
    model = nn.Sequential(Quantized(1.0))
    with recording(tmp_path, model, stats_every=every) as found:
        for _ in range(4):
            backward(model(torch.ones(1, 4)).sum())
            found.monitor.step()
    measured = [row["step"] for row in found.rows if "tensors" in row]
    assert measured == [step for step in range(4) if step % every == 0]


def test_a_module_of_another_model_is_not_ours(tmp_path: Path) -> None:
    mine, other = nn.Sequential(Quantized(1.0)), nn.Sequential(Quantized(1.0))
    with recording(tmp_path, mine) as found:
        other(torch.ones(1, 4))
        found.monitor.step()
    assert "tensors" not in found.rows[0]


def test_a_tensor_that_cannot_be_measured_does_not_reach_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(Quantized(1.0))
    with recording(tmp_path, model, strict=False) as found:
        for _ in range(25):
            for inspect in Manager.inspectors:
                inspect(model[0], "input", torch.ones(2), torch.ones(3), torch.ones(()), "e4m3")
            found.monitor.step(loss=1.0)
    assert len(found.rows) == 25
    assert sum("tensor statistics failed" in r.getMessage() for r in caplog.records) == 2
