"""What a layer's values would lose in a format that nobody casts them to, and that no rule mistakes it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from floatscope.probes.would_be import cast_as
from floatscope.protocol.formats import FORMATS
from tests.agent.training import backward, batch, loss_of, recording, small_model, train

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def nearest(value: float, codes: tuple[float, ...]) -> float:
    """The nearest code, ties to the even place, as all these formats round."""
    size = abs(value)
    best = min(range(len(codes)), key=lambda i: (abs(codes[i] - size), i % 2))
    return math.copysign(codes[best], value)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40))
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "e4m3fnuz"])
def test_one_scale_brings_amax_to_the_largest_value(fmt: str, values: list[float]) -> None:
    """As current scaling does: nothing overflows, and the largest element keeps its value."""
    x = torch.tensor(values)
    used, scale = cast_as(x, FORMATS[fmt])
    amax = float(x.abs().max())
    assert torch.isfinite(used).all()
    if amax > 1e-30:
        assert float(scale) == pytest.approx(FORMATS[fmt].max_finite / amax, rel=1e-6)
        assert float(used.abs().max()) == pytest.approx(amax, rel=1e-6)
        eps = FORMATS[fmt].eps
        floor = FORMATS[fmt].min_subnormal / float(scale)
        assert ((used - x).abs() <= (eps / 2 * x.abs()).clamp(min=floor) * 1.0001).all()


def test_values_of_four_bits_are_the_nearest_codes() -> None:
    """NVFP4's rounding against a search over all its codes."""
    x = torch.cat([torch.linspace(-6, 6, 479), torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])])
    for value in x:
        row = torch.zeros(1, 16)
        row[0, 0], row[0, 1] = value, 6.0
        used, scale = cast_as(row, FORMATS["nvfp4"])
        assert float(scale[0, 0]) == pytest.approx(1.0)
        assert float(used[0, 0]) == pytest.approx(nearest(float(value), E2M1))


def test_blocks_have_scales_of_their_own() -> None:
    """MX scales are powers of two per 32 elements: a large block does not push a small one to zero."""
    x = torch.ones(2, 100) * 1e-4
    x[0, 0] = 1e4
    used, scale = cast_as(x, FORMATS["mxfp8_e4m3"])
    assert scale.shape == (2, 4)
    assert torch.equal(torch.log2(scale), torch.log2(scale).round())
    assert float((used[0, 1:32] == 0).float().mean()) == 1.0
    assert torch.allclose(used[0, 32:], x[0, 32:], rtol=0.07)
    assert torch.allclose(used[1], x[1], rtol=0.07)
    whole, _ = cast_as(x, FORMATS["e4m3"])
    assert float((whole == 0).float().mean()) > 0.9


@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_odd_tensors_are_cast_as_well(fmt: str) -> None:
    """Scalars, zeros, NaN, infinities and the ends of float32 give a result of the same shape, quietly."""
    for x in (
        torch.tensor(2.0), torch.zeros(3, 5), torch.full((2, 3), math.nan), torch.tensor([1e-45, 3e38]),
        torch.tensor([[math.inf, 1.0], [-2.0, math.nan]]), torch.ones(2, 3, 33, dtype=torch.float64),
    ):  # fmt: skip
        used, _ = cast_as(x, FORMATS[fmt])
        assert used.shape == x.shape
        assert not (used.isnan() & ~x.isnan() & x.isfinite()).any()


def would_of(found: dict[str, dict[str, float]], tensor: str) -> dict[str, float]:
    return {name: value for name, value in found[tensor].items() if name.startswith("would_")}


def heavy(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 1e-6, 1e-9, 1e4, 1.0, 1.0, 1.0, 1e-3])


class Uneven(nn.Module):
    """Its second layer sees values of very different sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.first = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(heavy(self.first(self.embed(ids))))
        return out


def test_a_layer_is_measured_against_the_format_to_check(tmp_path: Path) -> None:
    """The statistics have names of their own and the tensor says what they are about."""
    model = Uneven()
    seen: list[Tensor] = []
    model.head.register_forward_hook(lambda m, args, out: seen.append(args[0].detach().clone()))
    with recording(tmp_path, model, check_format="e4m3") as found:
        backward(loss_of(model, batch(0)))
        found.monitor.step()
    x = seen[0]
    used = (x * (448 / x.abs().max())).to(torch.float8_e4m3fn).float()
    stats = found.rows[0]["tensors"]
    would = would_of(stats, "head/input")
    assert would["would_underflow_pct"] == pytest.approx(100 * float(((x != 0) & (used == 0)).float().mean()))
    assert would["would_underflow_pct"] > 20
    assert would["would_overflow_pct"] == 0
    assert would["would_sqnr_db"] > 20
    assert found.run["tensors"]["head/input"]["would_be"] == "e4m3"
    assert found.run["tensors"]["head/input"]["format"] == "fp32"
    assert not {"underflow_pct", "overflow_pct", "sqnr_db", "scale"} & set(stats["head/input"])
    assert set(stats) == set(found.run["tensors"])


def test_values_that_fp16_cannot_hold_are_seen_before_anyone_casts(tmp_path: Path) -> None:
    """fp16 has no scale: large values would overflow."""
    model = Uneven()
    with recording(tmp_path, model, check_format="fp16") as found, torch.no_grad():
        model.first.weight *= 1e3
        with torch.enable_grad():
            backward(loss_of(model, batch(0)))
        found.monitor.step()
    assert would_of(found.rows[0]["tensors"], "head/input")["would_overflow_pct"] > 5


def test_without_a_format_to_check_nothing_is_supposed(tmp_path: Path) -> None:
    """By default there are no statistics of casts that do not happen."""
    model = small_model()
    with recording(tmp_path, model) as found:
        backward(loss_of(model, batch(0)))
        found.monitor.step()
    assert not any(would_of(found.rows[0]["tensors"], name) for name in found.rows[0]["tensors"])


def test_no_rule_takes_it_for_a_cast(tmp_path: Path) -> None:
    """A run that would lose half its gradients in FP8 and trains in fp32 is healthy."""
    from floatscope_diagnostics.diagnose import diagnose_paths

    model = Uneven()
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    with recording(tmp_path, model, optimizer, check_format="e4m3") as found:
        for step in range(120):
            loss = loss_of(model, batch(step % 3))
            backward(loss)
            optimizer.step()
            found.monitor.step(loss=loss)
            optimizer.zero_grad()
    done, unread = diagnose_paths([str(tmp_path / "run.jsonl")])
    assert not unread
    assert not [judged.finding.cause for judged in done[0].verdict.findings]
    would = found.tensors(5, "would_underflow_pct")
    assert max(would.values()) > 20, "the log holds what would have to be misunderstood"


@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_a_training_goes_on_bit_for_bit_the_same(tmp_path: Path, fmt: str) -> None:
    """Also where every step is measured against a format, with histograms."""
    weights = []
    for watched in (False, True):
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        if watched:
            with recording(tmp_path, model, optimizer, check_format=fmt) as found:
                weights.append(train(model, optimizer, found.monitor))
            assert "would_underflow_pct" in found.rows[1]["tensors"]["1/input"]
        else:
            weights.append(train(model, optimizer, None))
    assert torch.equal(*weights)
