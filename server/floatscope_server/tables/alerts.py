"""Alerts with their history, silences, the channels that tell people, and the outbox between them."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    false,
)

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
    Column("firing_since", Double),  # when it last began to fire; None: it never did
    Column("silence", String(64)),  # the silence that holds its messages back
    Column("settled_severity", String(16)),  # up to which people have dealt with it; only worse fires again
    Column(
        "rejected", Boolean, nullable=False, server_default=false()
    ),  # a person said that this is not the cause
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
    Column("number", Integer, primary_key=True, autoincrement=True),  # order of creation, for cursors
    Column("id", String(64), nullable=False, unique=True),
    Column("run_id", String(128)),  # None in any of these: whatever it is
    Column("project", Text),
    Column("family", Text),
    Column("cause", Text),
    Column("starts", Double, nullable=False),
    Column("ends", Double),  # None: until somebody ends it
    Column("critical", Boolean, nullable=False),  # whether it holds critical alerts back as well
    Column("note", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("ended_by", Text),  # who ended it before its time
    Index("silence_by_end", "ends"),
    sqlite_autoincrement=True,
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
    Column("updated", Double),  # when somebody changed it last; None: never, or before this was kept
    Column("updated_by", Text),
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
    Index("outbox_due", "state", "due"),
    Index("outbox_once", "channel", "once", unique=True),
    sqlite_autoincrement=True,
)

outbox_alert = Table(
    "outbox_alert",
    metadata,
    Column("alert", String(160), ForeignKey("alert.id"), primary_key=True),  # every alert a message tells of
    Column("message", Integer, ForeignKey("outbox.id"), primary_key=True, index=True),
    Column("event", String(32), nullable=False),
)

telling = Table(  # what a channel knows of an alert, and when it may have to hear more
    "telling",
    metadata,
    Column("alert", String(160), ForeignKey("alert.id"), primary_key=True),
    Column("channel", String(64), ForeignKey("channel.id"), primary_key=True),
    Column("run", Integer, ForeignKey("run.id"), nullable=False, index=True),
    Column("due", Double, index=True),  # when to look again; None: when something happens
    Column("waits", String(16)),  # for what: group, escalation, quiet, mute, flapping, repeat
    Column("told", String(16)),  # what it last heard: firing or recovered; None: nothing
    Column("severity", String(16)),  # as it last heard it
    Column("told_at", Double),
    Column("raised_at", Double),  # when it last heard that the alert began
    Column("raises", Integer, nullable=False),  # how often it began since then
    Column("repeats", Integer, nullable=False),  # how often it was told again since then
    Column("messages", Integer, nullable=False),  # all it ever heard of it
    Column("worse", Boolean, nullable=False),  # got worse since it last heard, at the same severity
)
