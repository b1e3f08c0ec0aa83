"""Workers, and which of them owns which run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
    )
    op.create_table(
        "run_owner",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("worker", sa.String(64), nullable=False),
        sa.Column("since", sa.Double, nullable=False),
    )


def downgrade() -> None:
    for name in ("run_owner", "worker"):
        op.drop_table(name)
