"""The body of a generic webhook: the alert as the API shows it, and what happened to it."""

from __future__ import annotations

from typing import Any

from floatscope_server.notify import words
from floatscope_server.notify.links import Links
from floatscope_server.notify.plain import title_of
from floatscope_server.telling.notice import Notice, Subject
from floatscope_server.times import iso

SCHEMA = "floatscope.notification/1"


def message(notice: Notice, links: Links) -> dict[str, Any]:
    """The body; numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity"."""
    repeat = None
    if notice.repeat_number or notice.next_repeat is not None:
        due = notice.next_repeat
        repeat = {"number": notice.repeat_number, "next": None if due is None else iso(due)}
    return {
        "schema": SCHEMA,
        "event": notice.event,
        "time": iso(notice.now),
        "text": title_of(notice),
        "reason": notice.reason,
        "repeat": repeat,
        "alert": _alert(notice.lead, links),
        "further": [_alert(subject, links) for subject in notice.subjects[1:]],
        "more": notice.more,
    }


def test(name: str, *, now: float) -> dict[str, Any]:
    text = f"Test: floatscope reaches this channel ({words.cut(name, words.NAME_CHARS)})"
    return {
        "schema": SCHEMA,
        "event": "test",
        "time": iso(now),
        "text": text,
        "reason": None,
        "repeat": None,
        "alert": None,
        "further": [],
        "more": 0,
    }


def _alert(subject: Subject, links: Links) -> dict[str, Any]:
    return {
        **subject.finding,
        "id": subject.alert_id,
        "event": subject.event,
        "run_id": subject.run.run_id,
        "run_name": subject.run.name,
        "project": subject.run.project,
        "severity": subject.severity,
        "state": subject.state,
        "finding_state": subject.finding.get("state"),
        "firing_since": None if subject.since is None else iso(subject.since),
        "url": links.alert(subject.alert_id),
        "run_url": links.run(subject.run.run_id, at=words.step_to_show(subject)),
    }
