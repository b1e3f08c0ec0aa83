"""Runs, where their ranks stand, and the workers that serve them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, String, Table, Text

from floatscope_server.tables.registry import metadata, run_key

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String(128), nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("project", Text, nullable=False, index=True),
    Column("baseline", String(128), index=True),
    Column("status", String(16), nullable=False),
    Column("reason", Text),
    Column("health", String(16), nullable=False),
    Column("summary", Text, nullable=False),
    Column("cause", Text),
    Column("onset_step", BigInteger),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("last_loss_json", Text),
    Column("judged_steps", BigInteger),  # that the verdict rests on; none while it was never stored
    Column("created", Double, nullable=False),
    Column("last_seen", Double),
    Column("pace_s", Double),  # usual time between batches, for the mark "stalled"
    Column("arrivals", Integer, nullable=False),  # batches stored so far, all ranks
    Column("baseline_arrivals", Integer, nullable=False),  # batches of the baseline that the verdict has seen
    Column("version", Integer, nullable=False),  # goes up with everything an engine in memory must know of
    Column("revision", Integer, nullable=False),  # goes up when a saved engine no longer fits (new baseline)
    Column("described", Integer, nullable=False),  # goes up when info_json changes
    Column("diagnosis_error", Text),
    Column("recipe_json", Text, nullable=False),  # the few keys of the recipe that lists show
    Column("info_json", Text, nullable=False),  # may be megabytes: late, so that lists pass over it
    Column("bytes", BigInteger, nullable=False, server_default="0"),  # of its telemetry as stored
    Column("deleted", Double),  # set: it is gone for everybody and its data is being removed
    # an id is never used twice, so nothing cached for a deleted run can fit a new one
    sqlite_autoincrement=True,
)

rank = Table(
    "rank",
    metadata,
    run_key(),
    Column("rank", Integer, primary_key=True),
    Column("next_seq", BigInteger, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("last_step", BigInteger),
    Column("last_seen", Double),
    Column("chunked_seq", BigInteger, nullable=False, server_default="0"),  # first seq that is in no chunk
    Column("hot_rows", Integer, nullable=False, server_default="0"),  # steps in batches that are in no chunk
    Column("compactor", String(64)),  # who rewrites its batches to chunks, or did when it died
    Column("compactor_seen", Double),
)

worker = Table(
    "worker",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("url", Text, nullable=False),  # where other workers reach it
    Column("started", Double, nullable=False),
    Column("seen", Double, nullable=False),
)
