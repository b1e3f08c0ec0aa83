"""Workers and where they are reached."""

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


def downgrade() -> None:
    op.drop_table("worker")
