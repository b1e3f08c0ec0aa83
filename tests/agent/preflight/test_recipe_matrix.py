"""GPU x recipe x library, machine by machine."""

from __future__ import annotations

import pytest

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.recipe_matrix import NO_GPU, recipe_check, recipe_matrix
from floatscope.protocol.names import RECIPES
from tests.agent.preflight.machines import amd, gpu, machine

A100 = gpu("NVIDIA A100-SXM4-80GB", (8, 0))
L40S = gpu("NVIDIA L40S", (8, 9))
H100 = gpu()
B200 = gpu("NVIDIA B200", (10, 0))
RTX5090 = gpu("NVIDIA GeForce RTX 5090", (12, 0))
GB10 = gpu("NVIDIA GB10", (12, 1))
MI300X = amd("AMD Instinct MI300X", "gfx942:sramecc+:xnack-")
MI355X = amd("AMD Instinct MI355X", "gfx950")

TE_RECIPES = ("fp8_delayed_scaling", "fp8_current_scaling", "fp8_block_scaling", "mxfp8", "nvfp4")


def check(facts: Facts, recipe: str, library: str = "") -> Check:
    (found,) = recipe_check(facts, Wanted(recipe=recipe, library=library))
    return found


@pytest.mark.parametrize(
    ("on", "statuses"),
    [
        (A100, "fail fail fail fail fail"),
        (L40S, "pass pass fail fail fail"),
        (H100, "pass pass pass fail fail"),
        (B200, "pass pass warn pass pass"),
        (gpu("NVIDIA B300 SXM6 AC", (10, 3)), "pass pass warn pass pass"),
        (gpu("NVIDIA Thor", (11, 0)), "warn warn warn warn warn"),
        (RTX5090, "pass pass warn fail fail"),
        (GB10, "pass pass warn fail fail"),
        (MI300X, "unknown unknown unknown unknown unknown"),
        (gpu("NVIDIA X999", (13, 0)), "unknown unknown unknown unknown unknown"),
        (gpu("NVIDIA X999", None), "unknown unknown unknown unknown unknown"),
    ],
)
def test_transformer_engine(on: GpuFacts, statuses: str) -> None:
    facts = machine(on)
    assert [check(facts, recipe).status for recipe in TE_RECIPES] == statuses.split()
    matrix = recipe_matrix(facts)
    assert [matrix[recipe][0] for recipe in TE_RECIPES] == statuses.split()
    assert set(matrix) == set(RECIPES)


@pytest.mark.parametrize(
    ("on", "recipe", "status"),
    [
        (A100, "ao_tensorwise", "fail"),
        (L40S, "ao_tensorwise", "pass"),
        (L40S, "ao_rowwise", "pass"),
        (H100, "ao_rowwise", "pass"),
        (B200, "ao_rowwise", "warn"),
        (B200, "ao_tensorwise", "pass"),
        (H100, "fp8_block_scaling", "warn"),
        (B200, "fp8_block_scaling", "fail"),
        (L40S, "fp8_block_scaling", "fail"),
        (H100, "mxfp8", "fail"),
        (B200, "mxfp8", "pass"),
        (RTX5090, "mxfp8", "fail"),
        (B200, "nvfp4", "warn"),
        (MI300X, "ao_tensorwise", "warn"),
        (MI300X, "mxfp8", "fail"),
        (H100, "fp8_delayed_scaling", "fail"),
    ],
)
def test_torchao(on: GpuFacts, recipe: str, status: str) -> None:
    facts = machine(on, versions={"torchao": "0.18.0"})
    assert check(facts, recipe, "torchao").status == status


@pytest.mark.parametrize(
    ("recipe", "on_h100", "on_nothing"),
    [
        ("mxfp8", "fail", "fail"),
        ("nvfp4", "fail", "fail"),
        ("fp8_block_scaling", "fail", "fail"),
        ("fp8_delayed_scaling", "fail", "fail"),
        ("ao_rowwise", "warn", "unknown"),
        ("fp8_current_scaling", "warn", "unknown"),
        ("bf16", "pass", "unknown"),
    ],
)
def test_torch_alone_has_gemms_and_no_layers(recipe: str, on_h100: str, on_nothing: str) -> None:
    """That a library lacks a recipe is known without a GPU; what the GPU decides is not."""
    assert check(machine(H100), recipe, "torch").status == on_h100
    found = check(machine(), recipe, "torch")
    assert found.status == on_nothing
    if on_nothing == "fail":
        assert "no layer that trains" in found.why
        assert "--library te" in found.do
    else:
        assert (found.why, "where the GPUs are" in found.do) == (NO_GPU, True)


def test_a_library_without_the_recipe_fails_without_a_gpu() -> None:
    facts = machine(versions={"torchao": "0.18.0"})
    assert check(facts, "fp8_delayed_scaling", "torchao").status == "fail"
    assert check(machine(te="2.0"), "mxfp8").status == "fail"
    assert check(machine(te="2.20.2"), "mxfp8").status == "unknown"


def test_fnuz_of_mi300_is_told() -> None:
    facts = machine(MI300X, cuda=None, hip="6.4.2", versions={"torchao": "0.18.0"}, te=None)
    found = check(facts, "ao_rowwise")
    assert found.status == "warn"
    assert "240" in found.why
    assert "BF16 output" in found.why


@pytest.mark.parametrize(("hip", "status"), [("6.4", "fail"), ("6.5.1", "pass"), (None, "unknown")])
def test_mi355_needs_rocm(hip: str | None, status: str) -> None:
    facts = machine(MI355X, cuda=None, hip=hip, versions={"torchao": "0.18.0"}, te=None)
    if hip is None:
        facts = machine(MI355X, versions={"torchao": "0.18.0"}, te=None)
        facts = Facts(**{**vars(facts), "torch": {"version": "2.12.0"}})
    assert check(facts, "ao_tensorwise").status == status


def test_mi355_mx_needs_rocm_7() -> None:
    for hip, status in (("6.9", "fail"), ("7.0", "pass"), ("10.1", "pass")):
        facts = machine(MI355X, cuda=None, hip=hip, versions={"torchao": "0.18.0"}, te=None)
        assert check(facts, "mxfp8", "torchao").status == status


def test_an_older_amd_gpu_has_no_fp8() -> None:
    facts = machine(amd("AMD Instinct MI250X", "gfx90a"), cuda=None, hip="6.4", te=None)
    assert check(facts, "ao_tensorwise").status == "fail"
    assert check(facts, "bf16").status == "pass"


BOTH_OFF = {"NVTE_NVFP4_DISABLE_RHT": "1", "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING": "1"}


@pytest.mark.parametrize(
    ("te", "environment", "status", "told"),
    [
        ("2.18.0", {}, "fail", "all zero"),
        ("2.18.0", {"NVTE_NVFP4_DISABLE_RHT": "1"}, "fail", "all zero"),
        ("2.18.0", BOTH_OFF, "warn", "weaker recipe"),
        ("2.19.0", {}, "fail", "shared memory"),
        ("2.19.0", {"NVTE_NVFP4_DISABLE_RHT": "1"}, "unknown", "was not confirmed"),
        ("2.20.2", {}, "fail", "Hadamard"),
        ("2.20.2", {"NVTE_NVFP4_DISABLE_RHT": "1"}, "warn", "weaker recipe"),
        ("2.20.2", BOTH_OFF, "warn", "weaker recipe"),
    ],
)
def test_nvfp4_on_rtx_blackwell(te: str, environment: dict[str, str], status: str, told: str) -> None:
    found = check(machine(RTX5090, te=te, environment=environment), "nvfp4")
    assert (found.status, told in found.why) == (status, True)
    assert found.do


def test_zero_gradients_are_told_beside_the_crash() -> None:
    """Who cures the crash alone gets a run that trains nothing and says nothing."""
    found = check(machine(RTX5090, te="2.18.0"), "nvfp4")
    assert "all zero" in found.why
    assert "shared memory" in found.why
    later = check(machine(RTX5090, te="2.19.0"), "nvfp4")
    assert later.status == "fail"
    assert "all zero" in later.why
    assert "2.20" in later.do


def test_h100_with_an_old_cuda() -> None:
    facts = machine(H100, cuda="12.4", cublaslt="12.4.5")
    assert check(facts, "fp8_delayed_scaling").status == "pass"
    found = check(facts, "fp8_block_scaling")
    assert found.status == "fail"
    assert "CUDA 12.9" in found.why
    assert "cuBLASLt 12.9" in found.why


def test_versions_are_numbers_not_text() -> None:
    assert check(machine(H100, cuda="12.10", cublaslt="12.10.0"), "fp8_block_scaling").status == "pass"
    assert check(machine(L40S, cuda="12.10", cublaslt="12.1.3"), "fp8_delayed_scaling").status == "pass"
    assert check(machine(L40S, cuda="12.1", cublaslt="12.1.2"), "fp8_delayed_scaling").status == "fail"
    assert check(machine(L40S, cuda="12.0", cublaslt="12.1.3"), "fp8_delayed_scaling").status == "fail"
    assert check(machine(B200, cuda="12.6", cublaslt="12.6"), "mxfp8").status == "fail"


def test_what_decides_and_was_not_read_is_unknown() -> None:
    found = check(machine(L40S, cublaslt=None), "fp8_delayed_scaling")
    assert found.status == "unknown"
    assert "cublaslt" in found.why


def test_a_recipe_needs_a_recent_transformer_engine() -> None:
    for recipe, te in (
        ("fp8_current_scaling", "2.1"),
        ("fp8_block_scaling", "2.2.1"),
        ("mxfp8", "2.0"),
        ("nvfp4", "2.6"),
    ):
        on = H100 if recipe == "fp8_block_scaling" else B200
        found = check(machine(on, te=te), recipe)
        assert found.status == "fail"
        assert "Transformer Engine 2." in found.why


def test_megatron_and_accelerate_go_by_transformer_engine() -> None:
    for library in ("megatron", "accelerate", "transformer_engine"):
        assert check(machine(RTX5090), "mxfp8", library).status == "fail"


def test_plain_recipes() -> None:
    matrix = recipe_matrix(machine(gpu("Tesla P100", (6, 0))))
    assert {name: matrix[name][0] for name in ("fp32", "bf16", "fp16_amp", "custom")} == {
        "fp32": "pass",
        "bf16": "warn",
        "fp16_amp": "warn",
        "custom": "not_applicable",
    }
    assert recipe_matrix(machine(H100))["fp16_amp"][0] == "pass"
    assert recipe_matrix(machine(MI300X))["fp16_amp"][0] == "pass"


def test_without_a_gpu_nothing_is_passed() -> None:
    matrix = recipe_matrix(machine())
    assert {status for status, _ in matrix.values()} == {"unknown", "not_applicable"}
    assert check(machine(), "mxfp8").status == "unknown"
    assert recipe_check(machine(), Wanted()) == []


def test_a_missing_library_is_told_in_the_matrix() -> None:
    status, why = recipe_matrix(machine(H100, te=None))["fp8_delayed_scaling"]
    assert (status, "transformer-engine is not installed" in why) == ("fail", True)
    status, why = recipe_matrix(machine(B200, te=None))["fp8_block_scaling"]
    assert (status, "MXFP8" in why, "not installed" in why) == ("fail", True, True)
    broken = machine(H100, libraries={"te_import": {"state": "failed", "error": "ImportError"}})
    status, why = recipe_matrix(broken)["fp8_delayed_scaling"]
    assert (status, "cannot be imported" in why) == ("fail", True)


def test_of_an_unknown_gpu_nothing_is_claimed() -> None:
    matrix = recipe_matrix(machine(gpu("NVIDIA X999", (14, 0)), versions={"torchao": "0.18.0"}))
    fp8 = {
        name: answer[0]
        for name, answer in matrix.items()
        if name not in ("bf16", "fp16_amp", "fp32", "custom")
    }
    assert set(fp8.values()) == {"unknown"}
    asked = check(machine(gpu("NVIDIA X999", (14, 0))), "mxfp8")
    assert "no rule is known" in asked.why
    assert "where the GPUs are" not in asked.do


def test_the_worst_gpu_of_a_machine_decides() -> None:
    both = machine(H100, gpu("NVIDIA A100-SXM4-80GB", (8, 0), index=1))
    assert check(both, "fp8_delayed_scaling").status == "fail"
    alone = machine(*both.gpus, environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert check(alone, "fp8_delayed_scaling").status == "pass"


def test_the_capability_comes_from_the_table_if_the_driver_does_not_tell() -> None:
    assert check(machine(gpu("NVIDIA H100 80GB HBM3", None)), "mxfp8").status == "fail"
