"""Hashes of what a rank has in common with others: exact, and only of what others ought to hold as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floatscope.probes.coordinates import Standing
from floatscope.probes.hashes import comparable, hash_of
from tests.agent.test_ranks import Mesh, Wrapped, model_of, placed
from tests.agent.test_state_tap import Layer, Recipe, make_manager
from tests.agent.training import backward, batch, loss_of, recording, small_model, train


def bits_of_everything() -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(70, 1000), torch.randn(7), torch.randn(5).bfloat16(), torch.randn(3).double(),
        torch.randn(2, dtype=torch.complex64), torch.randint(0, 9, (4,)), torch.tensor(1.0),
        torch.randn(8, 6).t(), torch.randn(9).to(torch.float8_e4m3fn), torch.randn(9)[1:],
    ]  # fmt: skip


def hashed(tensors: Sequence[Tensor]) -> int:
    return int(hash_of(tensors))


def test_equal_bits_have_equal_hashes_and_one_bit_changes_them() -> None:
    tensors = bits_of_everything()
    expected = hashed(tensors)
    assert hashed([tensor.clone() for tensor in tensors]) == expected
    assert 0 <= expected < 2**53
    assert float(expected) == expected
    seen = {expected}
    for index in range(len(tensors)):
        for bit in (0, 7):
            changed = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
            flat = changed[index].view(-1) if changed[index].dim() else changed[index].view(1)
            flat.view(torch.uint8)[-1 - bit // 8] ^= 1 << bit
            seen.add(hashed(changed))
    assert len(seen) == 1 + 2 * len(tensors)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[0, [0, 1]].flip(0),
        lambda t: torch.tensor([math.nan, math.nan]),
        lambda t: -t[0, :2],
        lambda t: torch.tensor([0.0, 0.0]),
    ],
    ids=["two elements change places", "nan", "sign", "zero"],
)
def test_small_changes_are_seen(change: Callable[[Tensor], Tensor]) -> None:
    one = torch.randn(40, 40)
    other = one.clone()
    other[0, :2] = change(one)
    assert hashed([one]) != hashed([other])
    assert hashed([other]) == hashed([other.clone()]), "a NaN equals itself, bit for bit"


def test_the_sign_of_zero_and_the_payload_of_a_nan_count() -> None:
    zero, nan = torch.zeros(3), torch.full((3,), math.nan)
    other = nan.clone()
    other.view(torch.int32)[0] ^= 1
    assert bool(other.isnan().all())
    assert hashed([zero]) != hashed([-zero])
    assert hashed([nan]) != hashed([other])


def test_tensors_that_change_places_are_seen() -> None:
    one, two = torch.randn(300, 300), torch.randn(300, 300)
    assert hashed([one, two]) != hashed([two, one])


def test_only_what_other_ranks_hold_as_well_is_compared() -> None:
    mesh = Mesh(("dp", "tp"), (2, 2), (0, 1))
    replicated, split = placed(mesh, "replicate", "replicate"), placed(mesh, "replicate", "shard")
    sharded, plain = placed(mesh, "shard", "replicate"), nn.Parameter(torch.ones(1))
    expert: Any = nn.Parameter(torch.ones(3))
    expert.allreduce = False
    zero_3: Any = nn.Parameter(torch.ones(4))
    zero_3.ds_id = 1
    model = model_of(replicated, split, sharded, plain, expert, zero_3)

    def sizes(**coordinates: int) -> list[int]:
        return [tensor.numel() for tensor in comparable(model, Standing(coordinates))]

    assert sizes(tp=1) == [4, 4, 1]
    assert sizes() == [4, 1], "without a coordinate nobody knows who holds the same part"
    assert sizes(ep=0) == [4, 1, 3]
    flat: Any = type("FullyShardedDataParallel", (Wrapped,), {})(nn.Linear(2, 2))
    flat.sharding_strategy = SimpleNamespace(name="FULL_SHARD")
    assert comparable(flat, Standing()) == []
    flat.sharding_strategy = SimpleNamespace(name="NO_SHARD")
    assert len(comparable(flat, Standing())) == 2
    assert comparable(nn.Linear(2, 2, device="meta"), Standing()) == []
    assert comparable(nn.LazyLinear(2), Standing()) == [], "not made yet"


def test_hashes_come_on_sampled_steps_of_a_job_with_several_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    rows = []
    for index, change in enumerate((False, True)):
        model = small_model()
        if change:
            with torch.no_grad():
                model[4].bias[0] += 1e-3
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        (tmp_path / str(index)).mkdir()
        with recording(tmp_path / str(index), model, optimizer, stats_every=2) as found:
            train(model, optimizer, found.monitor, steps=4)
        rows.append(found.rows)
    has = ["param_hash" in row for row in rows[0]]
    assert has == ["param_norm" in row for row in rows[0]]
    assert any(has)
    hashes = [[row["param_hash"] for row in found if "param_hash" in row] for found in rows]
    assert all(one != other for one, other in zip(*hashes, strict=True))
    monkeypatch.setenv("WORLD_SIZE", "1")
    with recording(tmp_path, small_model()) as found:
        found.monitor.step(loss=1.0)
    assert "param_hash" not in found.rows[0], "there is nobody to compare with"


def test_steps_of_a_closer_look_are_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights are read for a hash: every n-th step, the same on all ranks, whatever is wrong on one."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer, stats_every=4) as found:
        for step in range(8):
            backward(loss_of(model, batch(step)))
            optimizer.step()
            found.monitor.step(loss=math.nan)  # has the next steps measured in full
    assert ["param_norm" in row for row in found.rows] == [True] * 8
    assert ["param_hash" in row for row in found.rows] == [step % 4 == 0 for step in range(8)]


@pytest.mark.parametrize("as_object", [True, False])
def test_scales_that_ranks_share_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_object: bool
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")

    def run(name: str, value: float, **recipe: Any) -> Any:
        manager = make_manager(as_object=as_object)
        model: Any = nn.ModuleDict({"a": Layer(manager, recipe=Recipe("delayed", **recipe))})
        model["a"].bwd_scale[0] = value
        (tmp_path / name).mkdir()
        with recording(tmp_path / name, model) as found:
            found.monitor.step(loss=1.0)
        return found.rows[0].get("scale_hash")

    assert run("one", 2.0) == run("same", 2.0) != run("other", math.nextafter(2.0, 3.0) * 1.5)
    assert run("nan", math.nan) == run("nan again", math.nan) != run("two", 2.0)
    assert run("fresh", 1.0) is None, "nothing has set a scale yet"
    assert run("own", 2.0, reduce_amax=False) is None, "each rank scales by what it holds"
