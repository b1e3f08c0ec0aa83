"""Silences, repeats, escalation and quiet hours of channels, and messages that are queued once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


# Channels heard of these alerts before: their recovery is news for them, that they began is not.
_HEARD_BEFORE = """
insert into telling
    (alert, channel, run, told, severity, told_at, raised_at, raises, repeats, messages, worse)
select alert.id, outbox.channel, alert.run, 'firing', alert.severity,
    max(outbox.created), max(outbox.created), 0, 0, count(*), false
from outbox join alert on alert.id = outbox.alert
where alert.state in ('firing', 'acknowledged')
group by alert.id, outbox.channel, alert.run, alert.severity
"""


def upgrade() -> None:
    op.add_column("alert", sa.Column("firing_since", sa.Double))
    op.add_column("alert", sa.Column("silence", sa.String(64)))
    op.add_column("alert", sa.Column("settled_severity", sa.String(16)))
    op.add_column("alert", sa.Column("rejected", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_index("alert_by_state", "alert", ["state", "firing_since"])
    op.execute("update alert set firing_since = first_seen where state = 'firing'")
    op.create_table(
        "silence",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("run_id", sa.String(128)),
        sa.Column("project", sa.Text),
        sa.Column("family", sa.Text),
        sa.Column("cause", sa.Text),
        sa.Column("starts", sa.Double, nullable=False),
        sa.Column("ends", sa.Double),
        sa.Column("critical", sa.Boolean, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("ended_by", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("silence_by_end", "silence", ["ends"])
    op.add_column("channel", sa.Column("signing_key", sa.LargeBinary))
    op.add_column("channel", sa.Column("quiet_json", sa.Text))
    op.add_column("channel", sa.Column("repeat_s", sa.Double))
    op.add_column("channel", sa.Column("escalate_s", sa.Double))
    op.add_column("outbox", sa.Column("once", sa.String(200)))
    op.create_index("outbox_once", "outbox", ["channel", "once"], unique=True)
    op.create_table(
        "outbox_alert",
        sa.Column("alert", sa.String(160), sa.ForeignKey("alert.id"), primary_key=True),
        sa.Column("message", sa.Integer, sa.ForeignKey("outbox.id"), primary_key=True),
        sa.Column("event", sa.String(32), nullable=False),
    )
    op.create_index("ix_outbox_alert_message", "outbox_alert", ["message"])
    op.execute("insert into outbox_alert (alert, message, event) select alert, id, event from outbox")
    op.create_table(
        "telling",
        sa.Column("alert", sa.String(160), sa.ForeignKey("alert.id"), primary_key=True),
        sa.Column("channel", sa.String(64), sa.ForeignKey("channel.id"), primary_key=True),
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), nullable=False),
        sa.Column("due", sa.Double),
        sa.Column("waits", sa.String(16)),
        sa.Column("told", sa.String(16)),
        sa.Column("severity", sa.String(16)),
        sa.Column("told_at", sa.Double),
        sa.Column("raised_at", sa.Double),
        sa.Column("raises", sa.Integer, nullable=False),
        sa.Column("repeats", sa.Integer, nullable=False),
        sa.Column("messages", sa.Integer, nullable=False),
        sa.Column("worse", sa.Boolean, nullable=False),
    )
    op.create_index("ix_telling_run", "telling", ["run"])
    op.create_index("ix_telling_due", "telling", ["due"])
    op.execute(_HEARD_BEFORE)


def downgrade() -> None:
    op.drop_table("telling")
    op.drop_table("outbox_alert")
    op.drop_index("outbox_once", "outbox")
    op.execute("alter table outbox drop column once")
    for name in ("escalate_s", "repeat_s", "quiet_json", "signing_key"):
        op.execute(f"alter table channel drop column {name}")
    op.drop_table("silence")
    op.execute("update alert set state = 'firing' where state = 'silenced'")
    op.drop_index("alert_by_state", "alert")
    op.execute("alter table alert drop column rejected")
    op.execute("alter table alert drop column settled_severity")
    op.execute("alter table alert drop column silence")
    op.execute("alter table alert drop column firing_since")
