"""What all tables belong to."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Integer, MetaData

metadata = MetaData()


def run_key() -> Column[int]:
    """The first column of the primary key of everything that belongs to a run."""
    return Column("run", Integer, ForeignKey("run.id"), primary_key=True)
