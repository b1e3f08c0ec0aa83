"""The price: break-even sizes and shares."""

from __future__ import annotations

import pytest

from floatscope.hardware.gpu_lookup import find_gpu
from floatscope_diagnostics.advisor.advise import advise
from floatscope_diagnostics.advisor.cost import cost_of, gemm_seconds
from floatscope_diagnostics.advisor.shapes import Sizes
from tests.diagnostics.advisor.made_runs import batches, rows, run_info


@pytest.mark.parametrize(
    ("tokens", "size"), [(2048, 2624), (8192, 1472), (32768, 1152)]
)  # break-even K = N of tensorwise scaling on an H100, torchao's roofline
def test_break_even_of_square_layers(tokens: int, size: int) -> None:
    gpu = find_gpu("H100 SXM")

    def pays(n: int) -> bool:
        t16, t8 = gemm_seconds(tokens, n, n, gpu, "current")
        return t8 < t16

    assert pays(int(1.04 * size))
    assert not pays(int(0.96 * size))


def test_large_layers_get_slower_in_bf16_and_small_ones_do_not() -> None:
    gpu = find_gpu("H100 SXM")
    for size, sign in ((8192, 1), (96, -1)):
        sizes = Sizes({"a": (size, size), "b": (size, size)}, {"a": 1.0, "b": 1.0}, "shapes")
        cost = cost_of({"a": "bf16"}, sizes, ("a", "b"), tokens=8192, gpu=gpu, recipe="current")
        assert cost.flops_leaving_pct == 50.0
        assert cost.speed_cost_pct is not None
        assert cost.speed_cost_pct * sign > 0


def test_nothing_is_made_up_without_sizes() -> None:
    cost = cost_of({"a": "bf16"}, Sizes({}, {}, ""), ("a",), tokens=None, gpu=None, recipe="current")
    assert (cost.flops_leaving_pct, cost.speed_cost_pct) == (None, None)
    assert "not logged" in cost.source


def test_parameters_stand_in_for_shapes() -> None:
    """Without widths in the configuration weights' histograms tell how many parameters there are."""
    bad = {"blocks.0.mlp.fc1/input": {"underflow_pct": 60.0}}
    info = run_info(model={})
    advice = advise(info, batches(rows(bad)), name="x")
    assert advice.predicted.flops_leaving_pct == pytest.approx(100 / 12)
    assert advice.predicted.speed_cost_pct is None
    assert "parameters" in advice.predicted.speed_from
