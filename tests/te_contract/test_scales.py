"""Scales of Transformer Engine's quantised tensors, read from the real classes and their real layouts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import floatscope
from floatscope.probes.te_scales import dequantised, is_quantised, scales_of, smallest
from tests.te_contract.te_cpu import TransformerEngine

pytestmark = [pytest.mark.te, pytest.mark.filterwarnings("ignore")]

TENSORS = "transformer_engine.pytorch.tensor"


def e4m3() -> Any:
    """The format, as the compiled module names it."""
    extension: Any = importlib.import_module("transformer_engine_torch")
    return extension.DType.kFloat8E4M3


def values(rows: int, columns: int) -> Tensor:
    """Values over ten orders of magnitude, so that blocks have scales of their own."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, columns, generator=generator)
    return x * torch.logspace(-5, 5, rows)[:, None] * torch.logspace(-2, 2, columns)


def blocks_of(x: Tensor, height: int, width: int) -> Tensor:
    """amax of each block, (down, across); the last ones may be cut off."""
    rows, columns = x.shape
    down, across = -(-rows // height), -(-columns // width)
    padded = torch.nn.functional.pad(x.abs(), (0, across * width - columns, 0, down * height - rows))
    return padded.view(down, height, across, width).amax(dim=(1, 3))


def spread(grid: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    whole = grid.repeat_interleave(height, 0).repeat_interleave(width, 1)
    return whole[: x.shape[0], : x.shape[1]]


@pytest.mark.parametrize("is_2d", [False, True])
@pytest.mark.parametrize("shape", [(256, 384), (130, 200), (3, 128), (2, 256)])
def test_block_scaling(engine: TransformerEngine, is_2d: bool, shape: tuple[int, int]) -> None:
    storage: Any = importlib.import_module(f"{TENSORS}.storage.float8_blockwise_tensor_storage")
    quantizers: Any = importlib.import_module(f"{TENSORS}.float8_blockwise_tensor")
    x = values(*shape)
    height = 128 if is_2d else 1
    scale = torch.exp2(torch.floor(torch.log2(448 / blocks_of(x, height, 128))))
    codes = (x * spread(scale, x, height, 128)).to(torch.float8_e4m3fn).view(torch.uint8)
    quantizer = quantizers.Float8BlockQuantizer(
        e4m3(), rowwise=True, columnwise=False, block_scaling_dim=2 if is_2d else 1
    )
    stored = torch.zeros(quantizer.get_scale_shape(shape, columnwise=False))
    inverse = 1 / scale if is_2d else (1 / scale).t()
    stored[: inverse.shape[0], : inverse.shape[1]] = inverse
    tensor = storage.Float8BlockwiseQTensorStorage(codes, stored, None, None, e4m3(), quantizer, is_2d)
    found = scales_of(tensor)
    assert found is not None
    assert found.fmt == "e4m3"
    assert torch.equal(found.scale, scale)
    used = dequantised(tensor, found)
    assert used is not None
    assert torch.equal(used, tensor.dequantize(dtype=torch.float32)), "as the package itself dequantises"
    assert float(smallest(found)) == float(scale.min())


@pytest.mark.parametrize("shape", [(256, 256), (128, 64), (96, 160)])
def test_mxfp8(engine: TransformerEngine, shape: tuple[int, int]) -> None:
    storage: Any = importlib.import_module(f"{TENSORS}.storage.mxfp8_tensor_storage")
    quantizers: Any = importlib.import_module(f"{TENSORS}.mxfp8_tensor")
    x = values(*shape)
    exponent = torch.ceil(torch.log2(blocks_of(x, 1, 32) / 448))
    scale = torch.exp2(-exponent)
    codes = (x * spread(scale, x, 1, 32)).to(torch.float8_e4m3fn)
    quantizer = quantizers.MXFP8Quantizer(e4m3(), rowwise=True, columnwise=False)
    stored = torch.zeros(quantizer.get_scale_shape(shape, columnwise=False), dtype=torch.uint8)
    stored[: shape[0], : shape[1] // 32] = (exponent + 127).to(torch.uint8)

    def tensor(*, swizzled: bool) -> Any:
        return storage.MXFP8TensorStorage(
            codes.view(torch.uint8), stored, None, None, e4m3(), quantizer, swizzled
        )

    found = scales_of(tensor(swizzled=False))
    assert found is not None
    assert found.fmt == "mxfp8_e4m3"
    assert torch.equal(found.scale, scale)
    used = dequantised(tensor(swizzled=False), found)
    assert used is not None
    assert torch.equal(used, codes.float() / spread(scale, x, 1, 32))
    assert scales_of(tensor(swizzled=True)) is None, "an order that only the GEMM knows is not guessed"
    stored[1, 1] = 255
    broken = scales_of(tensor(swizzled=False))
    assert broken is not None
    assert smallest(broken).isnan(), "a scale that is not finite comes first"


@pytest.mark.parametrize("per_row", [False, True])
def test_nvfp4(engine: TransformerEngine, per_row: bool) -> None:
    storage: Any = importlib.import_module(f"{TENSORS}.storage.nvfp4_tensor_storage")
    reference: Any = importlib.import_module("transformer_engine.pytorch.custom_recipes.reference_nvfp4")
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(2))
    x[3, :16] = 0
    amax = x.abs().amax(1, keepdim=True) if per_row else x.abs().amax().reshape(1, 1)
    whole = 6 * 448 / amax
    block = (blocks_of(x, 1, 16) / 6 * whole).clamp(max=448).to(torch.float8_e4m3fn)
    scale = whole / block.float().clamp(min=2**-9)
    packed = reference.cast_to_fp4x2((x * spread(scale, x, 1, 16)).clamp(-6, 6))
    stored = torch.zeros(128, 8, dtype=torch.uint8)
    stored[:64, :6] = block.view(torch.uint8)
    tensor = storage.NVFP4TensorStorage(
        packed, stored, None, None, amax.reshape(-1), None, 10, None, False, row_scaled_nvfp4=per_row
    )
    found = scales_of(tensor)
    assert found is not None
    assert found.fmt == "nvfp4"
    assert torch.allclose(found.scale, scale)
    assert torch.isfinite(found.scale).all(), "a block of zeros has a scale too"
    assert found.amax is not None
    assert float(found.amax) == float(x.abs().max())
    used = dequantised(tensor, found)
    assert used is not None
    assert torch.allclose(used, reference.cast_from_fp4x2(packed, torch.float32) / spread(scale, x, 1, 16))
    assert float((used - x).norm() / x.norm()) < 0.2


def test_what_is_not_quantised_has_no_scale(engine: TransformerEngine) -> None:
    assert not is_quantised(torch.ones(3))
    assert not is_quantised(None)
    assert scales_of(torch.ones(3)) is None


class Weights:
    """A watched model whose weights are quantised; one row per step."""

    def __init__(self, engine: TransformerEngine, model: Any, recipe: Any, path: Path) -> None:
        self.engine, self.model, self.recipe, self._path = engine, model, recipe, path / "run.jsonl"
        self.monitor = floatscope.watch(
            model, run="w", mode="local", log_path=self._path, strict=True, gpu=False, stats_every=2
        )

    def step(self, **options: Any) -> None:
        x = torch.randn(16, 32, dtype=torch.bfloat16).requires_grad_()
        with self.engine.te.autocast(enabled=True, recipe=self.recipe):
            out = self.model(x, **options)
        out.float().pow(2).mean().backward()
        self.monitor.step()

    def finish(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        self.monitor.finish()
        head, *rows = [json.loads(line) for line in self._path.read_text().splitlines()]
        return head["run"], rows


@pytest.mark.parametrize("rounded", [False, True])
def test_cached_weights_give_scale_and_amax(engine: TransformerEngine, tmp_path: Path, rounded: bool) -> None:
    """Micro-batches that share the quantised weight keep it in the module."""
    model = engine.te.Linear(32, 64, bias=False, device="cpu", params_dtype=torch.bfloat16)
    recipe = engine.recipes.Float8CurrentScaling()
    weights = Weights(engine, model, recipe, tmp_path)
    weights.step()
    for step in range(1, 4):
        if rounded and step == 2:
            model._fp8_workspaces["weight"]._quantizer.force_pow_2_scales = True
        weights.step(is_first_microbatch=step == 1)
    run, rows = weights.finish()
    assert "model/weight" not in rows[0].get("tensors", {}), "without is_first_microbatch nothing is kept"
    assert "model/weight" not in rows[1].get("tensors", {}), "not a sampled step"
    stats = rows[2]["tensors"]["model/weight"]
    amax = float(model.weight.abs().max())
    assert stats["scale"] == pytest.approx(448 / amax, rel=1e-6)
    if rounded:
        assert "amax" not in stats, "a rounded scale gives only a bound"
    else:
        assert stats["amax"] == pytest.approx(amax, rel=1e-6)
    assert run["tensors"]["model/weight"]["format"] == "e4m3"


def test_quantised_parameters_give_their_scale(engine: TransformerEngine, tmp_path: Path) -> None:
    tensors: Any = importlib.import_module(f"{TENSORS}.float8_tensor")
    model = engine.te.Linear(32, 64, bias=False, device="cpu", params_dtype=torch.bfloat16)
    primary = tensors.Float8Tensor(
        shape=(64, 32),
        device="cpu",
        dtype=torch.bfloat16,
        data=torch.full((64, 32), 0x38, dtype=torch.uint8),
        fp8_scale_inv=torch.full((1,), 1 / 16),
        fp8_dtype=e4m3(),
        quantizer=None,
    )
    model.weight = torch.nn.Parameter(primary, requires_grad=False)
    path = tmp_path / "run.jsonl"
    monitor = floatscope.watch(model, run="w", mode="local", log_path=path, strict=True, gpu=False)
    monitor.step()
    monitor.finish()
    row = json.loads(path.read_text().splitlines()[1])
    assert row["tensors"]["model/weight"] == {"scale": 16.0}


def test_weights_of_experts_are_numbered_over_all_ranks(engine: TransformerEngine, tmp_path: Path) -> None:
    grouped = engine.te.GroupedLinear(2, 32, 16, bias=False, device="cpu", params_dtype=torch.bfloat16)
    path = tmp_path / "run.jsonl"
    monitor = floatscope.watch(
        grouped, run="w", mode="local", log_path=path, strict=True, gpu=False, coordinates={"ep": 3}
    )
    x = torch.randn(16, 32, dtype=torch.bfloat16).requires_grad_()
    with engine.te.autocast(enabled=True, recipe=engine.recipes.Float8CurrentScaling()):
        grouped(x, [6, 10], is_first_microbatch=True)
    monitor.step()
    monitor.finish()
    row = json.loads(path.read_text().splitlines()[1])
    scales = {name: stats["scale"] for name, stats in row["tensors"].items() if name.endswith("weight")}
    assert scales == {
        f"model.experts.{6 + i}/weight": pytest.approx(
            448 / float(getattr(grouped, f"weight{i}").abs().max())
        )
        for i in (0, 1)
    }


def test_fp8_parameters_train_under_inspection(engine: TransformerEngine, tmp_path: Path) -> None:
    """Their values before the cast do not exist, so of the weight there are scale and amax alone."""
    assert floatscope.te_debug(log_dir=tmp_path / "te")
    extension: Any = importlib.import_module("transformer_engine_torch")
    model = engine.te.Linear(32, 64, bias=False, device="cpu", params_dtype=torch.bfloat16)
    quantizer = engine.quantizers.Float8CurrentScalingQuantizer(
        extension.DType.kFloat8E4M3, device=torch.device("cpu")
    )
    amax = float(model.weight.detach().abs().max())
    model.weight = torch.nn.Parameter(quantizer(model.weight.detach()))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    path = tmp_path / "run.jsonl"
    monitor = floatscope.watch(
        model, optimizer, run="w", mode="local", log_path=path, strict=True, gpu=False, stats_every=1
    )
    x = torch.randn(16, 32, dtype=torch.bfloat16).requires_grad_()
    with engine.te.autocast(enabled=True, recipe=engine.recipes.Float8CurrentScaling()):
        out = model(x)
    out.float().pow(2).mean().backward()
    optimizer.step()
    monitor.step()
    monitor.finish()
    tensors = json.loads(path.read_text().splitlines()[1])["tensors"]
    assert tensors["model/weight"]["scale"] == pytest.approx(448 / amax)
    assert tensors["model/weight"]["amax"] == pytest.approx(amax)
    assert "sqnr_db" not in tensors["model/weight"]
    assert "sqnr_db" in tensors["model/input"]
    assert "sqnr_db" in tensors["model/grad_output"]
