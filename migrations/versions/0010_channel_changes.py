"""When a channel was changed last, and by whom."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("channel", sa.Column("updated", sa.Double))
    op.add_column("channel", sa.Column("updated_by", sa.Text))


def downgrade() -> None:
    """Column by column: a new table in place of this one would orphan what refers to it."""
    op.drop_column("channel", "updated_by")
    op.drop_column("channel", "updated")
