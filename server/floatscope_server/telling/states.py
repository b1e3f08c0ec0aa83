"""States of an alert: what each event does in each state. Pure; the table is in docs/alerts.md."""

from __future__ import annotations

from dataclasses import dataclass, replace

SEVERITIES = ("info", "warning", "critical")
STATES = ("firing", "acknowledged", "resolved", "recovered", "silenced")
FIRING, ACKNOWLEDGED, RESOLVED, RECOVERED, SILENCED = STATES

ENGINE_EVENTS = (
    "raised",  # the fault began, or began again after it was over
    "severity_changed",
    "worsened",  # worse at the same severity
    "recovered",
    "replaced",  # another finding explains it now
    "withdrawn",  # the finding is no longer made
)
PEOPLE_EVENTS = ("acknowledge", "resolve", "not_the_cause", "reopen", "note")
SILENCE_EVENTS = ("silenced", "silence_ended")
EVENTS = ENGINE_EVENTS + PEOPLE_EVENTS + SILENCE_EVENTS


def rank_of(severity: str) -> int:
    """Severities in order; one that is not known counts least."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


@dataclass(frozen=True)
class Standing:
    """Where an alert stands.

    settled: the severity up to which people have dealt with it, None if they have not. rejected: somebody
    said that it is not the cause.
    """

    state: str
    severity: str
    settled: str | None = None
    rejected: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the fault goes on and nobody closed it."""
        return self.state in (FIRING, ACKNOWLEDGED, SILENCED)


def began(severity: str, *, covered: bool) -> Standing:
    """A new alert. covered: whether a silence covers it."""
    return Standing(SILENCED if covered else FIRING, severity)


def after(
    standing: Standing,
    event: str,
    *,
    severity: str | None = None,
    covered: bool = False,
    is_past: bool = False,
) -> Standing:
    """Where the alert stands after the event.

    severity: as the finding has it now; None: as before. covered: whether a silence covers the alert at that
    severity, so that it is silenced where it would fire. is_past: whether the run has recovered from it, so
    that what was closed does not fire when it is opened again.
    """
    now = replace(standing, severity=severity or standing.severity)
    fires = replace(now, state=SILENCED if covered else FIRING, settled=None, rejected=False)
    match event:
        case "raised":
            return now if _stays_closed(now) or now.state == ACKNOWLEDGED else fires
        case "severity_changed":
            return fires if _beyond(standing, now) else now
        case "recovered":
            settled = now.settled if now.rejected else None
            return replace(now, state=RECOVERED if now.is_open else now.state, settled=settled)
        case "replaced" | "withdrawn":
            return replace(now, state=RESOLVED)
        case "acknowledge" if now.state in (FIRING, SILENCED):
            return replace(now, state=ACKNOWLEDGED, settled=now.severity)
        case "resolve" | "not_the_cause":
            rejected = now.rejected or event == "not_the_cause"
            return replace(now, state=RESOLVED, settled=now.severity, rejected=rejected)
        case "reopen" if is_past and now.state == RESOLVED:
            return replace(fires, state=RECOVERED)
        case "reopen":
            return fires
        case "silenced" if now.state == FIRING:
            return replace(now, state=SILENCED)
        case "silence_ended" if now.state == SILENCED:
            return replace(now, state=FIRING)
    return now


def _beyond(before: Standing, now: Standing) -> bool:
    """Whether it got worse than what people dealt with."""
    if before.state not in (ACKNOWLEDGED, RESOLVED):
        return False
    known = before.settled or before.severity
    return rank_of(now.severity) > rank_of(known)


def _stays_closed(now: Standing) -> bool:
    if now.state != RESOLVED or not now.rejected:
        return False
    return rank_of(now.severity) <= rank_of(now.settled or now.severity)
