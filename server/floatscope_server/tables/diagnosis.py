"""Verdicts, the saved state of engines, and what a project sets for its rules."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Integer, LargeBinary, String, Table, Text

from floatscope_server.tables.registry import metadata, run_key

verdict = Table(
    "verdict",
    metadata,
    run_key(),
    Column("body_json", Text, nullable=False),
    Column("updated", Double, nullable=False),
)

engine_state = Table(
    "engine_state",
    metadata,
    run_key(),
    Column("revision", Integer, nullable=False),
    Column("arrivals", Integer, nullable=False),
    Column("baseline_arrivals", Integer, nullable=False),
    Column("state", LargeBinary, nullable=False),  # zstd
)

rule_setting = Table(
    "rule_setting",
    metadata,
    Column("project", Text, primary_key=True),  # "*": every project that sets nothing of its own
    Column("rule", String(16), primary_key=True),
    Column("enabled", Boolean, nullable=False),
    Column("severity", String(16)),  # in place of the rule's own
    Column("thresholds_json", Text, nullable=False),
    Column("note", Text),
    Column("updated", Double, nullable=False),
    Column("updated_by", Text, nullable=False),
)

backtest = Table(
    "backtest",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("created", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("state", String(16), nullable=False),  # waiting, running, done, failed, cancelled
    Column("request_json", Text, nullable=False),
    Column("result_json", Text),
    Column("updated", Double, nullable=False),
)
