"""Silences, repeats, escalation and quiet hours of channels, and messages that are queued once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("alert", sa.Column("firing_since", sa.Double))
    op.add_column("alert", sa.Column("silence", sa.String(64)))
    op.create_index("alert_by_state", "alert", ["state", "firing_since"])
    op.execute("update alert set firing_since = first_seen where state = 'firing'")
    op.create_table(
        "silence",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("run_id", sa.String(128)),
        sa.Column("project", sa.Text),
        sa.Column("family", sa.Text),
        sa.Column("cause", sa.Text),
        sa.Column("starts", sa.Double, nullable=False),
        sa.Column("ends", sa.Double),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
    )
    op.create_index("silence_by_end", "silence", ["ends"])
    op.add_column("channel", sa.Column("signing_key", sa.LargeBinary))
    op.add_column("channel", sa.Column("quiet_json", sa.Text))
    op.add_column("channel", sa.Column("repeat_s", sa.Double))
    op.add_column("channel", sa.Column("escalate_s", sa.Double))
    op.add_column("outbox", sa.Column("once", sa.String(200)))
    op.add_column("outbox", sa.Column("others_json", sa.Text))
    op.create_index("outbox_once", "outbox", ["channel", "once"], unique=True)


def downgrade() -> None:
    op.drop_index("outbox_once", "outbox")
    op.execute("alter table outbox drop column others_json")
    op.execute("alter table outbox drop column once")
    for name in ("escalate_s", "repeat_s", "quiet_json", "signing_key"):
        op.execute(f"alter table channel drop column {name}")
    op.drop_table("silence")
    op.execute("update alert set state = 'firing' where state = 'silenced'")
    op.drop_index("alert_by_state", "alert")
    op.execute("alter table alert drop column silence")
    op.execute("alter table alert drop column firing_since")
