"""Several ranks from one trained run: what the diagnosis says of them, whatever the order they arrive in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from benchmarks.diagnosis.rank_views import RANKS, ranks_of, scales_of_own_amax, weights_part
from floatscope.protocol.batch import Batch
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from tests.diagnostics.synthetic import Run

STEPS, FAULT = 192, 120


def recipe_run(name: str) -> tuple[RunInfo, Batch]:
    """A healthy run under delayed scaling, or one whose scales follow from each tensor itself."""
    run = Run(steps=STEPS)
    info, batch = RunInfo.from_json(run.info()), batch_from_rows(list(run.rows()))
    if name == "fp8_delayed_scaling":
        return info, batch
    own = {t: {k: v for k, v in facts.items() if k != "recipe"} for t, facts in info.tensors.items()}
    limit = np.array([57344.0 if own[t]["format"] == "e5m2" else 448.0 for t in batch.tensor_names])
    stats = dict(batch.stats)
    stats["scale"] = np.where(batch.stat("scale")[1], limit / stats["amax"], 0.0).astype(np.float32)
    current = Batch(**{**{f: getattr(batch, f) for f in batch.__dataclass_fields__}, "stats": stats})
    return RunInfo(name=info.name, recipe={"name": name}, tensors=own), current


def findings(info: RunInfo, ranks: dict[int, Batch], *, size: int, order: Iterable[int]) -> Any:
    """The verdict's findings when every rank sends ``size`` steps at a time, in the given order of ranks."""
    engine = Engine(info)
    for start in range(0, STEPS, size):
        for rank in order:
            engine.feed(ranks[rank].rows(start, min(start + size, STEPS)), rank=rank)
    return engine.verdict().to_json()["findings"]


@pytest.mark.parametrize("declared", [None, RANKS])
@pytest.mark.parametrize("recipe", ["fp8_delayed_scaling", "fp8_current_scaling"])
def test_healthy_ranks_are_silent(recipe: str, declared: int | None) -> None:
    info, batch = recipe_run(recipe)
    ranks = ranks_of(batch, seed=3, recipe={"name": recipe})
    given = RunInfo.from_json({**info.to_json(), "ranks": declared})
    assert findings(given, ranks, size=64, order=range(RANKS)) == []


@pytest.mark.parametrize("declared", [None, RANKS])
@pytest.mark.parametrize("view", [weights_part(per_step=0.01), scales_of_own_amax])
def test_the_order_of_ranks_and_the_size_of_batches_change_nothing(view: Any, declared: int | None) -> None:
    info, batch = recipe_run("fp8_delayed_scaling")
    recipe = {**info.recipe}
    ranks = dict(view(ranks_of(batch, seed=3, recipe=recipe), FAULT, recipe))
    given = RunInfo.from_json({**info.to_json(), "ranks": declared})
    first = findings(given, ranks, size=64, order=range(RANKS))
    assert first
    assert findings(given, ranks, size=5, order=[3, 1, 0, 2]) == first


def test_a_rank_that_never_sends_holds_the_others_up_for_a_bounded_time() -> None:
    info, batch = recipe_run("fp8_delayed_scaling")
    recipe = {**info.recipe}
    ranks = dict(weights_part(per_step=0.01)(ranks_of(batch, seed=3, recipe=recipe), FAULT, recipe))
    given = RunInfo.from_json({**info.to_json(), "ranks": 512})
    found = findings(given, ranks, size=64, order=range(RANKS))
    assert [f["cause"] for f in found] == ["rank_divergence"]
    assert found[0]["onset_step"] == FAULT
