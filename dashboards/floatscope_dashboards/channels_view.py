"""What the page of rules knows of channels and silences. No address and no secret is in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True)
class QuietView:
    """Hours in which only critical alerts are told, from start to end by the clocks of a zone, on the days on
    which they begin. An end at or before the start is on the next day.
    """

    zone: str
    start: time
    end: time
    days: tuple[str, ...]


@dataclass(frozen=True)
class DeliveryView:
    """The newest message of a channel. state: pending, sent or dead.  moment: when it was sent or given up;
    when it is tried next while it is pending.
    """

    state: str
    attempts: int
    moment: datetime
    error: str | None = None


@dataclass(frozen=True)
class ChannelView:
    """A channel. host: of its address, None if not known.  repeat_s, escalate_s: seconds, None for never and
    for at once.  from_settings: it comes from the server's environment.
    """

    id: str
    kind: str
    name: str
    host: str | None
    min_severity: str
    projects: tuple[str, ...]
    enabled: bool
    repeat_s: float | None
    escalate_s: float | None
    quiet: QuietView | None
    signed: bool
    from_settings: bool
    last: DeliveryView | None = None


@dataclass(frozen=True)
class SilenceView:
    """A silence. state: waiting, active or ended.  run, project, family, cause: None for any.  held: alerts
    that it holds back now.
    """

    id: str
    state: str
    run: str | None
    project: str | None
    family: str | None
    cause: str | None
    starts: datetime
    ends: datetime | None
    critical: bool
    note: str
    by: str
    ended_by: str | None
    held: int = 0


@dataclass(frozen=True)
class ChannelsView:
    """Channels, silences that wait or hold, and the newest that ended. more_silences: whether there are more
    of the former than shown.
    """

    channels: tuple[ChannelView, ...] = ()
    silences: tuple[SilenceView, ...] = ()
    ended: tuple[SilenceView, ...] = ()
    more_silences: bool = False
