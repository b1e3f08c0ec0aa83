"""Hours of a channel in which only critical alerts are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from floatscope_server.errors import Refused

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LONGEST_DAYS = 8  # hours that touch for longer are always quiet; looked at again then
_ZONE_CHARS = 64


@dataclass(frozen=True)
class QuietHours:
    """From ``start`` to ``end`` by the clocks of a time zone, on the days on which they begin.

    An end at or before the start is on the next day, so equal times are a whole day.
    """

    zone: str
    start: time
    end: time
    days: tuple[str, ...] = DAYS

    @classmethod
    def of_json(cls, given: Mapping[str, Any], *, field: str = "quiet") -> QuietHours:
        """From ``{"zone": "Europe/Berlin", "from": "22:00", "to": "07:00", "days": ["mon", ...]}``; zone and
        days may be missing. Raises Refused.
        """
        for name in given:
            if name not in ("zone", "from", "to", "days"):
                raise Refused(f"{field}.{name}", "one of zone, from, to, days", name)
        zone = given.get("zone", "UTC")
        if not _is_zone(zone):
            raise Refused(f"{field}.zone", "the name of a time zone, such as Europe/Berlin", zone)
        days = given.get("days", list(DAYS))
        if not isinstance(days, list | tuple) or not days or any(day not in DAYS for day in days):
            raise Refused(f"{field}.days", "a list of some of " + ", ".join(DAYS), days)
        return cls(
            zone,
            _time(given.get("from"), field=f"{field}.from"),
            _time(given.get("to"), field=f"{field}.to"),
            tuple(day for day in DAYS if day in days),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "zone": self.zone,
            "from": self.start.strftime("%H:%M"),
            "to": self.end.strftime("%H:%M"),
            "days": list(self.days),
        }

    def until(self, now: float) -> float | None:
        """When the quiet that holds now ends, Unix seconds; None: it is not quiet.

        Hours that touch count as one, up to a week of them.
        """
        end: float | None = None
        moment = now
        while moment < now + LONGEST_DAYS * 86_400:
            later = self._end_of(moment)
            if later is None:
                break
            end = moment = later
        return end

    def _end_of(self, now: float) -> float | None:
        """End of the latest hours that began and hold at this time."""
        zone = ZoneInfo(self.zone)
        today = datetime.fromtimestamp(now, timezone.utc).astimezone(zone).date()
        ends = []
        for day in (today - timedelta(days=1), today):
            if DAYS[day.weekday()] not in self.days:
                continue
            last = day if self.end > self.start else day + timedelta(days=1)
            begin, end = _at(day, self.start, zone), _at(last, self.end, zone)
            if begin <= now < end:
                ends.append(end)
        return max(ends, default=None)


def _at(day: date, clock: time, zone: ZoneInfo) -> float:
    """Unix seconds of what the clocks there show; of an hour that comes twice the first."""
    return datetime.combine(day, clock, zone).timestamp()


def _is_zone(name: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= _ZONE_CHARS:
        return False
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a path out of the zones, or a folder of them
        return False
    return True


def _time(text: object, *, field: str) -> time:
    expected = "a time of day such as 22:00"
    if not isinstance(text, str) or len(text) != 5 or not text.isascii():
        raise Refused(field, expected, text)
    try:
        return datetime.strptime(text, "%H:%M").time()  # noqa: DTZ007 - a time of day has no zone of its own
    except ValueError as error:
        raise Refused(field, expected, text) from error
