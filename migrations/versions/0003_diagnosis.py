"""The verdict of a run and the saved state of its engine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "verdict",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("body_json", sa.Text, nullable=False),
        sa.Column("updated", sa.Double, nullable=False),
    )
    op.create_table(
        "engine_state",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("arrivals", sa.Integer, nullable=False),
        sa.Column("baseline_arrivals", sa.Integer, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":  # compressed already
        op.execute("alter table engine_state alter state set storage external")


def downgrade() -> None:
    for name in ("engine_state", "verdict"):
        op.drop_table(name)
