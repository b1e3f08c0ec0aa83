"""Whether the server's verdict about a run is right, and what its loss showed by then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_trainer.demo.plan import DemoRun

LOSS_SHOWS_PCT = 1.0
"""Difference to the healthy twin from which a person who watches the loss might notice something."""
SEVERITIES = ("info", "warning", "critical")
QUIET = ("healthy", "watch")


@dataclass(frozen=True)
class Outcome:
    """One line of the table.

    status: of the verdict.  finding: what a person reads first, None if nothing was found.  late: steps from
    the fault to its detection.  loss_pct: loss relative to the healthy twin's at the detection, in percent;
    NaN if the loss was NaN, None without a twin or a detection.  why_wrong: None if the verdict is right.
    """

    run: DemoRun
    run_id: str
    status: str
    finding: Mapping[str, Any] | None
    late: int | None
    loss_pct: float | None
    why_wrong: str | None

    def of_finding(self, key: str) -> Any:
        """A field of the finding; None without one."""
        return None if self.finding is None else self.finding.get(key)

    @property
    def loss_shows(self) -> bool:
        """Whether the loss was visibly off when the fault was detected. NaN is."""
        return self.loss_pct is not None and not abs(self.loss_pct) < LOSS_SHOWS_PCT


def judge(
    run: DemoRun,
    verdict: Mapping[str, Any],
    *,
    run_id: str,
    loss: Mapping[int, float],
    twin: Mapping[int, float],
) -> Outcome:
    """The outcome.  loss, twin: loss by step of the run and of its healthy twin; empty if there is none."""
    finding = main_finding(verdict)
    status = str(verdict["status"])
    detected = None if finding is None else finding.get("detected_step")
    return Outcome(
        run=run,
        run_id=run_id,
        status=status,
        finding=finding,
        late=None if detected is None or run.fault_step is None else int(detected) - run.fault_step,
        loss_pct=_difference_pct(detected, loss, twin),
        why_wrong=_why_wrong(run, status, finding),
    )


def main_finding(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first to read: not replaced, more than information, the most severe, of these the earliest."""
    found = [
        f for f in verdict["findings"] if f.get("state") != "replaced" and f["severity"] != SEVERITIES[0]
    ]
    return min(found, key=lambda f: (-SEVERITIES.index(f["severity"]), f["onset_step"]), default=None)


def _why_wrong(run: DemoRun, status: str, finding: Mapping[str, Any] | None) -> str | None:
    expected = run.expected
    if expected.cause is None:
        return None if finding is None and status in QUIET else "false alarm"
    if finding is None:
        return "not found"
    if finding["cause"] != expected.cause:
        return f"is {expected.cause}"
    if expected.layers and finding.get("layer") not in expected.layers:
        return f"is in {expected.layers[0]}"
    if expected.onset is not None and not expected.onset[0] <= finding["onset_step"] <= expected.onset[1]:
        return f"began at {run.fault_step}"
    return None


def _difference_pct(step: int | None, loss: Mapping[int, float], twin: Mapping[int, float]) -> float | None:
    if step is None or step not in loss or step not in twin:
        return None
    return 100.0 * (loss[step] - twin[step]) / abs(twin[step])


def read_losses(log: str) -> dict[int, float]:
    """Loss by step from a floatscope log; steps without a loss are left out."""
    losses: dict[int, float] = {}
    for line in log.splitlines():
        row = json.loads(line)
        if "step" in row and row.get("loss") is not None:
            losses[int(row["step"])] = float(row["loss"])  # "NaN" and "Infinity" are texts that float() reads
    return losses
