"""Models that hold parameters which are only stored: FP8 weights, codes of a quantiser, masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.agent.same_weights import SETTINGS, Watcher, check
from tests.agent.test_same_weights import adam


class Stored(nn.Module):
    """A layer that is trained, and parameters that are only stored: FP8 weights, codes, a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        kinds = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.int8, torch.uint8)
        kept = [nn.Parameter(torch.rand(8, 8).to(kind), requires_grad=False) for kind in (*kinds, torch.bool)]
        self.kept = nn.ParameterList(kept)
        self.fp8 = nn.Linear(8, 8, bias=False)
        self.fp8.weight = nn.Parameter(torch.rand(8, 8).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Looks the FP8 weights up."""
        mixed: Tensor = self.a(x) @ self.kept[0].float() @ self.fp8.weight.float()
        return mixed


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("settings", SETTINGS)
def test_parameters_that_are_only_stored(
    settings: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are left out of norms, and nothing is said; those of the others are there. Ranks hash them too."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(ranks))

    def job(watch: Watcher) -> Any:
        torch.manual_seed(1)
        model = Stored()
        optimizer = adam(model)
        monitor = watch(model, optimizer)
        for step in range(6):
            loss = model(torch.randn(4, 8)).pow(2).mean()
            torch.autograd.backward(loss)
            if step % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss=loss)
        return model

    found = check(job, tmp_path, settings=settings, rows=6)
    assert found.said == []
    assert all(row["grad_norm"] > 0 for row in found.rows)
    assert {"param_norm", "update_norm"} <= found.rows[0].keys()
    assert ("param_hash" in found.rows[0]) == (ranks == 2)
