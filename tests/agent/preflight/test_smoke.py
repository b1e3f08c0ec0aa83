"""The smoke GEMMs: true ones pass, and each way of being wrong is seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from floatscope.model_shapes.reading import from_fields, read_model
from floatscope.preflight import smoke_gemm
from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.smoke_formats import operand
from floatscope.preflight.smoke_gemm import Measured, matrices, measure
from floatscope.preflight.smoke_layer import judge, layer_checks, size_of
from floatscope.preflight.smoke_run import smoke
from floatscope.preflight.smoke_speed import MOST_OWN, speed
from floatscope.preflight.smoke_verdict import check_of, row_of, status_of
from floatscope.preflight.table_reading import read_table
from tests.agent.preflight.machines import gpu

ENTRIES = {one["format"]: one for one in read_table("gemm_errors")["formats"]}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def measured(name: str, **changes: Any) -> Measured:
    """As the format gives it."""
    true = Measured(name, "normal", (96, 4096, 96), "cpu", ENTRIES[name]["normal"], 0.0017, 0.0)
    return replace(true, **changes)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices are small, and threads cost more than they save on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def here() -> tuple[list[dict[str, Any]], list[Check]]:
    return smoke(Facts(), Wanted(), device="cpu")


def test_all_formats_come_out_here_as_the_table_says(here: tuple[list[dict[str, Any]], list[Check]]) -> None:
    rows, checks = here
    assert {row["format"] for row in rows} == set(ENTRIES)
    for row in rows:
        assert row["relative_error"] == pytest.approx(row["expected"], rel=0.06), row
        assert (row["kernel_error"] is None) == row["emulated"]
        assert row["status"] == ("not_applicable" if row["emulated"] else "pass")
        if not row["emulated"]:
            assert row["kernel_error"] == pytest.approx(0.0017, rel=0.1)
    for check in checks:
        emulated = any(row["emulated"] for row in rows if row["format"] == check.name.split(".")[1])
        assert check.status == ("not_applicable" if emulated else "pass")
        assert ("emulated" in check.read) == emulated


def test_settings_of_torch_are_as_they_were() -> None:
    torch.set_num_threads(2)
    before = torch.backends.cuda.matmul.allow_tf32
    smoke(Facts(), Wanted(recipe="bf16"), device="cpu")
    assert (torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32) == (2, before)


@pytest.mark.parametrize(
    ("recipe", "formats"),
    [("fp8_current_scaling", 3), ("ao_rowwise", 2), ("mxfp8", 3), ("nvfp4", 2), ("bf16", 1), ("custom", 8)],
)
def test_a_recipe_tries_its_own_formats(recipe: str, formats: int) -> None:
    names = read_table("gemm_errors")["by_recipe"].get(recipe, list(ENTRIES))
    assert len(names) == formats
    rows, _ = smoke(Facts(), Wanted(recipe=recipe), formats=names[:1], device="cpu")
    assert {row["format"] for row in rows} == {names[0]}


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="known are"):
        smoke(Facts(), Wanted(), formats=["fp9"], device="cpu")


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "pass", "as this format gives"),
        ({"relative_error": 0.0372 * 1.14}, "pass", ""),
        ({"relative_error": 0.0372 * 1.2}, "warn", "20 % off"),
        ({"relative_error": 0.0372 * 1.7}, "fail", "70 % off"),
        ({"relative_error": 0.0029}, "fail", "not used"),
        ({"relative_error": 1.0}, "fail", "scale"),
        ({"relative_error": math.nan}, "fail", "not a number"),
        ({"relative_error": math.inf}, "fail", "not a number"),
        ({"relative_error": None}, "fail", "not a number"),
        ({"kernel_error": 0.004}, "fail", "rounded operands"),
        ({"kernel_error": math.nan}, "fail", "rounded operands"),
        ({"bias_pct": -0.6}, "warn", "fast accumulation"),
        ({"error": "RuntimeError: no kernel"}, "unknown", "no kernel"),
    ],
)
def test_each_verdict(changes: dict[str, Any], status: str, said: str) -> None:
    one = measured("e4m3_tensor", **changes)
    found = status_of(ENTRIES["e4m3_tensor"], one)
    assert found[0] == status
    assert said in found[1]
    check = check_of(ENTRIES["e4m3_tensor"], [measured("e4m3_tensor"), one])
    assert check.status == status
    assert bool(check.do) == (status != "pass")
    row = row_of(ENTRIES["e4m3_tensor"], one)
    assert row["relative_error"] is None or math.isfinite(row["relative_error"])


def test_a_kernel_that_scales_in_the_wrong_direction_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = smoke_gemm.scaled_mm
    monkeypatch.setattr(smoke_gemm, "scaled_mm", lambda a, b, s, t: right(a, b, 1 / s, t))
    _, (check,) = smoke(Facts(), Wanted(), formats=["e4m3_tensor"], device="cpu")
    assert check.status == "fail"


def test_a_kernel_that_ignores_fp8_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = matrices(96, 4096, 96, "normal", "cpu")
    exact = a.double() @ b.double().t()
    monkeypatch.setattr(smoke_gemm, "scaled_mm", lambda *_: a.bfloat16() @ b.bfloat16().t())
    one = measure(ENTRIES["e4m3_tensor"], a, b, exact, distribution="normal", device="cpu")
    assert status_of(ENTRIES["e4m3_tensor"], one) == ("fail", read_table("gemm_errors")["not_used"]["why"])


def test_sums_that_are_cut_short_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = smoke_gemm.scaled_mm
    monkeypatch.setattr(smoke_gemm, "scaled_mm", lambda *given: right(*given) * 0.99)
    a, b = matrices(96, 4096, 96, "uniform", "cpu")
    exact = a.double() @ b.double().t()
    one = measure(ENTRIES["e4m3_tensor"], a, b, exact, distribution="uniform", device="cpu")
    assert one.bias_pct == pytest.approx(-1.0, abs=0.1)
    assert status_of(ENTRIES["e4m3_tensor"], one)[0] == "fail"


def test_a_kernel_that_raises_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("only supported on CUDA devices with compute capability >= 9.0 or 8.9")

    monkeypatch.setattr(smoke_gemm, "scaled_mm", refuse)
    rows, (check,) = smoke(Facts(), Wanted(), formats=["e4m3_row"], device="cpu")
    assert {row["status"] for row in rows} == {"unknown"}
    assert "8.9" in check.read


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=128, max_size=128),
    form=st.sampled_from([("e4m3", "mx_up"), ("e4m3", "block128"), ("e2m1", "nvfp4"), ("e4m3", "tensor")]),
)
def test_rounded_values_are_within_a_step_of_the_grid(values: list[float], form: tuple[str, str]) -> None:
    name, scale = form
    x = torch.tensor(values)[None]
    got = operand(x, name, scale).values
    size = {"mx_up": 32, "block128": 128, "nvfp4": 16, "tensor": 128}[scale]
    amax = x.reshape(-1, size).abs().amax(-1, keepdim=True).repeat(1, size).reshape(1, -1)
    step = 1 / 3 if name == "e2m1" else 1 / 8  # of the block's largest value, scale rounding doubles it
    assert torch.all((got - x).abs() <= amax * step + 1e-30)
    assert torch.all(torch.sign(got) * torch.sign(x) >= 0)


def test_fp4_values_are_kept_as_they_are_and_others_go_to_the_nearest() -> None:
    kept = torch.tensor([[*E2M1, *(-value for value in E2M1)]])
    assert operand(kept, "e2m1", "nvfp4").values.tolist()[0] == pytest.approx(kept.tolist()[0], rel=1e-6)
    between = [0.26, 0.76, 1.26, 1.74, 2.4, 3.6, 5.1, 6.0] * 2
    nearest = [0.5, 1.0, 1.5, 1.5, 2.0, 4.0, 6.0, 6.0] * 2
    got = operand(torch.tensor([between]), "e2m1", "nvfp4").values.tolist()[0]
    assert got == pytest.approx(nearest, rel=1e-6)


SMALL = from_fields(
    {"model_type": "gpt2", "n_embd": 256, "n_layer": 1, "n_head": 4, "n_positions": 128, "vocab_size": 256,
     "n_inner": 512},
    source="config.json",
    name="small",
)  # fmt: skip


class Emulated(torch.autograd.Function):
    """A linear in E4M3 forward and E5M2 x E4M3 backward, one scale a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return (_fp8(x) @ _fp8(weight).t()).to(torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        gradient = _fp8(gradients[0], "e5m2")
        return (gradient @ _fp8(weight)).to(torch.bfloat16), (gradient.t() @ _fp8(x)).to(torch.bfloat16)


class Dead(torch.autograd.Function):
    """Nothing goes backward through it, as with stochastic rounding that was compiled out."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.zeros_like(gradients[0])


def _fp8(x: Any, form: str = "e4m3") -> Any:
    return operand(x.float(), form, "tensor").values


class Layer(nn.Module):
    def __init__(self, k: int, n: int, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = nn.Parameter(torch.zeros(n, k, dtype=torch.bfloat16)), kind

    def forward(self, x: Any) -> Any:
        if self.kind == "raises":
            raise RuntimeError("MXFP8 is not supported on 12.0+ yet")
        if self.kind == "bf16":
            return x @ self.weight.t()
        out: Any = Emulated.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return Dead.apply(out) if self.kind == "zero" else out  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [("fp8", "pass", "forward and backward"), ("bf16", "fail", "FP8 is not used"),
     ("zero", "fail", "all zero"), ("raises", "fail", "12.0+"), ("missing", "unknown", "cannot be imported")],
)  # fmt: skip
def test_a_layer_of_the_library_is_judged_by_all_three_gemms(kind: str, status: str, said: str) -> None:
    def make(library: str, recipe: str, k: int, n: int, device: str) -> Any:
        if kind == "missing":
            raise ImportError("No module named 'transformer_engine'")
        return Layer(k, n, kind), nullcontext

    own = Wanted(recipe="fp8_current_scaling", model=SMALL, micro_batch=1, sequence=128)
    (check,) = layer_checks(Facts(), own, device="cpu", make=make)
    assert check.status == status
    assert said in check.why or said in check.read
    assert "T 128, K 256, N 512" in check.read


def test_layers_without_a_library_here_are_not_guessed_at() -> None:
    (check,) = layer_checks(Facts(), Wanted(recipe="mxfp8"), device="cpu")
    assert check.status == "unknown"
    assert layer_checks(Facts(), Wanted(recipe="bf16"), device="cpu") == []
    assert size_of(Wanted()) == (1024, 4096, 1024)
    assert judge({"forward": math.nan}, {"forward": 0.037, "backward": 0.059})[0] == "fail"


def timer(fp8_tflops: float, bf16_tflops: float, slow: str = "") -> Any:
    def seconds(kind: str, m: int, k: int, n: int, device: str) -> float:
        rate = fp8_tflops if kind == "fp8" else bf16_tflops
        return 2e-12 * m * k * n / rate * (1.1 if device == slow else 1.0)

    return seconds


@pytest.mark.parametrize(
    ("fp8", "bf16", "status"),
    [
        (1600, 800, "pass"),
        (1170, 700, "warn"),
        (800, 500, "fail"),
        (1500, 1400, "fail"),
        (1500, 1200, "warn"),
    ],
)
def test_speed_is_judged_by_share_of_peak_and_by_ratio(fp8: float, bf16: float, status: str) -> None:
    own = Wanted(model=read_model("llama-3-8b"), micro_batch=1, sequence=8192)
    rows, checks = speed(Facts(gpus=(gpu(),)), own, timer=timer(fp8, bf16))
    found = {one.name: one for one in checks}
    assert found["gemm.speed"].status == status
    assert found["gemm.speed.model"].status == ("pass" if fp8 / bf16 >= 1.2 else "warn")
    fast = [row for row in rows if row["format"] == "e4m3_tensor"]
    assert fast[0]["tflops"] == pytest.approx(fp8)
    assert fast[0]["share_of_peak_pct"] == pytest.approx(100 * fp8 / 1979, abs=0.1)
    assert 2 < len(fast) <= 2 + MOST_OWN


def test_an_unknown_gpu_has_no_share_of_peak() -> None:
    rows, (check,) = speed(Facts(gpus=(gpu("NVIDIA Z999", (9, 0)),)), Wanted(), timer=timer(1600, 800))
    assert check.status == "pass"
    assert "not known" in check.read
    assert {row["share_of_peak_pct"] for row in rows} == {None}


def test_a_gpu_that_cannot_multiply_is_unknown_and_a_slow_one_in_a_node_is_named() -> None:
    def refuse(*_: object) -> float:
        raise RuntimeError("out of memory")

    rows, (check,) = speed(Facts(gpus=(gpu(),)), Wanted(), timer=refuse)
    assert (check.status, {row["status"] for row in rows}) == ("unknown", {"unknown"})
    node = Facts(gpus=(gpu(), gpu(index=1), gpu(index=2)))
    found = {one.name: one for one in speed(node, Wanted(), timer=timer(1600, 800, "cuda:2"))[1]}
    assert (found["gemm.speed.node"].status, "GPU 2" in found["gemm.speed.node"].read) == ("warn", True)
    found = {one.name: one for one in speed(node, Wanted(), timer=timer(1600, 800))[1]}
    assert found["gemm.speed.node"].status == "pass"


def test_only_gpus_that_this_process_may_use_are_timed() -> None:
    first, second = gpu(uuid="GPU-a"), gpu("NVIDIA H20", index=1, uuid="GPU-b")
    facts = Facts(gpus=(first, second), environment={"CUDA_VISIBLE_DEVICES": "1"})
    rows, checks = speed(facts, Wanted(), timer=timer(250, 125))
    assert [one.name for one in checks] == ["gemm.speed"]
    assert "NVIDIA H20" in checks[0].read
    assert rows[1]["share_of_peak_pct"] == pytest.approx(100 * 250 / 296, abs=0.1)


def test_every_table_has_its_source() -> None:
    table = read_table("gemm_errors")
    assert table["source"]
    assert all(table[section]["source"] for section in ("bands", "kernel", "bias"))
    assert read_table("smoke_speed")["source"]
