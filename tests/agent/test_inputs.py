"""What a batch shows before it goes into the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from floatscope.probes.inputs import sort_tensors, vocabulary_of
from tests.agent.training import recording

IDS = torch.tensor([[1, 2, 3], [4, 5, 0]])


def facts(tmp_path: Path, *batches: Any, vocabulary: int = 6) -> dict[str, Any]:
    with recording(tmp_path, nn.Embedding(vocabulary, 2)) as found:
        for each in batches:
            found.monitor.batch(each)
        found.monitor.step()
    return {k: v for k, v in found.rows[0].items() if k.startswith(("input_", "label", "tokens"))}


def test_ids_and_labels(tmp_path: Path) -> None:
    labels = torch.tensor([[-100, 2, 3], [4, -100, 0]])
    found = facts(
        tmp_path, {"input_ids": IDS, "labels": labels, "attention_mask": torch.ones(2, 3, dtype=torch.int64)}
    )
    assert found == {
        "input_id_min": 0, "input_id_max": 5, "input_ids_out_of_range": 0, "label_tokens": 4, "tokens": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "low", "high", "count"), [(6, 0, 6, 1), (-1, -1, 5, 1), (2**40, 0, 2**40, 1)]
)
def test_ids_outside_the_vocabulary(tmp_path: Path, bad: int, low: int, high: int, count: int) -> None:
    ids = IDS.clone()
    ids[0, 0] = bad
    found = facts(tmp_path, ids)
    assert (found["input_id_min"], found["input_id_max"], found["input_ids_out_of_range"]) == (
        low,
        high,
        count,
    )


def test_all_labels_ignored_is_zero_and_not_missing(tmp_path: Path) -> None:
    assert facts(tmp_path, {"ids": IDS, "targets": torch.full((2, 3), -100)})["label_tokens"] == 0


def test_a_pair_of_integer_tensors_is_ids_and_labels(tmp_path: Path) -> None:
    found = facts(tmp_path, (IDS, torch.tensor([[-100, 1, 1], [1, 1, 1]])))
    assert (found["tokens"], found["label_tokens"], found["input_id_max"]) == (6, 5, 5)


def test_micro_batches_of_a_step_are_counted_together(tmp_path: Path) -> None:
    found = facts(tmp_path, {"x": IDS, "y": IDS}, {"x": IDS + 3, "label": IDS})
    assert (found["tokens"], found["input_id_min"], found["input_id_max"]) == (12, 0, 8)
    assert found["input_ids_out_of_range"] == 3
    assert found["label_tokens"] == 6


def test_float_inputs(tmp_path: Path) -> None:
    pixels = torch.randn(2, 3, 4, 4)
    assert facts(tmp_path, pixels) == {"input_nan_count": 0, "input_inf_count": 0}
    pixels[0, 0, 0, :2] = math.nan
    pixels[1, 0, 0, 0] = -math.inf
    assert facts(tmp_path, [pixels.half()]) == {"input_nan_count": 2, "input_inf_count": 1}
    large = torch.full((1000,), 3e38)  # its sum overflows, it is finite all the same
    assert facts(tmp_path, large) == {"input_nan_count": 0, "input_inf_count": 0}


def test_numpy_and_nesting(tmp_path: Path) -> None:
    found = facts(tmp_path, {"batch": {"tokens": IDS.numpy()}, "extra": [{"image": np.array([1.0, np.nan])}]})
    assert found["tokens"] == 6
    assert found["input_nan_count"] == 1


def test_values_given_by_the_loop_stay(tmp_path: Path) -> None:
    with recording(tmp_path, nn.Embedding(6, 2)) as found:
        found.monitor.batch(IDS)
        found.monitor.step(tokens=1000)
    assert found.rows[0]["tokens"] == 1000


@pytest.mark.parametrize(
    "batch",
    [
        None, 3, "text", object(), [], {}, [[[[[[IDS]]]]]], torch.empty(0), torch.tensor(True),
        torch.ones(2, dtype=torch.complex64), torch.empty(3, device="meta"), np.array(["a"]),
        {"input_ids": None}, {i: IDS for i in range(1000)}, torch.eye(3).to_sparse(), (x for x in [IDS]),
    ],
)  # fmt: skip
def test_batches_of_every_kind_do_no_harm(tmp_path: Path, batch: Any) -> None:
    facts(tmp_path, batch)


def test_a_mapping_that_holds_itself_ends() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    assert sort_tensors(endless) == ([], [], [])


def test_the_vocabulary_is_the_first_embedding() -> None:
    assert vocabulary_of(nn.Sequential(nn.Linear(2, 2), nn.Embedding(7, 2), nn.Embedding(9, 2))) == 7
    assert vocabulary_of(nn.Linear(2, 2)) is None
    assert vocabulary_of(None) is None


def test_without_a_vocabulary_nothing_is_out_of_range_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    with recording(tmp_path, nn.Linear(2, 2)) as found:
        found.monitor.batch(IDS)
        found.monitor.step()
    assert "input_ids_out_of_range" not in found.rows[0]
    with recording(tmp_path, nn.Linear(2, 2), vocab_size=3) as found:
        found.monitor.batch(IDS)
        found.monitor.step()
    assert found.rows[0]["input_ids_out_of_range"] == 3
