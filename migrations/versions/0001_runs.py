"""Runs and their ranks, tokens and the server's secrets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(128), nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False, index=True),
        sa.Column("baseline", sa.String(128), index=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("health", sa.String(16), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("cause", sa.Text),
        sa.Column("onset_step", sa.BigInteger),
        sa.Column("first_step", sa.BigInteger),
        sa.Column("last_step", sa.BigInteger),
        sa.Column("last_loss_json", sa.Text),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("last_seen", sa.Double),
        sa.Column("pace_s", sa.Double),
        sa.Column("arrivals", sa.Integer, nullable=False),
        sa.Column("baseline_arrivals", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("described", sa.Integer, nullable=False),
        sa.Column("diagnosis_error", sa.Text),
        sa.Column("recipe_json", sa.Text, nullable=False),
        sa.Column("info_json", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "rank",
        sa.Column("run", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("next_seq", sa.BigInteger, nullable=False),
        sa.Column("segment", sa.Integer, nullable=False),
        sa.Column("last_step", sa.BigInteger),
        sa.Column("last_seen", sa.Double),
    )
    op.create_table(
        "token",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    op.create_table(
        "secret",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    for name in ("secret", "token", "rank", "run"):
        op.drop_table(name)
