"""GPUs found by the names people and drivers use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu, gpu_models


@pytest.mark.parametrize(
    ("name", "power_w", "found"),
    [
        ("NVIDIA H100 80GB HBM3", None, "H100 SXM"),
        ("NVIDIA H100 PCIe", 350, "H100 PCIe"),
        ("h100", None, "H100 SXM"),
        ("H100", 700, "H100 SXM"),
        ("H100", 500, "H100 SXM 96GB 500W"),
        ("H100", 400, "H100 NVL"),
        ("H100", 350, "H100 PCIe"),
        ("H100", 5, "H100 SXM"),
        ("H200", 600, "H200 NVL"),
        ("NVIDIA A100-SXM4-80GB", None, "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", None, "A100 40GB"),
        ("NVIDIA GeForce RTX 5090", None, "RTX 5090"),
        ("rtx-4090", None, "RTX 4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "RTX PRO 6000 Blackwell"),
        ("NVIDIA B300 SXM6 AC", None, "B300"),
        ("AMD Instinct MI300X", None, "MI300X"),
        ("MI355X", None, "MI355X"),
    ],
)
def test_names_of_people_and_drivers(name: str, power_w: float | None, found: str) -> None:
    assert find_gpu(name, power_w).name == found


def test_every_model_is_found_by_its_own_name_and_has_a_source() -> None:
    assert len({model.name for model in gpu_models()}) == len(gpu_models()) == 21
    for model in gpu_models():
        assert find_gpu(model.name) == model
        assert len(model.source) > 10
        assert (model.capability is None) == model.arch.startswith("gfx")


def test_peaks_are_dense_and_grow_with_fewer_bits() -> None:
    for model in gpu_models():
        if model.fp8_tflops is not None:
            assert 1.9 < model.fp8_tflops / model.bf16_tflops < 2.1
            assert model.capability is None or model.capability >= (8, 9)
        if model.fp4_tflops is not None:
            assert model.fp8_tflops is not None
            assert model.capability is None or model.capability >= (10, 0)
    assert find_gpu("H100").fp8_tflops == 1979  # 3958 is with sparsity
    assert find_gpu("L40S").fp8_tflops == 733


@pytest.mark.parametrize("name", ["H1000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "", "Quadro", "x" * 10_000])
def test_an_unknown_gpu_names_what_is_near(name: str) -> None:
    with pytest.raises(UnknownGpuError, match="unknown GPU") as caught:
        find_gpu(name)
    assert len(str(caught.value)) < 700
    if name == "H1000":
        assert "H100" in str(caught.value)


def test_what_was_never_confirmed_is_marked() -> None:
    marked = {model.name for model in gpu_models() if not model.verified}
    assert marked == {"H800 SXM", "H20", "RTX PRO 6000 Blackwell", "MI355X"}


@given(st.text(max_size=40), st.none() | st.floats())
def test_any_name_gives_a_model_or_a_clear_error(name: str, power_w: float | None) -> None:
    try:
        found = find_gpu(name, power_w)
    except UnknownGpuError:
        return
    assert found in gpu_models()
