"""What is set for rules: what is offered changes the answer, and nothing else does."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.calibration import AS_STATED
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.rule import Rule
from floatscope_diagnostics.rule_settings import (
    DEFAULT,
    OFF,
    RuleSetting,
    RuleSettings,
    SettingsError,
    parse_setting,
    parse_settings,
    still_valid,
)
from floatscope_diagnostics.rules import load_rules
from floatscope_diagnostics.thresholds import Threshold
from tests.diagnostics.case import Case
from tests.diagnostics.cases import (
    amax_history_poisoning,
    bad_batch,
    gradient_underflow,
    invalid_input,
)
from tests.diagnostics.synthetic import Run, Tensors
from tests.diagnostics.test_rules import case_modules

ONE_OF_EACH_KIND = ("FS101", "FS201", "FS302", "FS411", "FS502", "FS906")
NO_SHRINK = (Phase.explicit, Phase.reuse, Phase.generate)
RULES = {rule.code: rule for rule in load_rules()}
MOVABLE = [(rule, threshold) for rule in RULES.values() for threshold in rule.thresholds]


def slower(times: float, *, spread: float = 0.0, wait: float = 0.0) -> Case:
    """Steps that take so many times as long from step 130 on. spread: by which all scatter.  wait: for data,
    as a share of the step.
    """

    def after(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        scalars["step_time_s"] *= (1.0 + spread) ** ((step * 7919 % 13 - 6) / 6)
        if step >= 130:
            scalars["step_time_s"] *= times
        scalars["data_time_s"] = wait * scalars["step_time_s"]

    run = Run(after=after)
    return Case(f"{times} times", run.info(), run.rows())


def five_high(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if 130 <= step < 135:
        scalars["loss"] += 1.2


SERIES = Run(after=five_high)
MORE: dict[str, Case] = {
    "FS411.series_rows": Case("five", SERIES.info(), SERIES.rows()),
    "FS502.data_share": slower(1.85, wait=0.3),
    "FS502.slow_times": slower(3.0, spread=0.2),
    "FS502.slow_rows": slower(5.0, spread=0.3),
}
"""Cases between a threshold's default and its bounds, where the rule's own cases have none."""


@functools.lru_cache(maxsize=64)
def judged(name: str, number: int) -> Engine:
    """The engine after one of a rule's own cases."""
    return fed(case_modules()[name].CASES[number])


def fed(case: Case) -> Engine:
    engine = Engine(RunInfo.from_json(dict(case.info)), calibration=AS_STATED)
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for row in case.rows:
        by_rank.setdefault(int(row.get("rank", 0)), []).append(row)
    for rank, rows in sorted(by_rank.items()):
        engine.feed(batch_from_rows(rows, strict=False), rank=rank)
    return engine


def said(engine: Engine, settings: RuleSettings) -> dict[str, Any]:
    engine.use(settings)
    return engine.verdict().to_json()


def of(code: str, **given: Any) -> RuleSettings:
    return RuleSettings({code: parse_setting(given, RULES[code])})


def alarms(verdict: Mapping[str, Any]) -> list[tuple[str, str, int, str]]:
    found = [f for f in verdict["findings"] if f["state"] != "replaced"]
    return [(f["rule"], f["cause"], f["onset_step"], f["severity"]) for f in found if f["severity"] != "info"]


@pytest.mark.parametrize(("rule", "threshold"), MOVABLE, ids=[f"{r.code}.{t.name}" for r, t in MOVABLE])
def test_a_threshold_that_is_offered_changes_what_the_rule_says(rule: Rule, threshold: Threshold) -> None:
    assert threshold.allows(threshold.default)
    more = MORE.get(f"{rule.code}.{threshold.name}")
    own = range(0 if more else len(case_modules()[rule.name].CASES))
    for engine in (*([fed(more)] if more else ()), *(judged(rule.name, number) for number in own)):
        before = said(engine, RuleSettings())
        for value in (threshold.lowest, threshold.highest):
            moved = of(rule.code, thresholds={threshold.name: value})
            if alarms(said(engine, moved)) != alarms(before):
                return
    pytest.fail("no case of the rule tells the threshold's values apart")


@pytest.mark.parametrize("code", ONE_OF_EACH_KIND)
def test_a_rule_that_is_off_finds_nothing_and_is_named(code: str) -> None:
    rule = RULES[code]
    for number in range(len(case_modules()[rule.name].CASES)):
        engine = judged(rule.name, number)
        if not any(f["rule"] == code for f in said(engine, RuleSettings())["findings"]):
            continue
        verdict = said(engine, of(code, enabled=False))
        assert not [f for f in verdict["findings"] if f["rule"] == code]
        mine = [n for n in verdict["not_checked"] if n["rule"] == code]
        assert mine == [{"rule": code, "needs": [rule.name.replace("_", " ")], "why": OFF}]
        assert verdict["rule_settings"] == {code: {"enabled": False, "severity": None, "thresholds": {}}}
        return
    pytest.fail("the rule finds nothing in its own cases")


def test_what_an_off_rule_would_have_explained_is_told_by_another() -> None:
    engine = Engine(RunInfo.from_json(invalid_input.NAN.info()), calibration=AS_STATED)
    engine.feed(batch_from_rows(invalid_input.NAN.rows()))
    before = alarms(said(engine, RuleSettings()))
    after = alarms(said(engine, of("FS101", enabled=False)))
    assert before[0][:2] == ("FS101", "invalid_input")
    assert after
    assert after[0][2:] == (before[0][2], "critical")
    assert after[0][0] != "FS101"


def test_a_severity_stands_in_for_the_rules_own_but_makes_no_alarm_of_a_note() -> None:
    spikes = [number for number, case in enumerate(bad_batch.CASES) if case.want]
    notes = [number for number, case in enumerate(bad_batch.CASES) if not case.want]
    engine = judged("bad_batch", spikes[0])
    plain = said(engine, RuleSettings())
    worse, note = (said(engine, of("FS411", severity=s)) for s in ("critical", "info"))
    assert [s for *_, s in alarms(plain)] == ["warning"]
    assert [s for *_, s in alarms(worse)] == ["critical"]
    assert worse["status"] == "critical"
    assert alarms(note) == []
    assert (note["status"], note["last_clean_step"]) == ("watch", note["source"]["last_step"])
    assert [f["id"] for f in plain["findings"]] == [f["id"] for f in note["findings"]]
    for number in notes:
        assert alarms(said(judged("bad_batch", number), of("FS411", severity="critical"))) == []


def test_settings_that_say_what_the_rules_say_change_nothing() -> None:
    same = parse_settings(
        {code: {"thresholds": {t.name: t.default for t in r.thresholds}} for code, r in RULES.items()},
        load_rules(),
    )
    assert all(setting == DEFAULT for setting in same.by_rule.values())
    engine = judged("stall", 0)
    assert said(engine, same) == said(engine, RuleSettings())


CHANGED = {
    "poison": (amax_history_poisoning.POISON, of("FS202", thresholds={"idle_bits": 3}, severity="critical")),
    "poison, off": (amax_history_poisoning.POISON, of("FS202", enabled=False)),
    "nan, off": (invalid_input.NAN, of("FS101", enabled=False).having("FS901", RuleSetting(severity="info"))),
}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=NO_SHRINK)
@given(st.sampled_from(sorted(CHANGED)), st.lists(st.integers(1, 30), min_size=1, max_size=9), st.data())
def test_any_chunking_restart_and_time_of_the_change_gives_the_same_verdict(
    name: str, sizes: list[int], data: st.DataObject
) -> None:
    run, changed = CHANGED[name]
    info, rows = RunInfo.from_json(run.info()), run.rows()
    expected = Engine(info, settings=changed)
    expected.feed(batch_from_rows(rows))
    engine, at, k = Engine(info), 0, 0
    while at < len(rows):
        size = sizes[k % len(sizes)]
        engine.feed(batch_from_rows(rows[at : at + size]))
        at, k = at + size, k + 1
        if data.draw(st.booleans()):
            engine = Engine.restore(info, engine.state(), settings=of("FS427", enabled=False))
        if data.draw(st.booleans()):
            engine.use(data.draw(st.sampled_from([RuleSettings(), changed])))
            engine.verdict()
    engine.use(changed)
    assert engine.verdict().to_json() == expected.verdict().to_json()


def test_a_threshold_of_one_rule_is_nothing_to_another() -> None:
    engine = judged("gradient_underflow", 0)
    assert gradient_underflow.CASES[0].want
    before = said(engine, RuleSettings())
    after = said(engine, of("FS201", thresholds={"overflow_pct": 100}))
    assert after["findings"] == before["findings"]


WRONG: dict[str, tuple[Any, str, str]] = {
    "no object": ([], "rules", "an object"),
    "no such rule": ({"FS999": {}}, "FS999", "the code of a rule"),
    "no such key": ({"FS411": {"on": True}}, "FS411.on", "one of enabled, severity, thresholds"),
    "not a switch": ({"FS411": {"enabled": 1}}, "FS411.enabled", "true or false"),
    "no severity": ({"FS411": {"severity": "fatal"}}, "FS411.severity", "one of info, warning, critical"),
    "not a list": ({"FS411": {"thresholds": [1]}}, "FS411.thresholds", "an object"),
    "no such threshold": ({"FS411": {"thresholds": {"x": 1}}}, "FS411.thresholds.x", "spike_nats"),
    "nothing to move": ({"FS101": {"thresholds": {"x": 1}}}, "FS101.thresholds.x", "no threshold to move"),
    "too small": ({"FS411": {"thresholds": {"spike_nats": 0.1}}}, "FS411.thresholds.spike_nats", "0.4 to"),
    "half a step": ({"FS502": {"thresholds": {"slow_rows": 3.5}}}, "FS502.thresholds.slow_rows", "whole"),
    "nan": ({"FS411": {"thresholds": {"spike_nats": float("nan")}}}, "FS411.thresholds.spike_nats", "number"),
    "huge": ({"FS411": {"thresholds": {"spike_nats": 10**400}}}, "FS411.thresholds.spike_nats", "number"),
    "true": ({"FS411": {"thresholds": {"spike_nats": True}}}, "FS411.thresholds.spike_nats", "a number"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_setting_that_no_rule_can_have_is_refused_by_name(name: str) -> None:
    tree, field, expected = WRONG[name]
    with pytest.raises(SettingsError) as caught:
        parse_settings(tree, load_rules())
    assert caught.value.field == field
    assert expected in caught.value.expected
    assert len(str(caught.value)) < 500


def test_stored_settings_that_this_version_does_not_know_are_left_out() -> None:
    stored = {
        "FS998": {"enabled": False},
        "FS411": {"enabled": True, "severity": "fatal", "thresholds": {"gone": 1, "spike_nats": 0.0}},
        "FS502": {"enabled": False, "severity": "info", "thresholds": {"slow_rows": 48}},
    }
    found = still_valid(stored, load_rules())
    assert found.of("FS411") == DEFAULT
    assert found.of("FS502") == RuleSetting(False, "info", {"slow_rows": 48.0})
    assert found.to_json().keys() == {"FS502"}
