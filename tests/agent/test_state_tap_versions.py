"""FP8 state of several versions of Transformer Engine, in stand-ins made after their sources.

1.6: buffers on the class, a tensor struct with inverse scales, recipes that cannot be asked. 2.2: recipe
states and quantizers, current scaling with amax and scale on the quantizer. 2.9: the module ``quantization``.
2.15: buffers on an object that ``reset`` replaces. Operations of ``te.ops`` in all of 2.x.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from floatscope.catalog import Catalog
from floatscope.guard import Guard
from floatscope.probes.naming import CallOrder
from floatscope.probes.readout import Readout
from floatscope.probes.te_recipe import describe, other_recipes, recipe_name, recipe_of
from floatscope.probes.transformer_engine import StateTap
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Row
from tests.agent.training import Recording, recording

FP32_MAX = 3.4028234663852886e38
OLD_MODULE = "transformer_engine.pytorch.fp8"
NEW_MODULE = "transformer_engine.pytorch.quantization"


class DelayedScaling:
    """A recipe of 1.x: a dataclass that answers no questions."""

    def __init__(self) -> None:
        self.fp8_format = SimpleNamespace(name="HYBRID")
        self.margin, self.amax_history_len, self.amax_compute_algo, self.reduce_amax = 0, 1, "max", True


class Asked:
    """A recipe of 2.x; only questions of its version exist."""

    def __init__(self, kind: str, fmt: str = "HYBRID") -> None:
        self.fp8_format = SimpleNamespace(name=fmt)
        self.__dict__[kind] = lambda: True


class Buffers:
    """The global buffers, wherever a version keeps them."""

    def __init__(self) -> None:
        self.global_amax_buffer: dict[str, list[Tensor]] = {}
        self.global_amax_history_buffer: dict[str, list[Tensor]] = {}
        self.global_scale_buffer: dict[str, list[Tensor]] = {}


def make_manager(version: str) -> Any:
    """A class of the shape of ``FP8GlobalStateManager`` in that version, with its end of a pass."""

    class FP8GlobalStateManager:
        @classmethod
        def buffers(cls) -> Any:
            return getattr(cls, "quantization_state", cls)

        @classmethod
        def reset(cls) -> None:
            if version == "2.15":
                cls.quantization_state = Buffers()  # type: ignore[attr-defined]
            else:
                for name, value in vars(Buffers()).items():
                    setattr(cls, name, value)
                if version == "1.6":
                    cls.global_scale_inv_buffer = {}  # type: ignore[attr-defined]

        @classmethod
        def reduce_and_update_fp8_tensors(cls, forward: bool = True, fp8_weights: bool = False) -> None:
            prefix = "forward_" if forward else "backward_"
            for key, histories in cls.buffers().global_amax_history_buffer.items():
                if key.startswith(prefix):
                    for history, scale in zip(histories, cls.buffers().global_scale_buffer[key], strict=True):
                        amax = history.amax(0)
                        scale.copy_(torch.where((amax > 0) & amax.isfinite(), 448 / amax, scale))
                        history.copy_(torch.roll(history, -1, 0))
                        history[0].zero_()

        @classmethod
        def register(cls, metas: list[dict[str, Any]], key: str) -> None:
            """As ``add_fp8_tensors_to_global_buffer``: views of open rows; the meta gets where they stand."""
            for meta in metas:
                where: list[Any] = []
                for name, prefix in (("scaling_fwd", "forward_"), ("scaling_bwd", "backward_")):
                    if name not in meta:
                        continue
                    state, buffers = meta[name], cls.buffers()
                    buffers.global_amax_buffer.setdefault(prefix + key, []).append(state.amax_history[0])
                    buffers.global_amax_history_buffer.setdefault(prefix + key, []).append(state.amax_history)
                    buffers.global_scale_buffer.setdefault(prefix + key, []).append(state.scale)
                    if version == "1.6":
                        inverse = cls.global_scale_inv_buffer  # type: ignore[attr-defined]
                        inverse.setdefault(prefix + key, []).append(state.scale_inv)
                    where += [len(buffers.global_scale_buffer[prefix + key]) - 1, prefix + key]
                meta["buffer_index_and_autocast_key"] = where

    FP8GlobalStateManager.reset()
    return FP8GlobalStateManager


def state(columns: int, *, length: int = 4, version: str = "2.9") -> Any:
    made = SimpleNamespace(scale=torch.ones(columns), amax_history=torch.zeros(length, columns))
    if version == "1.6":  # tex.FP8TensorMeta
        made.scale_inv = torch.ones(columns)
    return made


class Linear(nn.Module):
    """An FP8 module of one GEMM."""

    def __init__(self, manager: Any, recipe: Any, *, version: str, length: int = 4, gemms: int = 1) -> None:
        super().__init__()
        self.fp8_meta: dict[str, Any] = {
            "num_gemms": gemms,
            "recipe": recipe,
            "scaling_fwd": state(3 * gemms, length=length, version=version),
            "scaling_bwd": state(2 * gemms, length=length, version=version),
        }
        manager.register([self.fp8_meta], "recipe=r,group=None")

    def cast(self, direction: str, *amaxes: float) -> None:
        """What a pass's kernels leave: the running maximum in the open row."""
        open_row = self.fp8_meta[f"scaling_{direction}"].amax_history[0]
        open_row.copy_(torch.fmax(open_row, torch.tensor(amaxes)))


class GroupedLinear(Linear):
    """Named as in the package, which the slots go by."""


class BasicLinear(nn.Module):
    """An operation of ``te.ops``: its state is per direction, with only the columns that it casts."""

    def __init__(self, manager: Any, recipe: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self._fp8_metas: Any = {
            "forward": {"recipe": recipe, "scaling_fwd": state(2)},
            "backward": {"recipe": recipe, "scaling_bwd": state(1)},
        }
        manager.register(list(self._fp8_metas.values()), "recipe=r,group=None")


@pytest.fixture(params=["1.6", "2.2", "2.9", "2.15"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manager(version: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The version's manager, where a process that uses it has it."""
    made = make_manager(version)
    for name in (OLD_MODULE, *((NEW_MODULE,) if version in ("2.9", "2.15") else ())):
        module: Any = ModuleType(name)
        module.FP8GlobalStateManager = made
        monkeypatch.setitem(sys.modules, name, module)
    return made


def recipe_for(version: str) -> Any:
    return DelayedScaling() if version == "1.6" else Asked("delayed")


def tensors(found: Recording, row: int) -> dict[str, dict[str, Any]]:
    return dict(found.rows[row].get("tensors", {}))


@pytest.mark.parametrize("length", [1, 4])
def test_amax_with_the_scale_that_was_used(tmp_path: Path, manager: Any, version: str, length: int) -> None:
    """Also with a history of one row, which is empty after the update."""
    model: Any = nn.Sequential(Linear(manager, recipe_for(version), version=version, length=length))
    with recording(tmp_path, model) as found:
        for step in range(3):
            model[0].cast("fwd", 2.0 + step, 1.0, 0.0)
            manager.reduce_and_update_fp8_tensors(forward=True)
            model[0].cast("bwd", 0.5, 0.0)
            manager.reduce_and_update_fp8_tensors(forward=False)
            found.monitor.step()
    first, second = tensors(found, 0), tensors(found, 1)
    assert set(first) == {"0/input", "0/weight", "0/grad_output"}
    assert first["0/input"] == {"amax": 2.0, "scale": 1.0}
    assert second["0/input"] == {"amax": 3.0, "scale": 224.0}
    assert second["0/grad_output"] == {"amax": 0.5, "scale": 896.0}
    assert found.run["recipe"]["name"] == "fp8_delayed_scaling"
    assert found.run["tensors"]["0/grad_output"]["format"] == "e5m2"


def test_a_reset_between_steps_is_followed(tmp_path: Path, manager: Any, version: str) -> None:
    """``reset`` empties or replaces the buffers, and modules register anew, perhaps at another place."""
    recipe = recipe_for(version)
    model: Any = nn.Sequential(
        Linear(manager, recipe, version=version), Linear(manager, recipe, version=version)
    )
    with recording(tmp_path, model) as found:
        model[0].cast("fwd", 1.0, 1.0, 0.0)
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
        manager.reset()
        for layer in (model[1], model[0]):
            manager.register([layer.fp8_meta], "recipe=r,group=None")
        model[0].cast("fwd", 7.0, 1.0, 0.0)
        model[1].cast("fwd", 9.0, 1.0, 0.0)
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
    assert tensors(found, 1)["0/input"]["amax"] == 7.0
    assert tensors(found, 1)["1/input"]["amax"] == 9.0


def test_micro_batches_and_values_that_freeze_a_scale(tmp_path: Path, manager: Any, version: str) -> None:
    """An infinity stays as it is, a scale at the largest float32 too, and the passes of a step become one."""
    model: Any = nn.Sequential(Linear(manager, recipe_for(version), version=version))
    with recording(tmp_path, model) as found:
        for amax in (1.0, float("inf"), 2.0):
            model[0].cast("fwd", amax, 1.0, 0.0)
            manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
        model[0].fp8_meta["scaling_fwd"].scale.fill_(FP32_MAX)
        model[0].cast("fwd", 1e-45, 1.0, 0.0)
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
    assert found.rows[0]["passes"] == 3
    assert tensors(found, 0)["0/input"]["amax"] == "Infinity"
    assert tensors(found, 1)["0/input"]["scale"] == FP32_MAX


def test_the_end_of_the_backward_pass_may_come_from_anywhere(
    tmp_path: Path, manager: Any, version: str
) -> None:
    """Versions call it in a module's backward, in a graphed backward or after the autograd task."""
    model: Any = nn.Sequential(Linear(manager, recipe_for(version), version=version))
    with recording(tmp_path, model) as found:
        model[0].cast("fwd", 1.0, 1.0, 0.0)
        manager.reduce_and_update_fp8_tensors(forward=True)
        model[0].cast("bwd", 3.0, 0.0)
        found.monitor.step()  # an end that came late belongs to the next step, and is not lost
        manager.reduce_and_update_fp8_tensors(forward=False)
        found.monitor.step()
    assert "0/grad_output" not in tensors(found, 0)
    assert tensors(found, 1)["0/grad_output"] == {"amax": 3.0, "scale": 1.0}


def test_operations_have_their_own_columns(tmp_path: Path, manager: Any, version: str) -> None:
    if version == "1.6":
        assert not hasattr(manager, "quantization_state")  # te.ops came with 2.0
        return
    recipe = recipe_for(version)
    model: Any = nn.Sequential(Linear(manager, recipe, version=version), BasicLinear(manager, recipe))
    with recording(tmp_path, model, layer_hooks=False) as found:
        model[1]._fp8_metas["forward"]["scaling_fwd"].amax_history[0].copy_(torch.tensor([4.0, 5.0]))
        model[1]._fp8_metas["backward"]["scaling_bwd"].amax_history[0].fill_(6.0)
        manager.reduce_and_update_fp8_tensors(forward=True)
        manager.reduce_and_update_fp8_tensors(forward=False)
        found.monitor.step()
    rows = tensors(found, 0)
    assert [rows[f"1/{role}"]["amax"] for role in ("input", "weight", "grad_output")] == [4.0, 5.0, 6.0]
    assert found.run["tensors"]["1/grad_output"]["format"] == "e5m2"


def test_experts_are_numbered_over_the_ranks(tmp_path: Path) -> None:
    manager = make_manager("2.9")
    grouped: Any = GroupedLinear(manager, Asked("delayed"), version="2.9", gemms=2)
    grouped.fp8_global_state = manager
    with recording(tmp_path, nn.ModuleDict({"moe": grouped}), coordinates={"ep": 3}) as found:
        grouped.cast("fwd", 1.0, 2.0, 0.0, 3.0, 4.0, 0.0)
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
    rows = tensors(found, 0)
    assert {name: stats["amax"] for name, stats in rows.items()} == {
        "moe.experts.6/input": 1.0,
        "moe.experts.6/weight": 2.0,
        "moe.experts.7/input": 3.0,
        "moe.experts.7/weight": 4.0,
    }


class CurrentLinear(nn.Module):
    """Current scaling of 2.2 to 2.15: amax and scale on the quantizer, made by ``torch.empty``."""

    def __init__(self, recipe: Any) -> None:
        super().__init__()
        self.fp8_meta: dict[str, Any] = {"num_gemms": 1, "recipe": recipe}

        def quantizers(count: int) -> list[Any]:
            return [
                SimpleNamespace(amax=torch.full((1,), -1e37), scale=torch.full((1,), 1e-44))
                for _ in range(count)
            ]

        self.quantizers = {"scaling_fwd": quantizers(3), "scaling_bwd": quantizers(2)}

    def cast(self, direction: str, index: int, amax: float) -> None:
        quantizer = self.quantizers[f"scaling_{direction}"][index]
        quantizer.amax.fill_(amax)
        quantizer.scale.fill_(448 / amax)


@pytest.mark.parametrize("version", ["2.2", "2.9", "2.15"], indirect=True)
def test_current_scaling_is_read_from_the_quantizers(tmp_path: Path, manager: Any, version: str) -> None:
    """What was never cast (outputs, grad_inputs, a backward pass that did not come) is not reported."""
    layer = CurrentLinear(Asked("float8_current_scaling"))
    with recording(tmp_path, nn.Sequential(layer), stats_every=100) as found:
        for amaxes in ([7.0], [1.0, 3.0, 2.0]):
            for amax in amaxes:
                layer.cast("fwd", 0, amax)
                layer.cast("fwd", 1, 1.0)
                manager.reduce_and_update_fp8_tensors(forward=True)
            if len(amaxes) > 1:
                layer.cast("bwd", 0, 0.5)
                manager.reduce_and_update_fp8_tensors(forward=False)
            found.monitor.step()
    assert tensors(found, 0) == {
        "0/input": {"amax": 7.0, "scale": 64.0}, "0/weight": {"amax": 1.0, "scale": 448.0}
    }  # fmt: skip
    assert tensors(found, 1)["0/input"] == {"amax": 3.0, "scale": 224.0}, "largest amax, last scale"
    assert tensors(found, 1)["0/grad_output"] == {"amax": 0.5, "scale": 896.0}
    assert found.run["tensors"]["0/grad_output"]["format"] == "e5m2"


def tap_of(manager: Any, model: nn.Module) -> StateTap:
    guard = Guard(strict=True)
    return StateTap(
        manager,
        {module: name or "model" for name, module in model.named_modules()},
        catalog=Catalog(RunInfo(name="x")),
        order=CallOrder(),
        area=guard.area("tap", loses="nothing"),
    )


def test_the_tap_never_waits_and_leaves_a_capture_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On stand-ins for tensors of a GPU, where looking at a value raises."""
    manager = make_manager("2.9")
    with FakeTensorMode():
        layer = Linear(manager, Asked("delayed"), version="2.9")
        buffers = manager.buffers()
        for found in (buffers.global_amax_buffer, buffers.global_scale_buffer):
            for key, kept in found.items():
                found[key] = [torch.empty(part.shape, device="cuda") for part in kept]
        tap = tap_of(manager, nn.Sequential(layer))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        for _ in range(2):
            tap._before(True)
        assert tap.has_readings
        assert tap.passes == 2
        readout, row = Readout(), Row(0, 0.0)
        tap.collect(readout, row)
        assert not readout.is_empty
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        tap._before(True)
        assert not tap.has_readings, "inside a graph nothing may be recorded by accident"


def test_what_most_layers_do_is_the_recipe_and_others_say_so() -> None:
    class Module(nn.Module):
        def __init__(self, recipe: Any) -> None:
            super().__init__()
            self.fp8_meta = {"recipe": recipe}

    mx, first = Asked("mxfp8", "E4M3"), Asked("delayed")
    layers: dict[Any, str] = {
        Module(mx): "a",
        Module(mx): "b",
        Module(first): "first",
        nn.LayerNorm(2): "norm",
    }
    assert recipe_of(layers)["name"] == "mxfp8"
    assert other_recipes(layers) == {"first": "fp8_delayed_scaling"}
    assert recipe_name(DelayedScaling()) == "fp8_delayed_scaling"
    assert describe(DelayedScaling())["amax_history_len"] == 1
