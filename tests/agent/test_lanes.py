"""Readings reach the host on a stream beside the training's, through buffers that are used in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from floatscope.probes.lanes import LEAST_VALUES, MAGIC, Lane, Lanes
from floatscope.probes.readout import Readout
from floatscope.rows import Row
from tests.agent.fake_cuda import FakeCuda

CPU = torch.device("cpu")


def vector(lane: Lane, *values: float) -> torch.Tensor:
    return torch.cat([torch.tensor(values, dtype=torch.float64), lane.end()])


def test_the_copy_waits_for_the_join_on_its_own_stream() -> None:
    """Joined on the main stream, copied on the side one, and the joined memory kept until it was read."""
    cuda = FakeCuda()
    lane = Lane(CPU, cuda)
    copy = lane.send(vector(lane, 1.0, 2.0))
    assert cuda.calls == [
        "event on main, current main", "side waits for main", "event on side, current side", "keep",
    ]  # fmt: skip
    assert not copy.is_done()
    cuda.finish()
    assert copy.is_done()
    assert copy.take().tolist() == [1.0, 2.0]


def test_a_buffer_is_reused_only_after_its_values_were_taken() -> None:
    """Steps in flight have buffers of their own; after them no further memory is pinned."""
    cuda = FakeCuda()
    lane = Lane(CPU, cuda)
    copies = [lane.send(vector(lane, float(k))) for k in range(3)]
    assert cuda.pinned_buffers == 3
    cuda.finish()
    first = copies[0].take()
    copies.append(lane.send(vector(lane, 3.0)))
    assert cuda.pinned_buffers == 3
    assert first.tolist() == [0.0], "what was taken does not change with the buffer's next use"
    cuda.finish()
    assert [copy.take().tolist() for copy in copies[1:]] == [[1.0], [2.0], [3.0]]
    for k in range(100):
        copy = lane.send(vector(lane, float(k)))
        cuda.finish()
        assert copy.take().tolist() == [float(k)]
    assert cuda.pinned_buffers == 3


def test_a_longer_vector_gets_a_larger_buffer() -> None:
    """A sampled step carries more; its buffer then serves all steps."""
    cuda = FakeCuda()
    lane = Lane(CPU, cuda)
    for count in (3, 5 * LEAST_VALUES, 3, 5 * LEAST_VALUES):
        copy = lane.send(vector(lane, *range(count)))
        cuda.finish()
        assert len(copy.take()) == count
    assert cuda.pinned_buffers == 2


@pytest.mark.parametrize("arrived", [True, False])
def test_of_a_dead_device_only_what_has_arrived_is_believed(arrived: bool) -> None:
    """A buffer's mark from an earlier step does not pass off the next step's values as arrived."""
    cuda = FakeCuda()
    lane = Lane(CPU, cuda)
    earlier = lane.send(vector(lane, 1.0))
    cuda.finish()
    earlier.take()
    later = lane.send(vector(lane, 2.0) if arrived else torch.zeros(2, dtype=torch.float64))
    for event in cuda.events:
        event.is_dead = True
    assert later.is_done() is arrived


def test_nothing_is_copied_while_a_graph_is_recorded() -> None:
    """The step's device readings are missing then; what is on the host already is delivered."""
    cuda = FakeCuda()
    cuda.capturing = True
    got: list[str] = []
    readout = Readout()
    readout._parts[torch.device("cuda:0")] = [(torch.ones(3), lambda values, row: got.append("device"))]
    readout.add_values([1.0], lambda values, row: got.append("host"))
    reading = readout.seal(Lanes(cuda))
    assert reading.is_ready()
    row = Row(0, 0.0)
    reading.deliver(row)
    for work in row.late:
        work(row)
    assert got == ["host"]
    assert not cuda.calls
    assert not cuda.pinned_buffers


def test_parts_of_different_dtypes_come_back_to_who_added_them() -> None:
    """Values of any dtype and shape arrive exactly, each at its consumer."""
    found: dict[str, NDArray[np.float64]] = {}

    def into(name: str) -> Any:
        return lambda values, row: found.__setitem__(name, values)

    cuda = FakeCuda()
    readout = Readout()
    parts = {
        "a": torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
        "b": torch.tensor(2**40 + 1),
        "c": torch.tensor([[0.1]], dtype=torch.float64),
        "d": torch.tensor([7], dtype=torch.int32),
        "e": torch.tensor([3.25], dtype=torch.bfloat16),
    }
    lanes = Lanes(cuda)
    lanes._lanes[torch.device("cuda:0")] = Lane(CPU, cuda)
    readout._parts[torch.device("cuda:0")] = [(t.reshape(-1), into(name)) for name, t in parts.items()]
    reading = readout.seal(lanes)
    assert not reading.is_ready()
    cuda.finish()
    assert reading.is_ready()
    row = Row(0, 0.0)
    reading.deliver(row)
    for work in row.late:
        work(row)
    assert {name: values.tolist() for name, values in found.items()} == {
        "a": [1.5, 2.5], "b": [2.0**40 + 1], "c": [0.1], "d": [7.0], "e": [3.25],
    }  # fmt: skip


@pytest.mark.gpu
def test_a_real_device_is_not_waited_for() -> None:
    """With synchronisation made an error, values of many steps arrive right and few buffers are pinned."""
    lanes = Lanes()
    got: list[float] = []
    readings = []
    x = torch.ones(2048, 2048, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(50):
            readout = Readout()
            for _ in range(4):
                x = x @ x.t() * 0 + step
            readout.add(x.amax(), lambda values, row: got.append(float(values[0])))
            readings.append(readout.seal(lanes))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    row = Row(0, 0.0)
    for reading in readings:
        assert reading.is_ready()
        reading.deliver(row)
    for work in row.late:
        work(row)
    assert got == [float(step) for step in range(50)]
    assert MAGIC not in got
