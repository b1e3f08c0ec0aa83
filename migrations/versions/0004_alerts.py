"""Alerts with their history, the channels that tell people, and the outbox between them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(160), nullable=False, unique=True),
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), nullable=False, index=True),
        sa.Column("family", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("finding_state", sa.String(16), nullable=False),
        sa.Column("first_seen", sa.Double, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
        sa.Column("mute_until", sa.Double),
        sa.Column("finding_json", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "alert_event",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("alert", sa.String(160), sa.ForeignKey("alert.id"), nullable=False, index=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("note", sa.Text),
    )
    op.create_table(
        "channel",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("url", sa.Text),
        sa.Column("min_severity", sa.String(16), nullable=False),
        sa.Column("projects_json", sa.Text, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("channel", sa.String(64), sa.ForeignKey("channel.id"), nullable=False),
        sa.Column("alert", sa.String(160), sa.ForeignKey("alert.id"), nullable=False, index=True),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("body_json", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("due", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("finished", sa.Double),
        sqlite_autoincrement=True,
    )
    op.create_index("outbox_due", "outbox", ["state", "due"])


def downgrade() -> None:
    for name in ("outbox", "channel", "alert_event", "alert"):
        op.drop_table(name)
