"""Batches as compressed blocks, and the tensor tables their columns refer to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tensor_table",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("table", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("tensor_table_of_run", "tensor_table", ["run", "hash"], unique=True)
    op.create_table(
        "batch",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True),
        sa.Column("arrival", sa.Integer, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("segment", sa.Integer, nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.Column("lost", sa.Boolean, nullable=False),
        sa.Column("tensor_table", sa.Integer, sa.ForeignKey("tensor_table.id")),
        sa.Column("received", sa.Double, nullable=False),
        sa.Column("judged", sa.Boolean, nullable=False),
        sa.Column("glance_json", sa.Text, nullable=False),
    )
    op.create_index("batch_by_arrival", "batch", ["run", "arrival"], unique=True)
    op.create_table(
        "block",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("kind", sa.SmallInteger, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "series",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("kind", sa.SmallInteger, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
    )
    if op.get_bind().dialect.name == "postgresql":  # blocks are compressed already; trying again costs time
        op.execute("alter table block alter data set storage external")


def downgrade() -> None:
    for name in ("series", "block", "batch", "tensor_table"):
        op.drop_table(name)
