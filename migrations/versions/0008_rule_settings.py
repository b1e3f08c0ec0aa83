"""What projects set for the rules, and back-tests of such settings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rule_setting",
        sa.Column("project", sa.Text, primary_key=True),
        sa.Column("rule", sa.String(16), primary_key=True),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("severity", sa.String(16)),
        sa.Column("thresholds_json", sa.Text, nullable=False),
        sa.Column("note", sa.Text),
        sa.Column("updated", sa.Double, nullable=False),
        sa.Column("updated_by", sa.Text, nullable=False),
    )
    op.create_table(
        "backtest",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("request_json", sa.Text, nullable=False),
        sa.Column("result_json", sa.Text),
        sa.Column("updated", sa.Double, nullable=False),
    )


def downgrade() -> None:
    for name in ("backtest", "rule_setting"):
        op.drop_table(name)
