"""How many steps the verdict of a run rests on: lists tell by it which runs are too young to be judged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("judged_steps", sa.BigInteger))


def downgrade() -> None:
    op.drop_column("run", "judged_steps")
