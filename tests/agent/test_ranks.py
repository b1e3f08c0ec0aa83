"""Where a rank stands, what its layers are called, and hashes of what it has in common with others.

Megatron, device meshes and DistributedDataParallel are stood in for by objects with their attributes; the
real ones, in processes, are in ``ranks/``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floatscope.config import MonitorConfig, from_env
from floatscope.probes.coordinates import Standing, standing_of
from floatscope.probes.naming import layers_of, parameters_of, weight_tensor
from tests.agent.training import recording, small_model, train


def config(**given: Any) -> MonitorConfig:
    return from_env({"run": "x", **given}, {})[0]


def megatron(monkeypatch: pytest.MonkeyPatch, ranks: dict[str, int], sizes: dict[str, int]) -> None:
    """A process in which megatron.core.parallel_state is imported and initialised."""
    names = {"dp": "data_parallel", "tp": "tensor_model_parallel", "pp": "pipeline_model_parallel",
             "cp": "context_parallel", "ep": "expert_model_parallel"}  # fmt: skip
    state: Any = ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: True
    for kind, name in names.items():
        if kind in ranks:
            setattr(state, f"get_{name}_rank", lambda kind=kind: ranks[kind])
            setattr(state, f"get_{name}_world_size", lambda kind=kind: sizes[kind])
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)


@dataclass(frozen=True)
class Mesh:
    """What a DeviceMesh says of itself."""

    mesh_dim_names: tuple[str, ...] | None
    sizes: tuple[int, ...]
    here: tuple[int, ...]
    root: Any = None

    def size(self, dim: int) -> int:
        return self.sizes[dim]

    def get_coordinate(self) -> list[int]:
        return list(self.here)

    def _get_root_mesh(self) -> Any:
        return self.root or self


class Placed(nn.Parameter):
    """What a DTensor says of itself."""

    device_mesh: Any
    placements: Sequence[Any]

    def to_local(self) -> Tensor:
        return self.data


def placed(mesh: Mesh, *placements: str) -> Any:
    parameter: Any = Placed(torch.ones(2, 2))
    parameter.device_mesh = mesh
    parameter.placements = tuple(
        SimpleNamespace(is_replicate=lambda p=p: p == "replicate") for p in placements
    )
    return parameter


def model_of(*parameters: Any) -> Any:
    model: Any = nn.Module()
    for index, parameter in enumerate(parameters):
        model.register_parameter(f"w{index}", parameter)
    return model


def test_what_the_user_says_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    megatron(monkeypatch, {"dp": 5}, {"dp": 8})
    found = standing_of(nn.Linear(1, 1), config(coordinates={"dp": 1, "pp": 0}))
    assert (found.coordinates, found.source) == ({"dp": 1, "pp": 0}, "given")
    assert found.is_split, "a pipeline dimension is named, so other ranks hold other layers"


def test_megatron_is_asked_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    megatron(monkeypatch, {"dp": 3, "tp": 1, "pp": 0}, {"dp": 4, "tp": 2, "pp": 1})
    found = standing_of(nn.Linear(1, 1), config())
    assert found.coordinates == {"dp": 3, "tp": 1, "pp": 0}
    assert found.is_split
    assert "megatron.core" not in sys.modules, "nothing is imported for it"


def test_meshes_of_parameters_are_read_with_the_mesh_they_were_cut_from() -> None:
    root = Mesh(("pp", "dp_replicate", "dp_shard", "tp"), (2, 2, 4, 2), (1, 1, 2, 0))
    part = Mesh(("dp_replicate", "dp_shard"), (2, 4), (1, 2), root)
    found = standing_of(model_of(placed(part, "replicate", "shard")), config())
    assert found.coordinates == {"pp": 1, "dp": 6, "tp": 0}
    assert found.sizes == {"pp": 2, "dp": 8, "tp": 2}
    assert standing_of(model_of(placed(Mesh(None, (4,), (2,)), "shard")), config()) == Standing()


def test_a_rank_that_nobody_places_writes_nothing(tmp_path: Path) -> None:
    assert standing_of(small_model(), config()) == Standing()
    model = small_model()
    with recording(tmp_path, model) as found:
        found.monitor.step(loss=1.0)
    assert not any(name.endswith("_rank") for name in found.rows[0])


def test_coordinates_stand_in_every_row_and_in_the_description(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer, coordinates={"dp": 1, "tp": 3}, rank=7) as found:
        train(model, optimizer, found.monitor, steps=2)
    assert [(row["dp_rank"], row["tp_rank"]) for row in found.rows] == [(1, 3)] * 2
    assert found.run["config"]["place"] == {"rank": 7, "dp": 1, "tp": 3, "said_by": "given"}
    assert found.run["config"]["agent"]["host"]
    assert "local_grad_norm" in found.rows[0], "other ranks hold other weights"


@pytest.mark.parametrize("wrong", [{"xp": 1}, {"dp": -1}, {"dp": 1.0}, {"dp": True}, [1]])
def test_coordinates_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="coordinates: expected whole numbers"):
        config(coordinates=wrong)


def test_coordinates_may_come_from_the_environment() -> None:
    found, said = from_env({"run": "x"}, {"FLOATSCOPE_COORDINATES": "dp=3, tp=1"})
    assert (found.coordinates, said) == ({"dp": 3, "tp": 1}, [])
    found, said = from_env({"run": "x"}, {"FLOATSCOPE_COORDINATES": "dp3"})
    assert found.coordinates == {}
    assert "FLOATSCOPE_COORDINATES" in said[0]


class TransformerLayer(nn.Module):
    """As Megatron's: it knows its number in the whole model, from 1."""

    def __init__(self, number: Any) -> None:
        super().__init__()
        self.layer_number = number
        self.fc = nn.Linear(2, 2, bias=False)


class Stage(nn.Module):
    """One rank's part, or one chunk of it, of a pipeline."""

    def __init__(self, *numbers: Any, ends: bool = False) -> None:
        super().__init__()
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList([TransformerLayer(number) for number in numbers])
        if ends:
            self.decoder.norm = nn.LayerNorm(2, bias=False)
        else:
            self.embedding = nn.Embedding(2, 2)


class Wrapped(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def names(model: Any, **options: Any) -> list[str]:
    return [name for name, _ in parameters_of(model, **options)]


def test_layers_of_a_pipeline_stage_have_their_numbers_in_the_whole_model() -> None:
    expected = ["decoder.layers.6.fc.weight", "decoder.layers.7.fc.weight", "embedding.weight"]
    assert names(Stage(7, 8)) == expected
    assert names([Wrapped(Wrapped(Stage(7, 8)))]) == expected
    layers = layers_of(Wrapped(Stage(7, 8)), refuse=lambda why: None).values()
    assert "decoder.layers.7.fc" in layers
    assert "decoder.layers.0.fc" not in layers


def test_chunks_of_a_virtual_pipeline_do_not_collide() -> None:
    chunks = [Wrapped(Stage(1, 2)), Wrapped(Stage(5, 6, ends=True))]
    assert names(chunks) == [
        "decoder.layers.0.fc.weight", "decoder.layers.1.fc.weight", "embedding.weight",
        "decoder.layers.4.fc.weight", "decoder.layers.5.fc.weight", "decoder.norm.weight",
    ]  # fmt: skip
    layers = layers_of(chunks, refuse=lambda why: None)
    with_weights = [layer for module, layer in layers.items() if module._parameters]
    assert len(set(with_weights)) == len(with_weights)


@pytest.mark.parametrize("numbers", [(1, 1), (0, 1), (None, None), ("1", "2")])
def test_numbers_that_are_no_global_ones_change_nothing(numbers: tuple[Any, Any]) -> None:
    plain = ["decoder.layers.0.fc.weight", "decoder.layers.1.fc.weight", "embedding.weight"]
    assert names(Stage(*numbers)) == plain
    both = [f"{chunk}.{name}" for chunk in (0, 1) for name in plain]
    assert names([Stage(*numbers), Stage(*numbers)]) == both


def test_a_layer_of_another_package_keeps_its_name_whatever_it_counts() -> None:
    class Block(nn.Linear):
        layer_number = 9

    assert names(nn.ModuleDict({"h": nn.ModuleList([Block(1, 1, bias=False)])})) == ["h.0.weight"]


def test_layer_offset_is_added_to_the_first_number() -> None:
    model = nn.ModuleDict({"h": nn.ModuleList([nn.Sequential(nn.Linear(1, 1, bias=False))])})
    assert names(model, layer_offset=12) == ["h.12.0.weight"]


def test_experts_side_by_side_have_their_global_numbers() -> None:
    class GroupedLinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_gemms = 4
            for index in range(4):
                self.register_parameter(f"weight{index}", nn.Parameter(torch.ones(2, 2)))

    model = nn.ModuleDict({"experts_fc1": GroupedLinear()})
    found = [weight_tensor(name, p) for name, p in parameters_of(model, ep_rank=2)]
    assert found == [f"experts_fc1.experts.{n}/weight" for n in (8, 9, 10, 11)]


def test_elements_that_several_ranks_hold_count_once_over_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor parallel by Megatron: a split weight, a replicated one, a copy that another stage counts."""
    megatron(monkeypatch, {"dp": 0, "tp": 0, "pp": 0}, {"dp": 3, "tp": 2, "pp": 2})
    model: Any = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
    for layer, is_split in zip(model, (True, False, True), strict=True):
        layer.weight.tensor_model_parallel = is_split
    model[2].weight.shared = True
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with recording(tmp_path, model, optimizer, layer_hooks=False) as found:
        for layer in model:
            layer.weight.grad = torch.ones(4, 4)
        optimizer.step()
        found.monitor.step()
    own = found.rows[0]["local_grad_norm"] ** 2
    assert own == pytest.approx(16 / 3 + 16 / 6 + 0)
    assert {name: stats.get("replicas") for name, stats in found.run["tensors"].items()} == {
        "0/weight": 3, "1/weight": 6, "2/weight": 0,
    }  # fmt: skip
    assert found.tensors(0, "grad_norm") == dict.fromkeys(("0/weight", "1/weight", "2/weight"), 4.0)


@pytest.mark.parametrize("tp", [1, 2])
def test_megatron_s_weights_are_whole_where_no_other_rank_has_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tp: int
) -> None:
    megatron(monkeypatch, {"dp": 0, "tp": 0}, {"dp": 2, "tp": tp})
    model: Any = nn.Linear(2, 2, bias=False)
    model.weight.tensor_model_parallel = True  # Megatron marks its layers so whatever the size
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with recording(tmp_path, model, optimizer, layer_hooks=False) as found:
        model.weight.grad = torch.ones(2, 2)
        optimizer.step()
        found.monitor.step()
    assert ("grad_norm" in found.rows[0]) == (tp == 1)
    if tp == 1:
        assert found.rows[0]["grad_norm"] == pytest.approx(2.0)


def test_only_the_first_rank_speaks(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG, "floatscope")
    for rank in (0, 1):
        caplog.clear()
        (tmp_path / str(rank)).mkdir()
        with recording(tmp_path / str(rank), small_model(), object(), rank=rank) as found:
            found.monitor.step(loss=1.0)
        levels = {record.levelno for record in caplog.records if "not a torch optimizer" in record.message}
        assert levels == {logging.WARNING if rank == 0 else logging.DEBUG}
        assert bool(capfd.readouterr().err.count("run.jsonl")) == (rank == 0)
