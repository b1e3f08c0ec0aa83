"""Channels and silences in words, and quiet hours as a picture of a week."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from floatscope_dashboards.channels_view import DAYS, ChannelsView, ChannelView, QuietView, SilenceView
from floatscope_dashboards.family_words import FAMILIES
from floatscope_dashboards.say import MINUTE_S, Say, later
from floatscope_dashboards.wording import CAUSES

KINDS: Mapping[str, str] = {
    "slack": later("Slack"),
    "webhook": later("Webhook"),
    "apprise": later("Apprise"),
}
FROM: Mapping[str, str] = {
    "info": later("Notes and worse"),
    "warning": later("Warning and worse"),
    "critical": later("Critical only"),
}
DAY_NAMES: Mapping[str, str] = {
    "mon": later("Mon"),
    "tue": later("Tue"),
    "wed": later("Wed"),
    "thu": later("Thu"),
    "fri": later("Fri"),
    "sat": later("Sat"),
    "sun": later("Sun"),
}
MINUTES_A_DAY = 24 * 60
MOST_PROJECTS_NAMED = 3
NAME_CHARS = 80


@dataclass(frozen=True)
class WeekDay:
    """One day of a week: bars from and to which minute it is quiet."""

    name: str
    bars: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ChannelWords:
    """A channel as it is shown. terms: what it is told, a sentence each.  week: None without quiet hours."""

    channel: ChannelView
    kind: str
    terms: tuple[str, ...]
    quiet: str
    week: tuple[WeekDay, ...] | None


@dataclass(frozen=True)
class SilenceWords:
    """A silence as it is shown. title: the note, or what it covers.  left: how long it lasts."""

    silence: SilenceView
    title: str
    scope: str
    left: str


@dataclass(frozen=True)
class ToldWords:
    """Everything in the column beside the rules."""

    channels: tuple[ChannelWords, ...]
    silences: tuple[SilenceWords, ...]
    ended: tuple[SilenceWords, ...]
    more_silences: bool


def told_words(view: ChannelsView, say: Say, *, now_s: float) -> ToldWords:
    """now_s: Unix seconds."""
    return ToldWords(
        tuple(_channel(channel, say) for channel in view.channels),
        tuple(_silence(silence, say, now_s) for silence in view.silences),
        tuple(_silence(silence, say, now_s) for silence in view.ended),
        view.more_silences,
    )


def week_of(quiet: QuietView, say: Say) -> tuple[WeekDay, ...]:
    """The quiet minutes of each day, those that began the day before among them."""
    bars: dict[str, set[tuple[int, int]]] = {day: set() for day in DAYS}
    start = quiet.start.hour * 60 + quiet.start.minute
    end = quiet.end.hour * 60 + quiet.end.minute
    for index, day in enumerate(DAYS):
        if day not in quiet.days:
            continue
        if end > start:
            bars[day].add((start, end))
        else:
            bars[day].add((start, MINUTES_A_DAY))
            if end:
                bars[DAYS[(index + 1) % len(DAYS)]].add((0, end))
    return tuple(WeekDay(say(DAY_NAMES[day]), tuple(sorted(bars[day]))) for day in DAYS)


def quiet_text(quiet: QuietView, say: Say) -> str:
    """Quiet hours in a sentence."""
    times = {"start": f"{quiet.start:%H:%M}", "end": f"{quiet.end:%H:%M}", "zone": quiet.zone}
    if set(quiet.days) == set(DAYS):
        return say("Quiet from {start} to {end} every day, {zone}.", **times)
    days = ", ".join(say(DAY_NAMES[day]) for day in DAYS if day in quiet.days)
    return say("Quiet from {start} to {end} on {days}, {zone}.", days=days, **times)


def _channel(channel: ChannelView, say: Say) -> ChannelWords:
    terms = [f"{_whom(channel, say)}"]
    if channel.escalate_s is not None:
        terms.append(say("Only what nobody acknowledged for {time}.", time=say.duration(channel.escalate_s)))
    if channel.repeat_s is not None:
        terms.append(
            say("Again every {time} until somebody acknowledges.", time=say.duration(channel.repeat_s))
        )
    quiet = channel.quiet
    return ChannelWords(
        channel,
        say(KINDS[channel.kind]) if channel.kind in KINDS else channel.kind,
        tuple(terms),
        "" if quiet is None else quiet_text(quiet, say),
        None if quiet is None else week_of(quiet, say),
    )


def _whom(channel: ChannelView, say: Say) -> str:
    severity = say(FROM.get(channel.min_severity, channel.min_severity))
    if not channel.projects:
        return say("{severity}, every project.", severity=severity)
    named = ", ".join(_short(name) for name in channel.projects[:MOST_PROJECTS_NAMED])
    more = len(channel.projects) - MOST_PROJECTS_NAMED
    if more > 0:
        return say("{severity}, projects {names} and {n} more.", severity=severity, names=named, n=more)
    count = len(channel.projects)
    return say.plural(
        "{severity}, project {names}.", "{severity}, projects {names}.", count, severity=severity, names=named
    )


def _silence(silence: SilenceView, say: Say, now_s: float) -> SilenceWords:
    scope = _scope(silence, say)
    return SilenceWords(silence, silence.note or scope, scope, _left(silence, say, now_s))


def _scope(silence: SilenceView, say: Say) -> str:
    if silence.cause is not None:
        what = say(CAUSES.get(silence.cause, silence.cause))
    elif silence.family is not None:
        what = say(FAMILIES.get(silence.family, silence.family))
    else:
        what = say("Every finding") if silence.critical else say("Every warning")
    if silence.run is not None:
        return say("{what} on run {name}", what=what, name=_short(silence.run))
    if silence.project is not None:
        return say("{what} in project {name}", what=what, name=_short(silence.project))
    return say("{what} in every project", what=what)


def _short(name: str) -> str:
    """A name within a sentence: one of 1 kB would be all that is seen of it."""
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}\u2026"


def _left(silence: SilenceView, say: Say, now_s: float) -> str:
    if silence.state == "waiting":
        return say("begins in {time}", time=_minutes(silence.starts.timestamp() - now_s, say))
    if silence.state == "ended" or silence.ends is None:
        return ""
    return say("{time} left", time=_minutes(silence.ends.timestamp() - now_s, say))


def _minutes(seconds: float, say: Say) -> str:
    """A duration to the nearest minute: what lasts for hours is not told as one second less."""
    return say.duration(seconds if seconds < MINUTE_S else MINUTE_S * round(seconds / MINUTE_S))
