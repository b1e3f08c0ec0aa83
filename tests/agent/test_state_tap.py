"""The state tap against stand-ins for managers of other versions of Transformer Engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from floatscope.probes.patch import Patch
from floatscope.probes.te_recipe import describe, format_names, recipe_name
from floatscope.probes.te_slots import slots_of
from tests.agent.training import Recording, recording

HYBRID = SimpleNamespace(name="HYBRID")


class Recipe:
    """A recipe that answers only the questions of its version."""

    def __init__(self, kind: str, **settings: Any) -> None:
        self.fp8_format = HYBRID
        self.__dict__.update(settings)
        setattr(self, kind, lambda: True)


def make_manager(*, as_object: bool) -> Any:
    """A manager class with buffers on itself (before 2.15) or on an object (since)."""

    class Manager:
        calls: list[tuple[Any, ...]] = []  # noqa: RUF012 - shared by the class, as in the original

        @classmethod
        def reduce_and_update_fp8_tensors(cls, forward: bool = True, fp8_weights: bool = False) -> str:
            cls.calls.append((forward, fp8_weights))
            return "original"

    state: Any = SimpleNamespace() if as_object else Manager
    state.global_amax_buffer, state.global_scale_buffer = {}, {}
    manager: Any = Manager
    if as_object:
        manager.quantization_state = state
    return manager


class Layer(nn.Module):
    """An FP8 module with one GEMM registered at a manager."""

    def __init__(self, manager: Any, *, gemms: int = 1, recipe: Any = None) -> None:
        super().__init__()
        self.fp8_global_state = manager
        self.fwd_amax, self.fwd_scale = torch.zeros(3 * gemms), torch.ones(3 * gemms)
        self.bwd_amax, self.bwd_scale = torch.zeros(2 * gemms), torch.ones(2 * gemms)
        self.fp8_meta: dict[str, Any] = {"num_gemms": gemms, "recipe": recipe or Recipe("delayed")}
        state = getattr(manager, "quantization_state", manager)
        where: list[Any] = []
        for key, amax, scale in (
            ("forward_k", self.fwd_amax, self.fwd_scale),
            ("backward_k", self.bwd_amax, self.bwd_scale),
        ):
            state.global_amax_buffer.setdefault(key, []).append(amax)
            state.global_scale_buffer.setdefault(key, []).append(scale)
            where += [len(state.global_amax_buffer[key]) - 1, key]
        self.fp8_meta["buffer_index_and_autocast_key"] = where


def tensors(found: Recording, row: int) -> dict[str, dict[str, float]]:
    return dict(found.rows[row].get("tensors", {}))


@pytest.mark.parametrize("as_object", [True, False])
def test_buffers_on_the_class_and_on_an_object(tmp_path: Path, as_object: bool) -> None:
    manager = make_manager(as_object=as_object)
    model: Any = nn.ModuleDict({"a": Layer(manager), "b": Layer(manager)})
    with recording(tmp_path, model) as found:
        model["a"].fwd_amax.copy_(torch.tensor([2.0, 3.0, 0.0]))
        model["b"].fwd_scale.copy_(torch.tensor([8.0, 16.0, 1.0]))
        assert manager.reduce_and_update_fp8_tensors(forward=True) == "original"
        model["b"].bwd_amax.copy_(torch.tensor([0.5, 0.0]))
        manager.reduce_and_update_fp8_tensors(False, fp8_weights=True)
        found.monitor.step()
    assert manager.calls == [(True, False), (False, True)]
    rows = tensors(found, 0)
    assert rows["a/input"] == {"amax": 2.0, "scale": 1.0}
    assert rows["a/weight"] == {"amax": 3.0, "scale": 1.0}
    assert rows["b/input"] == {"amax": 0.0, "scale": 8.0}
    assert rows["b/grad_output"] == {"amax": 0.5, "scale": 1.0}
    assert "a/output" not in rows
    assert "b/grad_input" not in rows
    assert found.run["tensors"]["b/grad_output"]["format"] == "e5m2"


def test_optional_slots_are_reported_once_they_are_used(tmp_path: Path) -> None:
    manager = make_manager(as_object=True)
    model: Any = nn.ModuleDict({"a": Layer(manager)})
    with recording(tmp_path, model) as found:
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
        model["a"].fwd_amax[2] = 7.0
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
    assert "a/output" not in tensors(found, 0)
    assert tensors(found, 1)["a/output"] == {"amax": 7.0, "scale": 1.0}
    assert found.run["tensors"]["a/output"]["format"] == "e4m3"


def test_a_step_without_a_pass_reports_nothing(tmp_path: Path) -> None:
    manager = make_manager(as_object=True)
    with recording(tmp_path, nn.ModuleDict({"a": Layer(manager)})) as found:
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
        found.monitor.step()
    assert tensors(found, 0)
    assert not tensors(found, 1)


def test_a_module_that_joins_later_is_found(tmp_path: Path) -> None:
    manager = make_manager(as_object=True)
    first, second = Layer(manager), nn.Linear(1, 1)
    model = nn.ModuleDict({"a": first, "b": second})
    late: Any = second
    with recording(tmp_path, model, layer_hooks=False) as found:
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
        joined = Layer(manager)
        late.fp8_meta = joined.fp8_meta
        joined.fwd_amax[0] = 4.0
        manager.reduce_and_update_fp8_tensors()
        found.monitor.step()
    assert "b/input" not in tensors(found, 0)
    assert tensors(found, 1)["b/input"]["amax"] == 4.0


def test_a_failing_tap_does_not_reach_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = make_manager(as_object=True)
    model = nn.ModuleDict({"a": Layer(manager)})
    with recording(tmp_path, model, strict=False) as found:
        manager.quantization_state.global_scale_buffer["forward_k"] = "nonsense"
        for _ in range(30):
            assert manager.reduce_and_update_fp8_tensors() == "original"
            found.monitor.step(loss=1.0)
    assert len(found.rows) == 30
    said = [r.getMessage() for r in caplog.records]
    assert sum("FP8 state tap failed" in text for text in said) == 2, (
        "once at first, once when it is given up"
    )


def test_patches_come_and_go_in_any_order() -> None:
    class Owner:
        @classmethod
        def work(cls, x: int) -> int:
            return x + 1

    class Child(Owner):
        pass

    seen: list[tuple[str, int]] = []
    for owner in (Owner, Child):
        original = owner.__dict__.get("work")
        seen.clear()
        one = Patch(owner, "work", before=lambda x: seen.append(("one", x)))
        two = Patch(owner, "work", before=lambda x: seen.append(("two", x)))
        assert owner.work(1) == 2
        one.remove()
        assert owner.work(2) == 3
        one.remove()
        two.remove()
        assert owner.work(3) == 4
        assert seen == [("one", 1), ("two", 1), ("two", 2)]
        assert owner.__dict__.get("work") is original


def test_a_patch_below_somebody_elses_stays_as_a_pass_through() -> None:
    class Owner:
        @classmethod
        def work(cls) -> str:
            return "original"

    calls: list[str] = []
    patch = Patch(Owner, "work", before=lambda: calls.append("ours"))
    below = Owner.__dict__["work"]

    def theirs(cls: type) -> str:
        calls.append("theirs")
        return str(below.__func__(cls))

    Owner.work = classmethod(theirs)  # type: ignore[assignment,method-assign]
    patch.remove()
    assert Owner.work() == "original"
    assert calls == ["theirs"]


@pytest.mark.parametrize(
    ("kind", "name", "formats"),
    [
        ("delayed", "fp8_delayed_scaling", ("e4m3", "e5m2")),
        ("float8_current_scaling", "fp8_current_scaling", ("e4m3", "e5m2")),
        ("float8_block_scaling", "fp8_block_scaling", ("e4m3", "e5m2")),
        ("mxfp8", "mxfp8", ("mxfp8_e4m3", "mxfp8_e5m2")),
        ("nvfp4", "nvfp4", ("nvfp4", "nvfp4")),
        ("anything", "custom", ("e4m3", "e5m2")),
    ],
)
def test_recipes_in_the_protocols_words(kind: str, name: str, formats: tuple[str, str]) -> None:
    recipe = Recipe(kind)
    assert recipe_name(recipe) == name
    assert format_names(recipe) == formats


def test_a_recipes_settings() -> None:
    recipe = Recipe("delayed", margin=1, amax_history_len=16, amax_compute_algo=max, reduce_amax=False)
    assert describe(recipe) == {
        "name": "fp8_delayed_scaling", "fp8_format": "HYBRID", "margin": 1, "amax_history_len": 16,
        "amax_compute_algo": "custom", "reduce_amax": False,
    }  # fmt: skip
    assert describe(object()) == {"name": "custom"}
    assert format_names(object()) == (None, None)


def module(name: str, gemms: int, **attributes: Any) -> Any:
    made = type(name, (), {})()
    made.fp8_meta = {"num_gemms": gemms}
    made.__dict__.update(attributes)
    return made


@pytest.mark.parametrize(
    ("made", "forward", "expected"),
    [
        (module("Linear", 1), True, ["x/input", "x/weight", "x/output"]),
        (module("Linear", 1), False, ["x/grad_output", "x/grad_input"]),
        (
            module("LayerNormMLP", 2),
            True,
            ["x.fc1/input", "x.fc1/weight", "x.fc1/output", "x.fc2/input", "x.fc2/weight", "x.fc2/output"],
        ),
        (
            module("LayerNormMLP", 2),
            False,
            ["x.fc1/grad_output", "x.fc1/grad_input", "x.fc2/grad_output", "x.fc2/grad_input"],
        ),
        (
            module("GroupedLinear", 2, _offsets={"input": 0, "weight": 1, "output": 2}),
            True,
            [f"x.experts.{i}/{role}" for i in (0, 1) for role in ("input", "weight", "output")],
        ),
        (
            module("GroupedLinear", 2, _offsets={"input": 0, "weight": 2, "output": 4}),
            True,
            [f"x.experts.{i}/{role}" for role in ("input", "weight", "output") for i in (0, 1)],
        ),
    ],
)
def test_slots_in_their_order(made: Any, forward: bool, expected: list[str]) -> None:
    slots = slots_of(made, "x", forward=forward, count=len(expected))
    assert [slots[i].name for i in range(len(expected))] == expected


def test_attention_slots() -> None:
    attention = module("DotProductAttention", 3)
    forward = slots_of(attention, "attn", forward=True, count=9)
    backward = slots_of(attention, "attn", forward=False, count=6)
    assert {i: slot.name for i, slot in forward.items()} == {
        2: "attn.qkv/output", 3: "attn.o/output", 8: "attn.s/output"
    }  # fmt: skip
    assert {i: slot.name for i, slot in backward.items()} == {
        0: "attn.qkv/grad_output", 3: "attn.o/grad_output", 5: "attn.s/grad_output"
    }  # fmt: skip
