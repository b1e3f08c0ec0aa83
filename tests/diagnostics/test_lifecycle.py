"""Findings live: raised on first evidence, confirmed, worsened, recovered, replaced, under one identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.calibration import AS_STATED, Calibration
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.rule import Finding, Remedy, Rule, RunFacts, Symptoms, Window
from tests.diagnostics.case import Case
from tests.diagnostics.cases import amax_history_poisoning
from tests.diagnostics.synthetic import Run, Tensors, all_of, fp16_run
from tests.diagnostics.test_rules import all_cases

Rows = Sequence[Mapping[str, Any]]
# Alarms that more steps take back: a shift that turns out to be single hard batches, an overflow that the
# loss scale takes back one step later.
TAKEN_BACK = (
    "data_shift: hard batches, not a shift",
    "loss_scale_collapse: the same where the log has no update norm",
)


def life(
    info: Mapping[str, Any],
    rows: Rows,
    *,
    every: int = 1,
    rules: tuple[Rule, ...] | None = None,
    calibration: Calibration = AS_STATED,
) -> list[dict[str, Any]]:
    """The live verdict after every batch of ``every`` rows."""
    engine = Engine(RunInfo.from_json(dict(info)), rules=rules, calibration=calibration)
    seen = []
    for start in range(0, len(rows), every):
        engine.feed(batch_from_rows(rows[start : start + every], strict=False))
        seen.append(engine.verdict(live=True).to_json())
    return seen


def states(verdicts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(cause, state) of the first alarm, each time it changes."""
    out: list[tuple[str, str]] = []
    for verdict in verdicts:
        for finding in verdict["findings"][:1]:
            now = (finding["cause"], finding["state"])
            if not out or out[-1] != now:
                out.append(now)
    return out


def spike_on(first: int, last: int, ending: str) -> Any:
    def change(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        if first <= step < last:
            for name, stats in tensors.items():
                if name.endswith(ending):
                    stats["amax"] *= 64.0

    return change


def flushed(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """All gradients round to zero from step 333 on."""
    if step >= 333:
        for stats in all_of(tensors, "/grad_output"):
            stats["underflow_pct"] = 90.0


def broken(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """NaN everywhere."""
    scalars["loss"] = float("nan")
    for stats in tensors.values():
        stats["nan_count"] = 9.0


def test_a_clipping_tensor_is_confirmed_by_a_second_kind_of_evidence() -> None:
    run = Run(before=spike_on(130, 999, "blocks.1.mlp.fc2/input"))
    assert ("stale_scale_saturation", "confirmed") in states(life(run.info(), run.rows()))


def test_one_kind_of_evidence_is_raised_and_its_lasting_confirms_it() -> None:
    def past_the_limit(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        if step >= 30:
            tensors["blocks.0.mlp.fc2/input"]["amax"] = 70000.0

    info, rows = fp16_run(change=past_the_limit)
    found = [f for v in life(info, rows) for f in v["findings"] if f["cause"] == "activation_overflow"]
    assert found[0]["state"] == "raised"
    assert [e["signal"] for e in found[0]["evidence"]] == ["amax"]
    assert found[-1]["state"] in ("confirmed", "worsened")
    assert len({f["id"] for f in found}) == 1


def test_what_becomes_nan_has_worsened() -> None:
    def overflow(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        if step >= 30:
            tensors["blocks.0.mlp.fc2/input"]["amax"] = 66000.0
        if step >= 40:
            for name in ("blocks.0.mlp.fc2/input", "blocks.1.attn.qkv/input"):
                tensors[name]["nan_count"] = 9.0
            scalars["loss"] = float("nan")

    info, rows = fp16_run(change=overflow)
    verdicts = life(info, rows)
    found = [next((f for f in v["findings"] if f["cause"] == "activation_overflow"), None) for v in verdicts]
    assert found[38] is not None
    assert found[38]["state"] == "confirmed"
    assert found[-1] is not None
    assert (found[-1]["state"], found[-1]["severity"]) == ("worsened", "critical")
    assert found[-1]["id"] == found[38]["id"]


def test_twice_the_tensors_is_worse_but_the_first_two_rows_are_one_incident() -> None:
    def spread(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        for k, name in enumerate(n for n in sorted(tensors) if n.endswith("/grad_output")):
            if step >= (130 if k < 2 else 140):
                tensors[name]["underflow_pct"] = 90.0

    run = Run(steps=60, after=spread)
    verdicts = life(run.info(), run.rows())
    found = {v["source"]["last_step"]: v["findings"][0] for v in verdicts if v["findings"]}
    assert {f["cause"] for f in found.values()} == {"gradient_underflow"}
    assert found[139]["state"] == "confirmed"
    assert found[139]["affected_tensors"] == 2
    assert found[145]["state"] == "worsened"
    assert found[145]["affected_tensors"] == 4
    assert len({f["id"] for f in found.values()}) == 1


def test_a_recovered_finding_has_its_last_step_and_leaves_the_live_status() -> None:
    poison = amax_history_poisoning.POISON
    verdicts = life(poison.info(), poison.rows())
    last = verdicts[-1]["findings"][0]
    assert last["state"] == "recovered"
    assert last["resolved_step"] is not None
    assert last["log_next"] == []
    assert verdicts[-1]["status"] == "healthy"
    before = [v for v in verdicts if v["findings"] and v["findings"][0]["state"] != "recovered"]
    assert before[-1]["source"]["last_step"] < last["resolved_step"] + 2
    assert before[-1]["findings"][0]["resolved_step"] is None


def proven_late(cause: str, onset: int, *, detected: int) -> Rule:
    """A rule that has one finding, from the step on whose data prove it."""

    def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
        if window.last_step >= detected:
            yield Finding(
                cause=cause,
                symptom="underflow",
                severity="warning",
                confidence=0.9,
                onset=onset,
                detected=detected,
                summary=f"{cause} since step {onset}.",
                evidence=(),
                remedy=Remedy("look"),
                decisive_test="look again",
            )

    return Rule(f"FS{onset}", cause, (cause,), (), check)


STAGNATION, UNDERFLOW = ("update_stagnation", 12, 20), ("gradient_underflow", 16, 25)
SUMS = ("accumulation_precision", 8, 30)


@pytest.mark.parametrize("threshold", [AS_STATED.threshold, 0.95], ids=["named", "undetermined"])
def test_of_two_alarms_that_one_cause_explains_the_second_is_replaced(threshold: float) -> None:
    """The first lends the cause its identity; the second becomes a note that points to it."""
    rules = tuple(proven_late(c, onset, detected=seen) for c, onset, seen in (STAGNATION, UNDERFLOW, SUMS))
    rows = [{"step": s, "loss": 2.0} for s in range(40)]
    verdicts = life({}, rows, rules=rules, calibration=replace(AS_STATED, threshold=threshold))
    before, after = verdicts[29]["findings"], verdicts[30]["findings"]
    assert [f["state"] for f in before] == ["confirmed", "confirmed"]
    cause, note = after
    assert [cause["id"], note["id"]] == [f["id"] for f in before]
    assert (note["state"], note["replaced_by"], note["severity"]) == ("replaced", cause["id"], "info")
    assert cause["state"] != "replaced"
    assert "gradient underflow at step 25" in cause["summary"]
    assert [f["id"] for f in verdicts[-1]["findings"]] == [f["id"] for f in after]


@pytest.mark.parametrize(
    "case",
    [c for n, c in all_cases() if c.want and n not in TAKEN_BACK and not any(r.get("rank") for r in c.rows)],
    ids=lambda c: c.name,
)
def test_an_alarm_keeps_its_identity_until_the_end(case: Case) -> None:
    info = {k: v for k, v in case.info.items() if k not in ("status", "reason")}
    alive: set[str] = set()
    for verdict in life(info, case.rows, every=4):
        now = {f["id"] for f in verdict["findings"]}
        assert alive <= now
        assert len(now) == len(verdict["findings"])
        alive = {f["id"] for f in verdict["findings"] if f["severity"] != "info" or f["state"] == "replaced"}


PROVEN_LATE = ("accumulation_precision", "plateau", "amax_history_poisoning", "optimizer_state_fault")


@pytest.mark.parametrize(
    "case",
    [c for n, c in all_cases() if c.want and n.partition(":")[0] in PROVEN_LATE],
    ids=lambda c: c.name,
)
def test_no_alarm_is_said_to_be_proven_before_it_was_raised(case: Case) -> None:
    raised: dict[str, int] = {}
    verdicts = life(case.info, case.rows)
    for verdict in verdicts:
        for f in verdict["findings"]:
            if f["severity"] != "info":
                raised.setdefault(f["id"], verdict["source"]["last_step"])
    for f in verdicts[-1]["findings"]:
        if f["id"] in raised:
            assert f["detected_step"] >= raised[f["id"]], f["cause"]


def test_states_do_not_depend_on_the_batches() -> None:
    run = Run(before=spike_on(130, 999, "blocks.1.mlp.fc2/input"))
    singles, blocks = life(run.info(), run.rows()), life(run.info(), run.rows(), every=20)
    assert singles[-1] == blocks[-1]
    assert singles[39] == blocks[1]


@pytest.mark.parametrize("every", [2, 5, 10])
def test_of_a_sparse_log_the_last_clean_step_is_one_that_was_logged(every: int) -> None:
    run = Run(steps=600, first_step=0, after=flushed)
    rows = [r for r in run.rows() if r["step"] % every == 0]
    verdict = life(run.info(), rows, every=len(rows))[-1]
    found = verdict["findings"][0]
    steps = {r["step"] for r in rows}
    assert verdict["last_clean_step"] in steps
    assert verdict["last_clean_step"] == max(s for s in steps if s < found["onset_step"])
    assert found["onset_window"][0] == verdict["last_clean_step"] + 1
    assert found["resolved_step"] is None or found["resolved_step"] in steps


def test_statistics_of_every_fifth_step_bound_the_onset_by_their_own_steps() -> None:
    run = Run(steps=500, first_step=0, after=flushed)
    rows = [{k: v for k, v in r.items() if k != "tensors" or r["step"] % 5 == 0} for r in run.rows()]
    verdict = life(run.info(), rows, every=len(rows))[-1]
    assert verdict["findings"][0]["onset_step"] == 335
    assert verdict["findings"][0]["onset_window"] == [331, 335]
    assert verdict["last_clean_step"] == 330


def test_a_fault_at_a_resume_is_clean_up_to_the_checkpoint() -> None:
    run = Run(steps=80, first_step=0)
    again = Run(steps=60, first_step=50, after=broken, seed=8)
    verdict = life(run.info(), [*run.rows(), *again.rows()], every=200)[-1]
    assert (verdict["findings"][0]["segment"], verdict["findings"][0]["onset_step"]) == (1, 50)
    assert verdict["findings"][0]["onset_window"][0] == 50
    assert verdict["last_clean_step"] == 49
