"""The shadow scale against the recipe's rule followed pass by pass."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import CURRENT, DELAYED_MAX, DELAYED_RECENT
from floatscope_diagnostics.shadow import FLT_MAX
from floatscope_server.chunk_plan import Limits
from floatscope_server.database import Database
from floatscope_server.errors import Refused
from floatscope_server.shadow_scale import ScaleRule, rule_of, shadow_scale
from floatscope_server.store import shadow_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span
from tests.server.live import Client
from tests.server.samples import send
from tests.server.stored_runs import Store

TENSOR = "a/input"
DELAYED = {"name": "fp8_delayed_scaling", "amax_history_len": 16, "amax_compute_algo": "max", "margin": 1}
LIMIT_S = 1.0  # measured 0.08 s; a busy machine is given room
Row = tuple[int, int, float]


def followed(rows: Sequence[Row], rule: ScaleRule, *, from_scratch: bool) -> dict[int, float]:
    """Step -> scale, by an engine that makes one pass a row. None in the history is an amax nobody sent."""
    found: dict[int, float] = {}
    history: list[float | None] = []
    scale: float | None = None
    before: tuple[int, int] | None = None
    for step, segment, amax in rows:
        if before is None or step != before[0] + 1 or segment != before[1]:
            fresh = before is None and from_scratch
            history = [] if fresh else [None] * rule.history
            scale = 1.0 if fresh else None
        before = (step, segment)
        if rule.kind == CURRENT:
            if 0 < amax < math.inf:
                found[step] = min(rule.top / amax, FLT_MAX)
            continue
        if scale is not None:
            found[step] = scale
        if rule.kind == DELAYED_RECENT:
            history = [amax]
        elif amax != 0:
            history = [*history, amax][-rule.history :]
        known = [value for value in history if value is not None and not math.isnan(value)]
        largest = max(known, default=0.0)
        if None in history:
            scale = None
        elif 0 < largest < math.inf:
            scale = min(rule.top / largest, FLT_MAX)
    return found


def random_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Amaxes with holes, resumed segments, NaN, Inf, zeros and values so small that the scale overflows."""
    rows: list[Row] = []
    step, segment = int(rng.choice([0, 1, 700])), 0
    for _ in range(count):
        odd = rng.random()
        amax = float(rng.lognormal())
        if odd < 0.12:
            amax = float(rng.choice([0.0, 0.0, math.nan, math.inf, 1e-42]))
        rows.append((step, segment, float(np.float32(amax))))
        step += 1
        if rng.random() < 0.01:
            step += int(rng.integers(1, 30))
        if rng.random() < 0.005:
            segment += 1
    return rows


@pytest.mark.parametrize("kind", [DELAYED_MAX, DELAYED_RECENT, CURRENT])
@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_the_rule_gives_pass_by_pass(kind: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    history = int(rng.choice([2, 3, 16, 64])) if kind == DELAYED_MAX else 1
    rule = ScaleRule(kind, 448.0 / 2, history)
    rows = random_rows(rng, 900)
    step, segment, amax = (np.array(column) for column in zip(*rows, strict=True))
    scratch = bool(rng.random() < 0.7) and rows[0][0] <= 1
    values, known = shadow_scale(step, segment, amax, rule, from_scratch=scratch)
    want = followed(rows, rule, from_scratch=scratch)
    assert want, "a test without a single known scale proves nothing"
    assert step[known].tolist() == sorted(want)
    np.testing.assert_allclose(values[known], [want[at] for at in sorted(want)], rtol=1e-12)


def test_the_rule_comes_from_the_recipe_and_the_format() -> None:
    described = RunInfo(recipe=DELAYED, tensors={TENSOR: {"format": "e5m2"}, "b/input": {"format": "bf16"}})
    assert rule_of(described, TENSOR) == ScaleRule(DELAYED_MAX, 57344.0 / 2, 16)
    assert rule_of(described, "b/input").kind == 0
    assert rule_of(described, "not/there").top == 448.0 / 2  # hybrid: forward is e4m3
    newest = {**DELAYED, "amax_compute_algo": "most_recent"}
    assert rule_of(replace(described, recipe=newest), TENSOR).kind == DELAYED_RECENT
    current = {"name": "fp8_current_scaling"}
    assert rule_of(replace(described, recipe=current), TENSOR).kind == CURRENT


def batch_of(rows: Sequence[Row], *, passes: float | None = None) -> Batch:
    step = np.array([row[0] for row in rows], np.int64)
    amax = np.array([[row[2]] for row in rows], np.float32)
    return Batch(
        step=step,
        time=step.astype(float),
        scalar_names=("passes",) if passes else (),
        scalars=np.full((len(rows), 1 if passes else 0), passes or 0.0),
        scalars_present=np.full((len(rows), 1 if passes else 0), True),
        tensor_names=(TENSOR,),
        stat_row=np.arange(len(rows)),
        stats={"amax": amax},
        stats_present={"amax": np.full(amax.shape, True)},
    )


def stored(database: Database, rows: Sequence[Row], *, passes: float | None = None) -> Store:
    """The rows as a run, two thirds of it in chunks."""
    store = Store(database, "r", {TENSOR: {"format": "e4m3"}}, Limits(rows=256, merged_rows=128))
    at = 0
    while at < len(rows):
        segment = rows[at][1]
        here = [row for row in rows[at : at + 100] if row[1] == segment]
        store.add(batch_of(here, passes=passes), segment=segment)
        at += len(here)
        if at > 2 * len(rows) // 3 and at - len(here) <= 2 * len(rows) // 3:
            store.rewrite()
    return store


def read(store: Store, span: Span, points: int = 10_000) -> dict[int, float]:
    described = RunInfo(recipe=DELAYED, tensors=store.tensors)
    with store.database.read() as c:
        source = Source(c, store.run, 0, store.tables)
        level, _first = shadow_reads.series(source, span, TENSOR, points, described=described)
    assert level.last is not None
    assert level.width == 1 or len(level.bins) <= points
    return dict(zip((level.bins * level.width).tolist(), level.last[0].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_any_zoom_reads_what_the_whole_run_gives(sqlite_database: Database, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    rows = random_rows(rng, 1200)
    store = stored(sqlite_database, rows)
    rule = rule_of(RunInfo(recipe=DELAYED, tensors=store.tensors), TENSOR)
    want = followed(rows, rule, from_scratch=rows[0][0] <= 1)
    whole = read(store, Span(0, 2**40))
    assert whole.keys() == want.keys()
    np.testing.assert_allclose([whole[at] for at in want], list(want.values()), rtol=1e-12)
    for _ in range(6):
        first, last = sorted(int(at) for at in rng.choice([row[0] for row in rows], 2))
        found = read(store, Span(first, last))
        inside = {at: value for at, value in want.items() if first <= at <= last}
        assert found.keys() == inside.keys()
        np.testing.assert_allclose([found[at] for at in inside], list(inside.values()), rtol=1e-12)


def test_where_amax_was_sampled_only_now_and_then_it_is_not_known(sqlite_database: Database) -> None:
    store = stored(sqlite_database, [(50 * at, 0, 1.0) for at in range(60)])
    assert read(store, Span(0, 2**40)) == {0: 1.0}  # the first pass of a run from scratch has scale 1


def test_of_several_passes_a_step_it_is_not_known(sqlite_database: Database) -> None:
    rows = [(at, 0, 1.0) for at in range(60)]
    assert read(stored(sqlite_database, rows, passes=2.0), Span(0, 2**40)) == {}


def test_steps_far_apart_take_no_memory(sqlite_database: Database) -> None:
    rows = [(at, 0, 1.0) for at in (0, 1, 2**50)]
    assert read(stored(sqlite_database, rows, passes=2.0), Span(0, 2**51)) == {}


def test_after_a_step_of_several_passes_it_is_known_again_once_the_window_is_whole(
    sqlite_database: Database,
) -> None:
    rows = [(at, 0, 1.0 + at % 5) for at in range(100)]
    store = Store(sqlite_database, "r", {TENSOR: {"format": "e4m3"}})
    for some, passes in ((rows[:40], None), (rows[40:42], 3.0), (rows[42:], None)):
        store.add(batch_of(some, passes=passes))
    described = RunInfo(recipe=DELAYED, tensors=store.tensors)
    want = followed(rows, rule_of(described, TENSOR), from_scratch=True)
    history = rule_of(described, TENSOR).history
    told = {at: value for at, value in want.items() if at < 40 or at >= 42 + history}
    assert read(store, Span(0, 2**40)) == told


def test_a_hundred_thousand_steps_are_quick_and_bounded(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(sqlite_database, "r", {TENSOR: {"format": "e4m3"}})
    for first in range(0, 100_000, 4_000):
        store.add(batch_of([(first + at, 0, 1.0 + at % 7) for at in range(4_000)]))
    store.rewrite()
    start = time.perf_counter()
    found = read(store, Span(0, 2**40), 900)
    took = time.perf_counter() - start
    assert len(found) <= 900
    assert set(found.values()) == {224.0 / 7}
    assert took < LIMIT_S
    print(f"shadow scale of 100,000 steps: {took:.3f} s")
    monkeypatch.setattr(shadow_reads, "MOST_STEPS", 50_000)
    with pytest.raises(Refused, match="50,000 steps"):
        read(store, Span(0, 2**40), 900)
    assert read(store, Span(60_000, 60_100), 900)[60_050] == 224.0 / 7


def test_it_is_a_statistic_of_the_series(client: Client) -> None:
    recipe: dict[str, Any] = {**DELAYED, "amax_history_len": 2, "margin": 0}
    client.open_run("r", tensors={TENSOR: {"format": "e4m3"}}, recipe=recipe)
    amaxes = [2.0, 4.0, 1.0, 1.0, 0.0]
    steps = [{"step": at, "loss": 1.0, "tensors": {TENSOR: {"amax": amax}}} for at, amax in enumerate(amaxes)]
    send(client, "r", steps)
    found = client.get("/api/v1/runs/r/series?tensor=a%2Finput&stat=shadow_scale").json
    assert (found["stat"], found["rank"], found["step"]) == ("shadow_scale", 0, [0, 1, 2, 3, 4])
    assert found["last"] == [1.0, 224.0, 112.0, 112.0, 448.0]
    assert client.get("/api/v1/runs/r/series?tensor=x&stat=shadow_scale").json["step"] == []
