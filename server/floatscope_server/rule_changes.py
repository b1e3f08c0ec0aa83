"""Changing what is set for a rule: stored with the audit log in one transaction, then live runs are judged
with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope_diagnostics.rule_settings import RuleSetting
from floatscope_diagnostics.thresholds import Threshold
from floatscope_server.callers import Caller
from floatscope_server.database import Database
from floatscope_server.store import audit, rule_settings
from floatscope_server.store.rule_settings import StoredSetting


@dataclass(frozen=True)
class Change:
    """What a change replaced: before, after None where nothing is set.  runs: that are judged anew."""

    before: StoredSetting | None
    after: StoredSetting | None
    runs: int

    def diff(self, thresholds: Sequence[Threshold]) -> list[dict[str, Any]]:
        """One entry for each value that is another one now. thresholds: those the rule has."""
        old, new = _flat(self.before, thresholds), _flat(self.after, thresholds)
        return [
            {"name": name, "before": old[name], "after": new[name]} for name in old if old[name] != new[name]
        ]


class RuleChanges:
    """Stores settings. judge_later: takes the id of a run whose verdict is behind what is set."""

    def __init__(
        self,
        *,
        database: Database,
        judge_later: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._judge_later = judge_later
        self._clock = clock

    def put(self, by: Caller, *, project: str, rule: str, setting: RuleSetting, note: str | None) -> Change:
        """Sets it, in place of what was set for exactly this project."""
        now = self._clock()
        stored = StoredSetting(
            project=project,
            rule=rule,
            enabled=setting.enabled,
            severity=setting.severity,
            thresholds=setting.thresholds,
            note=note,
            updated=now,
            updated_by=by.name,
        )
        return self._change(by, project=project, rule=rule, after=stored, now=now)

    def remove(self, by: Caller, *, project: str, rule: str) -> Change:
        """Takes away what is set for exactly this project; nothing set is no change."""
        return self._change(by, project=project, rule=rule, after=None, now=self._clock())

    def _change(
        self, by: Caller, *, project: str, rule: str, after: StoredSetting | None, now: float
    ) -> Change:
        with self._database.write() as c:
            before = rule_settings.find(c, project=project, rule=rule, lock=True)
            if before is None and after is None:
                return Change(None, None, 0)
            if after is None:
                rule_settings.remove(c, project=project, rule=rule)
            else:
                rule_settings.put(c, after)
            judged_anew = rule_settings.mark_behind(c, project=project, rule=rule)
            detail = {
                "project": project,
                "before": None if before is None else before.to_json(),
                "after": None if after is None else after.to_json(),
                "note": None if after is None else after.note,
            }
            audit.write(c, by, "rule.change", target=rule, detail=detail, now=now)
        for run_id in judged_anew:
            self._judge_later(run_id)
        return Change(before, after, len(judged_anew))


def _flat(setting: StoredSetting | None, thresholds: Sequence[Threshold]) -> Mapping[str, Any]:
    """Values by name; those of the rule as it was written where nothing is set."""
    moved = {} if setting is None else setting.thresholds
    return {
        "enabled": True if setting is None else setting.enabled,
        "severity": None if setting is None else setting.severity,
        **{t.name: moved.get(t.name, t.default) for t in thresholds},
    }
