"""The signals a rule says it needs are those it needs: without all others its finding is still made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from floatscope_diagnostics.rule import Rule
from floatscope_diagnostics.rules import load_rules
from tests.diagnostics.case import alarms, diagnose
from tests.diagnostics.test_rules import case_modules

KEPT = ("step", "rank", "time", "segment")
# What detectors use to know a healthy moment from a faulty one, whatever the rule.
CONTEXT = ("loss", "lr", "loss_scale", "skipped_steps", "passes", "resumed", "ref_loss")


def only(row: Mapping[str, Any], rule: Rule) -> dict[str, Any]:
    scalars = {n.signal for n in rule.needs if not n.roles} | set(KEPT) | set(CONTEXT)
    stats = {(role, n.signal) for n in rule.needs for role in n.roles}
    out: dict[str, Any] = {k: v for k, v in row.items() if k in scalars}
    if "tensors" in row:
        out["tensors"] = {
            name: {k: v for k, v in values.items() if (name.rpartition("/")[2], k) in stats}
            for name, values in row["tensors"].items()
        }
    return out


@pytest.mark.parametrize("rule", load_rules(), ids=lambda r: r.code)
def test_a_rule_needs_no_more_than_it_says(rule: Rule) -> None:
    cases = [c for c in case_modules()[rule.name].CASES if any(w.cause in rule.causes for w in c.want)]
    tried = made = 0
    for case in cases:
        if rule.code not in [f["rule"] for f in alarms(diagnose(case))]:
            continue  # another rule's finding is the better one there
        tried += 1
        made += rule.code in [
            f["rule"] for f in alarms(diagnose(replace(case, rows=[only(r, rule) for r in case.rows])))
        ]
    assert made or not tried, "needs more signals than it says"
