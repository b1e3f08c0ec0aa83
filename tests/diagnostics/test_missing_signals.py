"""What is said where a part of the run is not logged: a symptom, the honest candidates, and what to log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from floatscope_diagnostics.calibration import fitted
from tests.diagnostics.case import Case, alarms, diagnose
from tests.diagnostics.test_rules import all_cases


def case_of(rule: str, cause: str, *, kind: str | None = None) -> Case:
    """The first case of a rule's file that wants this cause and kind."""
    return next(
        c
        for name, c in all_cases()
        if name.startswith(f"{rule}:") and any((w.cause, w.kind) == (cause, kind) for w in c.want)
    )


def first(case: Case) -> dict[str, Any]:
    return alarms(diagnose(case, calibration=fitted()))[0]


def only(case: Case, *scalars: str) -> Case:
    info = {k: v for k, v in case.info.items() if k in ("name", "ranks")}
    rows = [{k: v for k, v in row.items() if k in ("step", "rank", *scalars)} for row in case.rows]
    return replace(case, info=info, rows=rows)


def seldom(case: Case, every: int) -> Case:
    """All scalars, and the statistics of tensors on every so many-th step only."""
    rows = [dict(row) for row in case.rows]
    for row in rows:
        if row["step"] % every:
            row.pop("tensors", None)
    return replace(case, rows=rows)


def causes(finding: dict[str, Any]) -> list[str]:
    return [a["cause"] for a in finding["alternatives"]]


def test_nan_in_the_loss_alone_may_have_come_with_the_batch() -> None:
    found = first(only(case_of("invalid_input", "invalid_input", kind="nonfinite_values"), "loss"))
    assert found["cause"] == "undetermined"
    assert causes(found) == ["invalid_input", "op_kernel_fault"]
    assert "next batch" in found["decisive_test"]


def test_a_loss_that_stepped_up_alone_may_be_the_rate() -> None:
    bare = only(case_of("data_shift", "data_shift"), "loss", "grad_norm")
    found = first(bare)
    assert found["cause"] == "undetermined"
    assert causes(found) == ["data_shift", "lr_divergence"]
    assert "healthy numerics" not in found["summary"]
    assert {"lr", "update_norm"} <= {w["signal"] for w in found["log_next"]}


def test_the_first_tensor_logged_is_not_the_first_of_the_network() -> None:
    case = case_of("invalid_input", "invalid_input", kind="nonfinite_values")
    rows = [dict(row) for row in case.rows]
    for row in rows:
        row["tensors"] = {t: s for t, s in row["tensors"].items() if t.startswith("blocks.1.")}
    found = first(replace(case, rows=rows))
    assert found["cause"] == "undetermined"
    assert "not the first of the network" in found["summary"]
    assert set(causes(found)) == {"invalid_input", "op_kernel_fault"}


def test_zeros_in_a_sum_are_no_proof_where_gradients_are_seldom_seen() -> None:
    case = case_of("accumulation_precision", "accumulation_precision")
    assert first(case)["cause"] == "accumulation_precision"
    found = first(seldom(case, 5))
    assert found["cause"] == "undetermined"
    assert set(causes(found)) == {"accumulation_precision", "gradient_underflow"}
    assert "underflow_pct" in {w["signal"] for w in found["log_next"]}


def test_a_leap_between_two_logged_steps_may_be_growth() -> None:
    case = case_of("corrupted_weight", "undetermined")
    assert "activation_outlier_growth" not in causes(first(case))
    found = first(seldom(case, 2))
    assert causes(found)[0] == "activation_outlier_growth"
    assert "bit flip" not in found["summary"]
