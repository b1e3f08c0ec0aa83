"""Tokens with scopes and an end, sessions that can be ended, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NEW_OF_TOKEN = ("revoked", "last_used", "expires", "created_by", "scopes_json", "id")


def upgrade() -> None:
    op.add_column("token", sa.Column("id", sa.String(32)))
    op.execute("update token set id = substr(hash, 1, 12)")
    with op.batch_alter_table("token") as table:
        table.alter_column("id", existing_type=sa.String(32), nullable=False)
        table.create_unique_constraint("token_id_key", ["id"])
        table.add_column(sa.Column("scopes_json", sa.Text, nullable=False, server_default='["admin"]'))
        table.add_column(sa.Column("created_by", sa.Text, nullable=False, server_default="server"))
        table.add_column(sa.Column("expires", sa.Double))
        table.add_column(sa.Column("last_used", sa.Double))
        table.add_column(sa.Column("revoked", sa.Double))
    op.create_table(
        "session",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("token", sa.String(64), sa.ForeignKey("token.hash")),
        sa.Column("environment", sa.String(64)),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("token", sa.String(32)),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text),
        sa.Column("detail_json", sa.Text, nullable=False),
        sa.Column("address", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_time", "audit", ["time"])


def downgrade() -> None:
    """Tokens that were revoked, ran out or may not do everything would be admin tokens again: they go."""
    op.drop_table("audit")
    op.drop_table("session")
    op.execute(
        "delete from token where revoked is not null or expires is not null or scopes_json <> '[\"admin\"]'"
    )
    with op.batch_alter_table("token") as table:
        table.drop_constraint("token_id_key", type_="unique")
        for name in NEW_OF_TOKEN:
            table.drop_column(name)
