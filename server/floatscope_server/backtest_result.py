"""What a back-test found: per run, in total, and in one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from floatscope_server.rule_effects import alerting_findings
from floatscope_server.store.rule_history import Raised

MOST_RUNS_SHOWN = 200
MOST_SKIPPED_SHOWN = 50
ALERTING = ("warning", "critical")
WORDS: Mapping[str | None, str] = {
    "confirmed": "confirmed",
    "not_the_cause": "not the cause",
    None: "without a word",
}


@dataclass(frozen=True)
class Firing:
    """One alarm of the rule. said: ``confirmed``, ``not_the_cause`` or None.  time: of the onset, Unix
    seconds, None if not known.
    """

    id: str
    onset_step: int
    segment: int
    detected_step: int | None
    severity: str
    cause: str
    said: str | None = None
    time: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def same_as(self, other: Firing) -> bool:
        """Whether it is about the same incident."""
        return self.id == other.id or (self.segment, self.onset_step) == (other.segment, other.onset_step)


@dataclass(frozen=True)
class RunResult:
    """One run. now, proposed: alarms of the rule as it is set, and as it would be.  elsewhere: rules whose
    alarms would come instead, by code.  raised: alerts of the rule that the run really had, those that came
    and went among them.
    """

    run_id: str
    name: str
    project: str
    now: tuple[Firing, ...]
    proposed: tuple[Firing, ...]
    elsewhere: tuple[str, ...] = ()
    raised: int = 0

    @property
    def added(self) -> tuple[Firing, ...]:
        return tuple(f for f in self.proposed if not any(f.same_as(o) for o in self.now))

    @property
    def dropped(self) -> tuple[Firing, ...]:
        return tuple(f for f in self.now if not any(f.same_as(o) for o in self.proposed))

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "name": self.name,
            "project": self.project,
            "fires": bool(self.now),
            "would_fire": bool(self.proposed),
            "did_fire": self.raised,
            "now": [f.to_json() for f in self.now],
            "proposed": [f.to_json() for f in self.proposed],
            "added": [f.id for f in self.added],
            "dropped": [f.id for f in self.dropped],
            "lost_confirmed": sum(f.said == "confirmed" for f in self.dropped),
            "elsewhere": list(self.elsewhere),
        }


@dataclass
class Result:
    """What is known so far. total: runs to look at.  days: back from now, None for runs by name."""

    total: int
    days: int | None = None
    runs: list[RunResult] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    rows: int = 0
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        firing = [r for r in self.runs if r.now or r.proposed or r.elsewhere or r.raised]
        now = [f for r in self.runs for f in r.now]
        proposed = [f for r in self.runs for f in r.proposed]
        added = [f for r in self.runs for f in r.added]
        dropped = [f for r in self.runs for f in r.dropped]
        return {
            "progress": {
                "runs": self.total,
                "done": len(self.runs) + len(self.skipped),
                "rows_replayed": self.rows,
            },
            "sentence": self.sentence(),
            "totals": {
                "runs": len(self.runs),
                "skipped": len(self.skipped),
                "now": _counted(now),
                "proposed": _counted(proposed),
                "added": _counted(added),
                "dropped": _counted(dropped),
                "elsewhere": sum(len(r.elsewhere) for r in self.runs),
            },
            "runs": [r.to_json() for r in firing[:MOST_RUNS_SHOWN]],
            "runs_left_out": max(len(firing) - MOST_RUNS_SHOWN, 0),
            "skipped": [{"run_id": run_id, "why": why} for run_id, why in self.skipped[:MOST_SKIPPED_SHOWN]],
            "reason": self.reason,
        }

    def sentence(self) -> str:
        """All of it for somebody who reads no table."""
        now = [f for r in self.runs for f in r.now]
        proposed = [f for r in self.runs for f in r.proposed]
        lost = sum(f.said == "confirmed" for r in self.runs for f in r.dropped)
        span = f" in the last {self.days} days" if self.days else f" in {_number(len(self.runs), 'run')}"
        fired = f"Would have fired {_told(proposed)}" if proposed else "Would not have fired"
        fires = f"As it is set now it fired {_told(now)}" if now else "As it is set now it did not fire"
        text = f"{fired}{span}{_said(proposed)}. {fires}{_said(now)}."
        if lost:
            text += f" It would lose {_number(lost, 'alarm')} that people confirmed."
        if self.skipped:
            text += f" {_number(len(self.skipped), 'run')} could not be looked at."
        return text


def firings(body: Mapping[str, Any], rule: str, raised: Mapping[str, Raised]) -> tuple[Firing, ...]:
    """The alarms of one rule in a verdict. raised: the run's alerts, by the id of the finding."""
    return tuple(
        Firing(
            id=str(f["id"]),
            onset_step=int(f["onset_step"]),
            segment=int(f.get("segment") or 0),
            detected_step=f.get("detected_step"),
            severity=str(f["severity"]),
            cause=str(f["cause"]),
            said=raised[str(f["id"])].said if str(f["id"]) in raised else None,
        )
        for f in _alarms(body)
        if f.get("rule") == rule
    )


def elsewhere(now: Mapping[str, Any], proposed: Mapping[str, Any], rule: str) -> tuple[str, ...]:
    """Other rules that alarm under the proposed settings and not under those of now, one entry an alarm."""
    before = {(f.get("rule"), f["id"]) for f in _alarms(now)}
    new = [f for f in _alarms(proposed) if f.get("rule") != rule and (f.get("rule"), f["id"]) not in before]
    return tuple(sorted(str(f.get("rule")) for f in new))


def _alarms(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = alerting_findings(body)
    return [f for f in found if f.get("severity") in ALERTING and f.get("state") != "replaced"]


def _counted(found: Sequence[Firing]) -> dict[str, Any]:
    delays = [f.detected_step - f.onset_step for f in found if f.detected_step is not None]
    return {
        "fired": len(found),
        "confirmed": sum(f.said == "confirmed" for f in found),
        "not_the_cause": sum(f.said == "not_the_cause" for f in found),
        "typical_delay_steps": statistics.median_low(delays) if delays else None,
    }


def _said(found: Sequence[Firing]) -> str:
    if not found:
        return ""
    counts = {said: sum(f.said == said for f in found) for said in WORDS}
    return ": " + ", ".join(f"{n} {WORDS[said]}" for said, n in counts.items() if n)


def _told(found: Sequence[Firing]) -> str:
    return "once" if len(found) == 1 else f"{len(found):,} times"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
