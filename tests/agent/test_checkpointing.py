"""Each pass of a step is measured once: recomputation, micro-batches, evaluation, and odd modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from floatscope.look import Look
from tests.agent.training import backward, batch, loss_of, recording, small_model, train


class Recomputed(nn.Module):
    """Recomputes its hidden layers in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.hidden = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 11)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        x = checkpoint(self.hidden, self.embed(ids), use_reentrant=self.reentrant)
        out: Tensor = self.head(x)
        return out


def inputs_of(model: Recomputed, ids: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = model.embed(ids)
    return out


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("forwards_first", [True, False])
def test_every_micro_batch_counts_once(tmp_path: Path, reentrant: bool, forwards_first: bool) -> None:
    """Also where all forward passes come before all backward passes, as in a pipeline."""
    model = Recomputed(reentrant=reentrant)
    parts = [batch(k) for k in range(3)]
    wanted = torch.cat([inputs_of(model, ids) for ids in parts])
    with recording(tmp_path, model) as found:
        if forwards_first:
            for loss in [loss_of(model, ids) for ids in parts]:
                backward(loss)
        else:
            for ids in parts:
                backward(loss_of(model, ids))
        found.monitor.step()
    stats = found.rows[0]["tensors"]["hidden.0/input"]
    assert found.rows[0]["passes"] == 3
    assert stats["amax"] == float(wanted.abs().max())
    assert stats["rms"] == pytest.approx(float(wanted.square().mean().sqrt()), rel=1e-5)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_an_evaluation_between_steps_leaves_no_trace(tmp_path: Path, reentrant: bool) -> None:
    """A pass without gradients, of the same layers on other data, changes no statistic of the next step."""
    found_with = []
    for evaluates in (True, False):
        model = Recomputed(reentrant=reentrant)
        path = tmp_path / str(evaluates)
        path.mkdir()
        with recording(path, model) as found:
            for step in range(3):
                backward(loss_of(model, batch(step)))
                found.monitor.step()
                if evaluates:
                    with torch.no_grad():
                        model(batch(100 + step) * 0)
                    with torch.inference_mode():
                        model(batch(200 + step))
        found_with.append([row["tensors"] for row in found.rows])
    assert found_with[0] == found_with[1]


class Picture(nn.Module):
    """Convolutions, attention, a layer of its own kind and a norm that looks like a weight matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.LayerNorm((4, 4, 4))
        self.conv1 = nn.Conv1d(4, 8, 1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.own = OwnLinear()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        x = self.conv1(x.flatten(2)).transpose(1, 2)
        x, _ = self.attention(x, x, x)
        out: Tensor = self.own(x)[0]
        return out


class OwnLinear(nn.Module):
    """A layer that is no torch.nn.Linear and gives its bias beside its output, as Megatron's do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return x @ self.weight, None


def test_every_layer_with_a_weight_matrix_is_measured(tmp_path: Path) -> None:
    """Convolutions, attention's projections, layers of the user's own; not norms."""
    model = Picture()
    with recording(tmp_path, model) as found:
        backward(model(torch.ones(2, 3, 4, 4)).sum())
        found.monitor.step()
    three = ("input", "weight", "grad_output")
    assert set(found.tensors(0, "amax")) == {
        *(f"{layer}/{role}" for layer in ("conv", "conv1", "own") for role in three),
        "attention.in_proj/input", "attention.in_proj/weight",
        "attention.out_proj/weight", "attention.out_proj/grad_output",
    }  # fmt: skip


def test_a_parametrised_weight_is_not_computed_once_more(tmp_path: Path) -> None:
    """Reading the weight of spectral normalisation changes its state: a watched run must not."""

    def model_of() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(11, 8), spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 11))

    weights = []
    for watched in (False, True):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if watched:
            with recording(tmp_path, model, optimizer) as found:
                weights.append(train(model, optimizer, found.monitor, steps=4))
            assert "1/input" in found.tensors(0, "amax")
        else:
            weights.append(train(model, optimizer, None, steps=4))
    assert torch.equal(*weights)


def test_suspects_are_measured_in_full_on_every_step_asked_for(tmp_path: Path) -> None:
    """With histograms; layers that nobody suspects are looked at as seldom as before."""
    model = small_model()
    with recording(tmp_path, model, stats_every=1000) as found:
        for step in range(4):
            if step == 2:
                found.monitor._probes.begin(Look(suspects=frozenset({"4"})))
            backward(loss_of(model, batch(step)))
            found.monitor.step()
    assert [sorted(row.get("tensors", {})) for row in found.rows[1:]] == [
        [], ["4/grad_output", "4/input", "4/weight"], [],
    ]  # fmt: skip
    counts = found.rows[2]["tensors"]["4/weight"]["hist_log2"]
    assert sum(counts) == model[4].weight.numel()
    assert len(counts) == 64


def test_histograms_of_all_tensors_come_at_a_lower_cadence(tmp_path: Path) -> None:
    """Every tenth sampled step has them; passes of a step add up."""
    model = small_model()
    with recording(tmp_path, model, stats_every=2) as found:
        for step in range(24):
            for micro in range(2):
                backward(loss_of(model, batch(step + micro)))
            found.monitor.step()
    have = [
        row["step"] for row in found.rows if any("hist_log2" in t for t in row.get("tensors", {}).values())
    ]
    assert have == [0, 20]
    stats = found.rows[0]["tensors"]
    assert all("hist_log2" in tensor for tensor in stats.values())
    assert sum(stats["1/input"]["hist_log2"]) == 2 * batch(0).numel() * 8
    assert sum(stats["1/weight"]["hist_log2"]) == model[1].weight.numel()


def test_rows_of_a_very_large_tensor_are_sampled_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensor table says that only every so many-th row was looked at; smaller tensors are whole."""
    monkeypatch.setattr("floatscope.probes.tensor_stats.MOST_ELEMENTS", 100)
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    x = torch.arange(50 * 8, dtype=torch.float32).reshape(50, 8)
    with recording(tmp_path, model) as found:
        backward(model(x).sum())
        found.monitor.step()
    assert found.run["tensors"]["0/input"]["rows_every"] == 4
    assert "rows_every" not in found.run["tensors"]["0/weight"]
    assert found.tensors(0, "amax")["0/input"] == float(x[::4].max())
    assert found.tensors(0, "rms")["0/input"] == pytest.approx(float(x[::4].square().mean().sqrt()), rel=1e-5)
