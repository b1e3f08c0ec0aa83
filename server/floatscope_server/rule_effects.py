"""What the settings of rules mean for the alerts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floatscope_server.store.rule_settings import BEHIND

NO_LONGER = "the finding is no longer made"
SETTINGS_CHANGED = "settings changed"


def alerting_findings(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The findings of a verdict that may have an alert: without those that are notes only because somebody
    set it so.
    """
    found: Sequence[Mapping[str, Any]] = body.get("findings", [])
    settings = body.get("rule_settings")
    if not isinstance(settings, Mapping):
        return found
    quiet = {code for code, setting in settings.items() if setting.get("severity") == "info"}
    return [f for f in found if f.get("rule") not in quiet or f.get("state") == "replaced"]


def why_gone(baseline_arrivals: int) -> str:
    """Why an alert's finding is not made any more, for its history.

    baseline_arrivals: of the run before it was judged; BEHIND tells that a setting was changed.
    """
    return SETTINGS_CHANGED if baseline_arrivals == BEHIND else NO_LONGER
