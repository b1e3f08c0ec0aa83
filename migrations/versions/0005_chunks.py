"""Chunks: tiles and levels of batches, the last frame of every rank, and what is stored of a run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COMPRESSED = (("tile", "data"), ("level", "data"), ("frame", "data"))


def upgrade() -> None:
    op.add_column("run", sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("run", sa.Column("deleted", sa.Double))
    op.add_column("rank", sa.Column("chunked_seq", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("rank", sa.Column("hot_rows", sa.Integer, nullable=False, server_default="0"))
    op.add_column("rank", sa.Column("compactor", sa.String(64)))
    op.add_column("rank", sa.Column("compactor_seen", sa.Double))
    op.create_table(
        "chunk",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("chunk", sa.BigInteger, primary_key=True),
        sa.Column("first_seq", sa.BigInteger, nullable=False),
        sa.Column("segment", sa.Integer, nullable=False),
        sa.Column("tensor_table", sa.Integer, sa.ForeignKey("tensor_table.id")),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("stat_rows", sa.Integer, nullable=False),
        sa.Column("hist_rows", sa.Integer, nullable=False),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.Column("widths_json", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    op.create_table(
        "tile",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("kind", sa.SmallInteger, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("chunk", sa.BigInteger, primary_key=True),
        sa.Column("data", sa.LargeBinary),
        sa.Column("object", sa.Text),
        sa.Column("start", sa.BigInteger),
        sa.Column("length", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "level",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("kind", sa.SmallInteger, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("width", sa.BigInteger, primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("chunk", sa.BigInteger, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "frame",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("segment", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("tensor_table", sa.Integer, sa.ForeignKey("tensor_table.id"), nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "garbage",
        sa.Column("object", sa.Text, primary_key=True),
        sa.Column("due", sa.Double, nullable=False, index=True),
    )
    op.create_index("batch_by_tensor_table", "batch", ["tensor_table"])  # asked of every table that goes
    op.execute(
        "update rank set hot_rows = coalesce((select sum(batch.rows) from batch "
        "where batch.run = rank.run and batch.rank = rank.rank), 0)"
    )
    op.execute(
        "update run set bytes = coalesce((select sum(length(block.data)) from block "
        "where block.run = run.id), 0)"
    )
    if op.get_bind().dialect.name == "postgresql":  # compressed already
        for table, column in COMPRESSED:
            op.execute(f"alter table {table} alter {column} set storage external")
        # blocks come and go: without this their dead rows pile up between two cleanings
        op.execute("alter table block set (autovacuum_vacuum_scale_factor = 0.02)")


def downgrade() -> None:
    """Refused while steps exist only in chunks, which the older schema could not read, and while deleted
    runs still have data, which it would show again.
    """
    if op.get_bind().execute(sa.text("select count(*) from chunk")).scalar():
        raise RuntimeError(
            "this database holds chunks, which the schema 0004 cannot read; unpack them first with: "
            "floatscope db unpack"
        )
    if op.get_bind().execute(sa.text("select count(*) from run where deleted is not null")).scalar():
        raise RuntimeError(
            "this database holds runs that are being removed, which the schema 0004 would show again; remove "
            "them first with: floatscope db purge"
        )
    if op.get_bind().execute(sa.text("select count(*) from garbage")).scalar():
        raise RuntimeError(
            "objects in the store are waiting to be deleted, of which the schema 0004 knows nothing; delete "
            "them first with: floatscope db purge"
        )
    op.drop_index("batch_by_tensor_table", "batch")
    for name in ("garbage", "frame", "level", "tile", "chunk"):
        op.drop_table(name)
    op.execute("alter table rank drop column compactor_seen")
    op.execute("alter table rank drop column compactor")
    op.execute("alter table rank drop column hot_rows")
    op.execute("alter table rank drop column chunked_seq")
    op.execute("alter table run drop column deleted")
    op.execute("alter table run drop column bytes")
