"""Limits from healthy tails: the mathematics, the data file, and what happens where it says nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.limits import (
    ARL_STEPS,
    BY_NAME,
    CLASSES,
    KINDS,
    SIGNS,
    SIGNS_PER_FAMILY,
    Tail,
    Tails,
    TailsError,
    kinds_of,
    limits_of,
    load_tails,
    logit_pct,
    parse_tails,
)
from tests.diagnostics.tensor_rows import info_of, names_of

TAIL = st.builds(
    Tail,
    threshold=st.floats(-5, 5),
    scale=st.floats(0.01, 2),
    shape=st.floats(-0.3, 0.5),
    rate=st.floats(1e-6, 1e-2),
)


def document(**changes: Any) -> str:
    entry = {"threshold": 1.2, "scale": 0.2, "shape": 0.1, "rate": 1e-3, "largest": 1.3, **changes}
    return json.dumps({"version": 1, "provenance": {}, "fits": {"amax_jump/forward/any": entry}})


@given(tail=TAIL, sign=st.sampled_from(SIGNS), role=st.sampled_from(CLASSES))
def test_a_limit_never_falls_with_more_tensors_and_stays_between_floor_and_ceiling(
    tail: Tail, sign: Any, role: str
) -> None:
    tails = Tails({(sign.name, role, "any"): tail}, {})
    got = [tails.limit(sign.name, role, "any", tensors=n) for n in (1, 2, 8, 48, 675, 3000, 100_000)]
    assert got == sorted(got)
    place = CLASSES.index(role)
    assert sign.floor[place] <= got[0]
    assert got[-1] <= sign.ceiling[place]
    if sign.alone:
        assert len(set(got)) == 1


@given(tail=TAIL)
def test_the_tail_is_passed_as_often_as_asked(tail: Tail) -> None:
    p = tail.rate / 1000
    excess = tail.beyond(p) - tail.threshold
    left = 1 + tail.shape * excess / tail.scale
    survival = math.exp(-excess / tail.scale) if abs(tail.shape) < 1e-6 else left ** (-1 / tail.shape)
    assert survival * tail.rate == pytest.approx(p, rel=1e-3)
    assert tail.beyond(1.0) == tail.threshold


def test_the_budget_is_shared_among_tensors_and_signs() -> None:
    tail = Tail(threshold=0.0, scale=0.1, shape=0.0, rate=1e-3)
    tails = Tails({("amax_jump", "forward", "any"): tail}, {})
    p = 1 / (ARL_STEPS * SIGNS_PER_FAMILY * 10)
    want = min(max(0.1 * math.log(1e-3 / p), 1.0), 1.8)
    assert tails.limit("amax_jump", "forward", "any", tensors=10) == pytest.approx(want)


def test_a_limit_is_beyond_everything_healthy_runs_showed() -> None:
    tail = Tail(threshold=4.0, scale=0.1, shape=-0.3, rate=1e-4, largest=5.0)
    tails = Tails({("amax_jump", "backward", "any"): tail}, {})
    assert tails.limit("amax_jump", "backward", "any", tensors=3000) == pytest.approx(5.5)


def test_an_unknown_kind_takes_the_tail_of_all_and_an_unknown_class_the_ceiling() -> None:
    tails = parse_tails(document())
    same = tails.limit("amax_jump", "forward", "any", tensors=48)
    assert tails.limit("amax_jump", "forward", "delayed_max", tensors=48) == same
    assert tails.limit("amax_jump", "weight", "any", tensors=48) == BY_NAME["amax_jump"].ceiling[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "version"),
        (json.dumps({"version": 9}), "version"),
        (json.dumps({"version": 1, "fits": {}}), "fits"),
        (json.dumps({"version": 1, "fits": {"nonsense/forward/any": {}}}), "no known sign"),
        (json.dumps({"version": 1, "fits": {"amax_jump/forward/odd": {}}}), "kind of recipe"),
        (json.dumps({"version": 1, "fits": {"amax_jump/forward/any": 3}}), "threshold"),
        (document(scale=None), "scale"),
        (document(scale=0), "out of range"),
        (document(rate=2.0), "out of range"),
        (document(shape=float("nan")), "shape"),
        (document(threshold=True), "threshold"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(TailsError, match=message):
        parse_tails(text)


def test_the_packaged_tails_are_whole_and_say_where_they_come_from() -> None:
    tails = load_tails()
    assert {s for s, _, _ in tails.by_key} == set(BY_NAME)
    assert tails.provenance["calibrated_on"] == "emulation"
    assert tails.provenance["healthy_steps"] > 10_000
    assert max(tails.provenance["seeds"]) < 2000  # later seeds are for reporting


def test_the_kind_of_recipe_of_every_tensor() -> None:
    names = names_of(1)

    def kind(recipe: dict[str, object]) -> set[str]:
        columns = Columns(info_of(names, recipe))
        columns.add(names)
        return {KINDS[k] if k >= 0 else "any" for k in kinds_of(columns).tolist()}

    assert kind({"name": "fp8_delayed_scaling"}) == {"delayed_max"}
    assert kind({"name": "fp8_delayed_scaling", "amax_history_len": 1}) == {"delayed_recent"}
    assert kind({"name": "fp8_current_scaling"}) == {"stateless"}
    assert kind({}) == {"any"}


def test_limits_are_arrays_over_tensors_by_class() -> None:
    names = names_of(5)
    columns = Columns(info_of(names))
    columns.add(names)
    limits = limits_of(columns)
    assert set(limits) == set(BY_NAME)
    jump = dict(zip(columns.names, limits["amax_jump"].tolist(), strict=True))
    weight, activation, gradient = (jump[f"layers.0000/{r}"] for r in ("weight", "input", "grad_output"))
    assert weight < activation < gradient


@given(st.lists(st.floats(0, 100), min_size=2, max_size=8))
def test_shares_keep_their_order_and_stay_finite(values: list[float]) -> None:
    logits = logit_pct(np.array(sorted(values)))
    assert np.isfinite(logits).all()
    assert (np.diff(logits) >= 0).all()
