"""What a channel is to be told of an alert now, or when to look again.

It compares what the channel heard last with what is. Nothing depends on how often or how late it is asked:
a server that was away for hours, or a clock that jumped, makes one message of what is true then.
"""

from __future__ import annotations

from dataclasses import dataclass

from floatscope_server.telling.notice import ESCALATED, PASSED, RAISED, RECOVERED, REPEATED, WORSENED
from floatscope_server.telling.states import FIRING, rank_of
from floatscope_server.telling.states import RECOVERED as IS_OVER
from floatscope_server.telling.terms import Terms

GROUP, ESCALATION, QUIET, MUTE = "group", "escalation", "quiet", "mute"
FLAPPING, REPEAT, SILENCE, NEW = "flapping", "repeat", "silence", "new"
JOINS_REPEATS = 0.25  # share of the interval by which a repeat may be early to go with another of its run


@dataclass(frozen=True)
class Heard:
    """What a channel knows of an alert.

    told: firing, recovered, or None for nothing. severity: as it heard it. told_at, raised_at: when it last
    heard anything, and that the alert began. raises: how often it began since then; repeats: how often it was
    told again. messages: all of them. worse: it got worse at the same severity. waits: what it waits for.
    """

    told: str | None = None
    severity: str | None = None
    told_at: float | None = None
    raised_at: float | None = None
    raises: int = 1
    repeats: int = 0
    messages: int = 0
    worse: bool = False
    waits: str | None = NEW
    due: float | None = None


@dataclass(frozen=True)
class Situation:
    """What is now. since: when it last began to fire. ended: whether the run ended."""

    state: str
    severity: str
    since: float
    mute_until: float | None = None
    ended: bool = False


@dataclass(frozen=True)
class Decision:
    """Either an event to tell now, or when to look again (None: when something happens) and what for."""

    event: str | None = None
    due: float | None = None
    waits: str | None = None


NOTHING = Decision()


def decide(alert: Situation, heard: Heard, terms: Terms, now: float, *, early: bool = False) -> Decision:
    """early: another message about the run goes out now, so what would only wait for company goes with it."""
    if alert.state == IS_OVER:
        wanted = _over(alert, heard, terms, now)
    elif alert.state == FIRING and terms.wants(alert.severity):
        wanted = _firing(alert, heard, terms, now, early)
    else:
        return NOTHING
    if wanted.event is None:
        return wanted
    if alert.mute_until is not None and now < alert.mute_until:
        return Decision(due=alert.mute_until, waits=MUTE)
    is_loud = "critical" in (alert.severity, heard.severity if wanted.event == RECOVERED else None)
    if terms.quiet is not None and not is_loud:
        quiet_until = terms.quiet.until(now)
        if quiet_until is not None:
            return NOTHING if wanted.event == PASSED else Decision(due=quiet_until, waits=QUIET)
    return wanted


def _over(alert: Situation, heard: Heard, terms: Terms, now: float) -> Decision:
    if heard.told == FIRING:
        return Decision(RECOVERED)
    if heard.told is None and heard.waits in (NEW, GROUP, SILENCE) and terms.wants(alert.severity):
        return NOTHING if terms.escalate_s is not None else Decision(PASSED)
    return NOTHING


def _firing(alert: Situation, heard: Heard, terms: Terms, now: float, early: bool) -> Decision:
    if heard.told != FIRING:
        not_before, waits = _begins(alert, heard, terms, early)
        if now < not_before:
            return Decision(due=not_before, waits=waits)
        return Decision(RAISED if terms.escalate_s is None else ESCALATED)
    if heard.worse or rank_of(alert.severity) > rank_of(heard.severity or alert.severity):
        return Decision(WORSENED)
    if terms.repeat_s is None:
        return NOTHING
    if alert.ended:  # nothing burns; it may be resumed, so look again at the pace of repeats
        return Decision(due=now + terms.repeat_s, waits=REPEAT)
    again = (heard.told_at or now) + terms.repeat_s
    if now < again - (terms.repeat_s * JOINS_REPEATS if early else 0.0):
        return Decision(due=again, waits=REPEAT)
    return Decision(REPEATED)


def _begins(alert: Situation, heard: Heard, terms: Terms, early: bool) -> tuple[float, str]:
    """The earliest time at which it is told that the alert fires, and what it waits for until then."""
    if terms.escalate_s is not None:
        return alert.since + terms.escalate_s, ESCALATION
    alone = early or alert.severity == "critical"
    grouped = alert.since if alone else alert.since + terms.group_s
    stable = _stable(alert, heard, terms)
    if stable is not None and stable > grouped:
        return stable, FLAPPING
    return grouped, SILENCE if heard.waits == SILENCE else GROUP


def _stable(alert: Situation, heard: Heard, terms: Terms) -> float | None:
    """An alert that comes and goes is told once it has fired for a while, or after the repeat interval."""
    if heard.raised_at is None or heard.told_at is None:
        return None
    if heard.raises <= 1 and alert.since - heard.told_at >= terms.flap_s:
        return None
    return min(alert.since + terms.flap_s, heard.raised_at + (terms.repeat_s or terms.flap_s))
