"""Alerts with their history, silences, the channels that tell people, and the outbox between them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, ForeignKey, Index, Integer, LargeBinary, String, Table, Text

from floatscope_server.tables.registry import metadata

alert = Table(
    "alert",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),  # order of creation, for cursors
    Column("id", String(160), nullable=False, unique=True),  # the finding's
    Column("run", Integer, ForeignKey("run.id"), nullable=False, index=True),
    Column("family", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("severity", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("finding_state", String(16), nullable=False),
    Column("first_seen", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("mute_until", Double),
    Column("finding_json", Text, nullable=False),
    Column("firing_since", Double),  # when it last began to fire; None: it does not
    Column("silence", String(64)),  # the silence that holds its messages back
    Index("alert_by_state", "state", "firing_since"),
    sqlite_autoincrement=True,
)

alert_event = Table(
    "alert_event",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("alert", String(160), ForeignKey("alert.id"), nullable=False, index=True),
    Column("time", Double, nullable=False),
    Column("event", String(32), nullable=False),
    Column("by", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("note", Text),
)

silence = Table(
    "silence",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("run_id", String(128)),  # None in any of these: whatever it is
    Column("project", Text),
    Column("family", Text),
    Column("cause", Text),
    Column("starts", Double, nullable=False),
    Column("ends", Double),  # None: until somebody ends it
    Column("note", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Index("silence_by_end", "ends"),
)

channel = Table(
    "channel",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text),  # secret; None: taken from the settings
    Column("min_severity", String(16), nullable=False),
    Column("projects_json", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("created", Double, nullable=False),
    Column("signing_key", LargeBinary),  # secret; of a generic webhook
    Column("quiet_json", Text),  # hours in which only critical alerts are told
    Column("repeat_s", Double),  # tell again of an alert that nobody acknowledged; None: never
    Column("escalate_s", Double),  # only told of alerts that nobody acknowledged for so long; None: at once
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("channel", String(64), ForeignKey("channel.id"), nullable=False),
    Column("alert", String(160), ForeignKey("alert.id"), nullable=False, index=True),
    Column("event", String(32), nullable=False),
    Column("body_json", Text, nullable=False),
    Column("state", String(16), nullable=False),  # pending, sent, dead
    Column("created", Double, nullable=False),
    Column("due", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("finished", Double),
    Column("once", String(200)),  # what it tells, so that it is queued once per channel whoever finds it
    Column("others_json", Text),  # ids of further alerts of the same run that this message tells of
    Index("outbox_due", "state", "due"),
    Index("outbox_once", "channel", "once", unique=True),
    sqlite_autoincrement=True,
)
