"""Histograms of exponents: counted from bits, the same on every path, and carried to log and wire."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from floatscope.probes.exponents import LOWEST_EXPONENT, count_on_cpu, count_on_device, exponents
from floatscope.protocol.names import HIST_BINS
from floatscope.protocol.wire_safetensors import decode, encode
from floatscope.rows import Block, Columns, Histograms, Row, table_of

SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 1e-38, 3e38, 2.0**-40, 2.0**-41, 2.0**24, 1.0)


def by_definition(x: Tensor) -> list[int]:
    """One value after the other."""
    counts = [0] * HIST_BINS
    for value in x.double().flatten().tolist():
        if value and math.isfinite(value):
            exponent = math.frexp(abs(value))[1] - 1
            counts[min(max(exponent - LOWEST_EXPONENT, 0), HIST_BINS - 1)] += 1
    return counts


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.floats(width=32), st.sampled_from(SPECIAL)), min_size=1, max_size=50),
    st.sampled_from((torch.float64, torch.float32, torch.bfloat16, torch.float16)),
)
def test_every_finite_value_is_counted_at_its_exponent(values: list[float], dtype: torch.dtype) -> None:
    """For every dtype the histogram is what its definition says; zeros, NaN and infinity are in no bin."""
    x = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert exponents(x).tolist() == by_definition(x)


def test_a_device_counts_the_same() -> None:
    """Adding into places beside each other gives what bincount gives."""
    bins = torch.randint(0, HIST_BINS, (5000,), generator=torch.Generator().manual_seed(0))
    for dtype in (torch.int16, torch.int32, torch.int64):
        assert torch.equal(count_on_device(bins.to(dtype)), count_on_cpu(bins))


def histogram(**places: int) -> np.ndarray:
    counts = np.zeros((1, HIST_BINS), np.uint32)
    for place, count in places.items():
        counts[0, int(place[1:])] = count
    return counts


def test_histograms_travel_in_columns_and_on_the_wire() -> None:
    """A step may carry histograms of a few tensors; others and other steps have none."""
    columns = Columns()
    rows = [Row(step, 0.0) for step in range(3)]
    rows[0].blocks.append(Block(("a", "b"), {"amax": np.ones(2, np.float32)}))
    rows[1].histograms.append(Histograms(("b",), histogram(_3=7)))
    rows[2].histograms += [Histograms(("c",), histogram(_0=2**32 - 1)), Histograms(("a",), histogram(_63=1))]
    batch = columns.batch(rows)
    assert batch.tensor_names == ("a", "b", "c")
    assert batch.hist_row.tolist() == [1, 2]
    table = table_of(batch, {})
    back, _ = decode(encode(batch, table, with_table=True), find_table=lambda digest: None)
    assert back.hist_log2.tobytes() == batch.hist_log2.tobytes()
    assert back.hist_log2[0, 1, 3] == 7
    assert back.hist_log2[1, 2, 0] == 2**32 - 1
    assert back.hist_log2.sum(dtype=np.uint64) == 7 + 2**32 - 1 + 1


def test_rows_with_histograms_make_smaller_batches() -> None:
    """The size of a batch is known before it is made, also where every step carries histograms."""
    names = tuple(f"layer{k}/input" for k in range(1000))
    plain = [Row(step, 0.0, {"loss": 1.0}) for step in range(100)]
    wide = [
        Row(step, 0.0, histograms=[Histograms(names, np.ones((1000, 64), np.uint32))]) for step in range(100)
    ]
    columns = Columns()
    assert columns.fitting(plain, 10 * 2**20) == 100
    count = columns.fitting(wide, 10 * 2**20)
    assert count == 10 * 2**20 // (1000 * 256)
    assert columns.batch(wide[:count]).hist_log2.nbytes <= 10 * 2**20
    assert columns.fitting(wide, 1) == 1
    assert wide[0].nbytes > 256_000
