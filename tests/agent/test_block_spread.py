"""How much blocks differ: by definition, over several passes, and as statistics of a watched run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import floatscope
from floatscope.probes.block_spread import MEAN_STATS, SD_STATS, SIZES, block_spread, spread_block


def by_definition(x: Tensor, size: int | None) -> tuple[float, float] | None:
    """sd and mean of log2 amax, block after block."""
    logs = []
    for row in x.double().reshape(-1, x.shape[-1]).tolist():
        width = size or len(row)
        for at in range(0, len(row) - width + 1, width):
            amax = max(abs(v) if not math.isnan(v) else math.nan for v in row[at : at + width])
            if any(not math.isfinite(v) for v in row[at : at + width]) or amax == 0:
                continue
            logs.append(math.log2(amax))
    return (float(np.std(logs)), float(np.mean(logs))) if len(logs) > 1 else None


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 300),
    st.integers(0, 2**31),
    st.sampled_from((torch.float32, torch.bfloat16, torch.float16)),
)
def test_each_statistic_is_what_its_definition_says(
    rows: int, columns: int, seed: int, dtype: torch.dtype
) -> None:
    """Any shape, also with zeros, NaN and infinity; a statistic of fewer than two blocks is missing."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=made) * torch.exp(2 * torch.randn(rows, 1, generator=made))
    x[torch.rand(rows, columns, generator=made) < 0.3] = 0.0
    if seed % 3 == 0:
        x[0, seed % columns] = math.inf if seed % 2 else math.nan
    x = x.to(dtype)
    block = spread_block([(0, block_spread(x).double().numpy())], ("a/input",))
    for stat, mean, size in zip(SD_STATS, MEAN_STATS, (*SIZES, None), strict=True):
        expected = by_definition(x, size)
        has = stat in block.stats and bool(block.present[stat][0])
        assert has == (expected is not None), (stat, expected)
        if expected is not None:
            assert block.stats[stat][0] == pytest.approx(expected[0], abs=2e-3)
            assert block.stats[mean][0] == pytest.approx(expected[1], abs=2e-3)


def test_passes_of_a_step_count_as_one_tensor() -> None:
    """Micro-batches in two halves give the number of the whole."""
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 65)[:, None]
    halves = [(3, block_spread(part).double().numpy()) for part in (x[:20], x[20:])]
    whole = [(3, block_spread(x).double().numpy())]
    names = ("a", "b", "c", "d/input")
    one, two = spread_block(whole, names), spread_block(halves, names)
    assert two.names == ("d/input",)
    for stat in (*SD_STATS, *MEAN_STATS):
        assert two.stats[stat][0] == pytest.approx(one.stats[stat][0], rel=1e-4)


def test_a_watched_run_logs_them_with_its_histograms(tmp_path: Path) -> None:
    """A plain torch model on the CPU: the steps with a histogram have the spreads, others have not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log = tmp_path / "run.jsonl"
    monitor = floatscope.watch(
        model, optimizer, run="spread", mode="local", log_path=log, gpu=False, stats_every=1
    )
    for step in range(3):
        loss = model(torch.randn(16, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(step, loss=loss.item())
    monitor.finish()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = {line["step"]: line["tensors"] for line in lines if "step" in line and "tensors" in line}
    table = next(line["run"]["tensors"] for line in lines if "run" in line)
    for name, size in (("0/input", 256), ("0/weight", 256), ("2/input", 64)):
        assert {s for s in (*SD_STATS, *MEAN_STATS) if size >= 128 or "128" not in s} <= set(steps[0][name])
        assert "hist_log2" in steps[0][name]
        assert not set(SD_STATS) & set(steps[1].get(name, {}))
        assert table[name]["row_length"] == size
