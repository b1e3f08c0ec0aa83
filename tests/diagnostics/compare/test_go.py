"""The decision: each gate on pairs whose truth is known, what is refused, and what is not known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from floatscope_diagnostics.compare.equivalence import judge_loss
from floatscope_diagnostics.compare.gate import Go
from floatscope_diagnostics.compare.go import decide
from floatscope_diagnostics.compare.judge import Comparison, Settings, compare
from floatscope_diagnostics.compare.limits import BadLimits, Limits, presets, with_presets
from floatscope_diagnostics.compare.pairing import NotComparable
from floatscope_diagnostics.compare.quality import Beta, quality_of
from floatscope_diagnostics.compare.settled import Settled, settled
from floatscope_diagnostics.compare.stability import more_by_chance, spikes
from floatscope_diagnostics.compare.throughput import Throughput, throughput
from floatscope_diagnostics.compare.traces import Trace
from floatscope_diagnostics.verdict import plain_object
from tests.diagnostics.compare.logs import autoregressive, curve, rows_of
from tests.diagnostics.compare.pairs import SPEED, USUAL, WELL, falling, pair, rows, side


def states(go: Go) -> dict[str, str]:
    return {gate.name: gate.state for gate in go.gates}


def test_an_equal_and_faster_run_is_a_go() -> None:
    go = decide(pair(), USUAL, health=WELL)
    assert go.verdict == "go"
    assert "for these 720 steps (2.95 M tokens)" in go.sentence
    gate = go.gate("loss")
    assert gate.state == "pass"
    assert gate.low is not None
    assert gate.high is not None
    assert gate.limit == pytest.approx(0.0025 * 2.45, rel=0.05)
    assert gate.limit is not None
    assert gate.low < 0.002
    assert gate.high < gate.limit
    assert go.quality is not None
    assert go.quality.net_speedup is not None
    assert 1.2 < go.quality.net_speedup <= 1.31
    assert go.more_steps == 0
    assert go.next_step == ""


def test_a_run_that_is_worse_is_a_no_go() -> None:
    go = decide(pair(0.03), USUAL, health=WELL)
    assert (go.verdict, go.gate("loss").state) == ("no_go", "fail")
    assert go.quality is not None
    assert go.quality.extra_tokens_pct > 5.0


def test_better_is_no_reason_against() -> None:
    go = decide(pair(-0.03), USUAL, health=WELL)
    assert go.verdict == "go"
    assert "not worse" in go.gate("loss").sentence
    assert go.quality is not None
    assert go.quality.extra_tokens_pct == 0.0  # no credit for a loss that is lower


def test_noise_beyond_the_margin_is_not_yet_and_says_how_long() -> None:
    go = decide(pair(0.0, n=400, noise=0.15), SPEED, health=WELL)
    assert (go.verdict, go.gate("loss").state) == ("not_yet", "undecided")
    assert go.more_steps is not None
    assert go.more_steps > 100
    assert f"{go.more_steps:,} more steps" in go.next_step


def test_so_many_more_steps_do_decide_if_the_mean_stays() -> None:
    for mean in (0.002, -0.001, 0.02):
        gap = np.random.default_rng(4).normal(0.0, 0.15, 400)
        gap += mean - gap.mean()
        found = judge_loss(Settled(np.arange(400), gap, 0, 399, None, False, 1), 0.01)
        assert found.answer == "undecided"
        assert found.more_steps is not None
        n = 400 + math.ceil(0.9 * found.more_steps)
        again = np.resize(gap, n)  # the same mean and noise, longer
        longer = judge_loss(Settled(np.arange(n), again, 0, n - 1, None, False, 1), 0.01)
        assert longer.answer in (("worse",) if mean > 0.01 else ("equivalent", "non_inferior"))


@pytest.mark.parametrize(("phi", "ratio"), [(0.0, 1.0), (0.4, 7.0 / 3.0), (0.9, 19.0)])
def test_the_pairs_that_are_needed_follow_the_formula(phi: float, ratio: float) -> None:
    n = 20_000
    gap = 0.02 * autoregressive(n, phi, 3)
    part = Settled(np.arange(n), gap, 0, n - 1, None, False, 1)
    found = judge_loss(part, 0.01)
    assert found.pairs_if_equal == pytest.approx(8.56 * 4.0 * ratio, rel=0.25)
    assert found.confidence == (0.95 if phi > 0.5 else 0.9)


def test_few_or_dependent_pairs_settle_nothing() -> None:
    few = decide(pair(n=150), USUAL, health=WELL)
    assert few.gate("loss").state == "undecided"
    assert "fewer than 200" in few.gate("loss").sentence
    slow = Settled(np.arange(600), 1e-4 * autoregressive(600, 0.98, 2), 0, 599, None, False, 1)
    found = judge_loss(slow, 0.01)
    assert found.answer == "undecided"
    assert "independent" in found.why


def test_a_far_worse_run_is_called_so_early() -> None:
    assert decide(pair(0.5, n=150), USUAL, health=WELL).gate("loss").state == "fail"


def test_warm_up_and_the_first_tenth_do_not_count() -> None:
    n = 1000
    gap = np.where(np.arange(n) < 200, 1.0, 0.0)
    lr = np.minimum(np.arange(n) / 200.0, 1.0).tolist()
    base = falling(n, 1)
    ours = side(rows(base + gap, seconds=0.7, lr=lr), label="run")
    theirs = side(rows(base, seconds=1.0, lr=lr), label="base")
    part = settled(compare(ours, theirs, Settings()))
    assert part.step[0] in range(195, 201)
    assert abs(part.gap).max() < 1.0 or part.step[0] < 200
    rising = np.linspace(0.0, 1.0, n).tolist()
    c = compare(
        side(rows(base, seconds=0.7, lr=rising), label="run"),
        side(rows(base, seconds=1.0, lr=rising), label="base"),
        Settings(),
    )
    go = decide(c, USUAL, health=WELL)
    assert go.verdict == "not_yet"
    assert "still rising" in go.gate("loss").sentence


def test_planned_tokens_are_steps() -> None:
    planned = with_presets((), {"planned_tokens": 4096 * 5000})
    assert "step 5,000" in decide(
        pair(np.linspace(0.0, 0.004, 1000), n=1000, noise=0.002), planned, health=WELL
    ).gate("drift").sentence  # fmt: skip


def test_too_slow_is_a_no_go_and_near_the_limit_is_not_yet() -> None:
    assert decide(pair(speed=1.02), SPEED, health=WELL).gate("speed").state == "fail"
    assert decide(pair(speed=1.02), SPEED, health=WELL).verdict == "no_go"
    near = decide(pair(speed=1.1), SPEED, health=WELL)
    assert (near.verdict, near.gate("speed").state) == ("not_yet", "undecided")
    assert decide(pair(speed=1.3), SPEED, health=WELL).verdict == "go"


def test_the_ratio_holds_the_truth_and_ignores_compilation_evals_and_checkpoints() -> None:
    plain = side(rows_of([2.0] * 500))
    held = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        sides = []
        for k, seconds in enumerate((0.8, 1.0)):
            times = seconds * np.exp(0.05 * autoregressive(500, 0.6, 2 * seed + k))
            times[:20] *= 30.0
            times[draw.integers(20, 500, 12)] *= 8.0
            sides.append(replace(plain, traces={"step_time_s": Trace(np.arange(500), times)}))
        found = throughput(*sides)
        assert isinstance(found, Throughput)
        held += found.low <= 1.25 <= found.high
        assert found.speedup == pytest.approx(1.25, rel=0.05)
    assert held >= 31  # nominal 36 of 40


def test_price_turns_a_gain_into_a_loss() -> None:
    cheap = decide(pair(speed=1.3), with_presets((), {"min_saving_pct": 20.0}), health=WELL)
    assert cheap.gate("cost").state == "pass"
    dear = decide(
        pair(speed=1.3), with_presets((), {"min_saving_pct": 20.0, "price_ratio": 1.5}), health=WELL
    )
    assert dear.gate("cost").state == "fail"
    value = dear.gate("cost").value
    assert value == pytest.approx(100 * (1 - 1.5 / 1.3), abs=1.0)


def test_thirty_percent_more_throughput_is_23_percent_less_cost() -> None:
    gate = decide(pair(speed=1.30), with_presets(["cost-25"], {}), health=WELL).gate("cost")
    assert gate.value == pytest.approx(23.1, abs=0.6)
    assert gate.state == "fail"


def test_the_loss_difference_is_paid_for_in_tokens() -> None:
    part = settled(pair(0.01))
    band = judge_loss(part, 0.01).band
    assert band is not None
    fast = throughput(pair().run, pair().base)
    assert isinstance(fast, Throughput)
    found = quality_of(band, Beta(0.1, 0.005, 50.0), fast)
    assert found.extra_tokens_pct == pytest.approx(100 * math.expm1(band.mean / 0.1), rel=1e-6)
    assert found.net_speedup == pytest.approx(fast.speedup * math.exp(-band.mean / 0.1))
    assert found.net_low is not None
    assert found.net_high is not None
    assert found.net_speedup is not None
    assert found.net_low < found.net_speedup < found.net_high


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"info": {"vocab_size": 100}, "base_info": {"vocab_size": 200}}, "other_vocabulary"),
        ({"info": {"config": {"data": {"batch": 8}}}, "base_info": {"config": {"batch": 4}}}, "other_batch"),
        ({"info": {"config": {"tokenizer": "a"}}, "base_info": {"config": {"tokenizer": "b"}}},
         "other_tokenizer"),
        ({"tokens": (8192.0 * np.arange(1, 801)).tolist()}, "other_tokens_per_step"),
        ({"lr": [0.5] * 800}, "other_learning_rate"),
        ({"data_id": [1.0] * 800}, ""),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], code: str) -> None:
    go = decide(pair(**changes), USUAL, health=WELL)
    blocking = [r.code for r in go.refused if r.blocks]
    if not code:
        assert blocking == []
        assert go.verdict == "go"
        return
    assert blocking == [code]
    assert go.verdict == "not_yet"
    assert not go.decidable
    assert go.sentence.startswith("This pair cannot be decided.")
    assert go.next_step.startswith("A baseline with the same ")
    judged = {name for name, state in states(go).items() if state != "not_checked"}
    assert judged == {"fp8_health"}
    assert go.quality is None


def test_other_data_is_refused() -> None:
    c = compare(
        side(rows(falling(800, 1), seconds=0.7), label="run"),
        side(rows(falling(800, 2), seconds=1.0), label="base"),
        Settings(),
    )
    go = decide(c, USUAL, health=WELL)
    assert go.verdict == "not_yet"
    assert "other_data" in [r.code for r in go.refused]


def test_little_overlap_is_refused_and_another_length_is_said() -> None:
    base = falling(1000, 1)
    whole = rows(base, seconds=1.0)
    late = compare(side(whole[:500], label="a"), side(whole[400:], label="b"), Settings())
    assert "little_overlap" in [r.code for r in decide(late, USUAL, health=WELL).refused]
    shorter = compare(side(whole[:800], label="a"), side(whole, label="b"), Settings())
    found = [r for r in decide(shorter, USUAL, health=WELL).refused if r.code == "other_last_step"]
    assert len(found) == 1
    assert not found[0].blocks


def test_without_step_times_it_is_not_yet() -> None:
    go = decide(pair(step_time_s=None), USUAL, health=WELL)
    assert go.verdict == "not_yet"
    assert states(go)["cost"] == "not_checked"
    assert "no_step_time" in [r.code for r in go.refused]
    assert "step_time_s" in go.next_step


def test_a_loss_that_is_no_longer_finite_is_a_no_go() -> None:
    gap = np.where(np.arange(800) >= 500, math.nan, 0.0)
    go = decide(pair(gap), USUAL, health=WELL)
    assert go.verdict == "no_go"
    assert "not finite since step 500" in go.gate("loss").sentence
    json.dumps(plain_object(go.to_json()), allow_nan=False)


def test_held_out_losses_are_paired_on_their_own_steps() -> None:
    def with_evals(shift: float) -> Comparison:
        sides = []
        for k, (label, more) in enumerate((("run", shift), ("base", 0.0))):
            made = rows(falling(800, 3), seconds=0.7 + 0.3 * k)
            made += [{"step": s, "eval_loss": 2.4 + more + 1e-4 * (s % 3)} for s in range(1000, 2000, 50)]
            made += [{"step": s, "eval_loss": 2.4 + more + 1e-4 * (s % 7)} for s in range(100, 800, 50)]
            sides.append(side(made, label=label))
        return compare(sides[0], sides[1], Settings())

    assert decide(with_evals(0.0), USUAL, health=WELL).gate("held_out").state == "pass"
    worse = decide(with_evals(0.05), USUAL, health=WELL)
    assert worse.gate("held_out").state == "fail"
    assert worse.verdict == "no_go"
    assert decide(pair(), USUAL, health=WELL).gate("held_out").state == "not_checked"


def test_spikes_are_counted_once_and_compared_by_chance() -> None:
    loss = 2.0 + np.random.default_rng(0).normal(0.0, 0.05, 1000)
    assert spikes(loss) == 0
    loss[300:310] += 2.0
    loss[700] += 3.0
    assert spikes(loss) == 2
    assert spikes(loss[:100]) is None
    assert more_by_chance(3, 2) > 0.3
    assert more_by_chance(20, 2) < 1e-3
    assert more_by_chance(0, 0) == 1.0


def test_many_more_spikes_fail() -> None:
    gap = np.zeros(2000)
    gap[100::100] = 2.0
    go = decide(pair(gap, n=2000), USUAL, health=WELL)
    assert go.gate("stability").state == "fail"
    assert "more loss spikes" in go.gate("stability").sentence.lower()


def test_three_seeds_are_judged_by_their_means_and_nulls_say_what_chance_does() -> None:
    seeds = [pair(g, seed=s) for s, g in ((20, 0.001), (30, -0.001))]
    go = decide(pair(0.0005), USUAL, health=WELL, more_pairs=seeds)
    assert "3 pairs" in go.gate("loss").sentence
    assert go.gate("loss").state == "pass"
    wide = [pair(g, seed=s) for s, g in ((20, 0.03), (30, -0.03))]
    assert decide(pair(), USUAL, health=WELL, more_pairs=wide).gate("loss").state == "undecided"
    null = pair(0.04, seed=50)
    spread = decide(pair(0.03), USUAL, health=WELL, nulls=[null])
    assert spread.gate("loss").state == "undecided"
    assert "inside the run-to-run" in spread.gate("loss").sentence
    assert decide(pair(0.06), USUAL, health=WELL, nulls=[null]).gate("loss").state == "fail"


def test_presets_are_data_with_sources_and_do_not_contradict_each_other() -> None:
    assert all(p.source and p.says and p.sets for p in presets().values())
    assert [p.name for p in presets().values() if p.default] == ["net-10"]
    both = with_presets(["megatron", "throughput-30"], {})
    assert (both.margin_nats, both.min_speedup, both.min_net_saving_pct) == (0.01, 1.3, None)
    assert with_presets(["megatron"], {}).min_net_saving_pct == 10.0
    assert with_presets(["throughput-30"], {"min_speedup": 1.2}).min_speedup == 1.2
    for names, given in ((["megatron", "marin"], {}), (["none"], {}), ([], {"price_ratio": -1.0}),
                         ([], {"min_speedup": math.nan}), ([], {"min_saving_pct": 100.0})):  # fmt: skip
        with pytest.raises(BadLimits):
            with_presets(names, given)


@pytest.mark.parametrize(("loss", "margin"), [(2.0, 0.005), (10.0, 0.01), (-1.0, 0.01), (math.nan, 0.01)])
def test_the_margin_is_the_smaller_of_both(loss: float, margin: float) -> None:
    assert Limits().margin(loss)[0] == pytest.approx(margin)
    if not loss > 0.0:
        with pytest.raises(BadLimits):
            Limits(margin_pct=0.25).margin(loss)


def test_a_single_pair_and_equal_losses_do_not_break_it() -> None:
    one = compare(side(rows_of([2.0]), label="a"), side(rows_of([2.1]), label="b"), Settings())
    go = decide(one, USUAL, health=WELL)
    assert go.verdict == "not_yet"
    json.dumps(plain_object(go.to_json()), allow_nan=False)
    same = compare(
        side(rows(curve(500), seconds=0.5), label="a"),
        side(rows(curve(500), seconds=1.0), label="b"),
        Settings(),
    )
    assert decide(same, SPEED, health=WELL).verdict == "go"
    with pytest.raises(NotComparable):
        compare(side(rows_of([math.nan])), side(rows_of([math.nan])), Settings())
