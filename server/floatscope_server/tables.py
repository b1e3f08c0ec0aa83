"""The tables. ``run`` leads every primary key of telemetry, so a run can move to another database as a whole.

Times are Unix seconds UTC. Text columns called ``*_json`` hold strict JSON (non-finite numbers as strings),
since neither database keeps NaN in a number column on both paths (SQLite makes it NULL).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)

metadata = MetaData()


def _run_key() -> Column[int]:
    return Column("run", Integer, ForeignKey("run.id"), primary_key=True)


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
    Column("created", Double, nullable=False),
    Column("last_seen", Double),
    Column("pace_s", Double),  # usual time between batches, for the mark "stalled"
    Column("arrivals", Integer, nullable=False),  # batches stored so far, all ranks
    Column("baseline_arrivals", Integer, nullable=False),  # batches of the baseline that the verdict has seen
    Column("version", Integer, nullable=False),  # goes up with everything an engine in memory must know of
    Column(
        "revision", Integer, nullable=False
    ),  # goes up when a saved engine no longer fits (baseline changed)
    Column("described", Integer, nullable=False),  # goes up when info_json changes
    Column("diagnosis_error", Text),
    Column("recipe_json", Text, nullable=False),  # the few keys of the recipe that lists show
    Column("info_json", Text, nullable=False),  # may be megabytes: last, so that lists pass over it
    # an id is never used twice, so nothing cached for a deleted run can fit a new one
    sqlite_autoincrement=True,
)

rank = Table(
    "rank",
    metadata,
    _run_key(),
    Column("rank", Integer, primary_key=True),
    Column("next_seq", BigInteger, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("last_step", BigInteger),
    Column("last_seen", Double),
)

tensor_table = Table(
    "tensor_table",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run", Integer, ForeignKey("run.id"), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("table", LargeBinary, nullable=False),  # zstd of the canonical JSON
    Index("tensor_table_of_run", "run", "hash", unique=True),
    sqlite_autoincrement=True,
)

batch = Table(
    "batch",
    metadata,
    _run_key(),
    Column("rank", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column(
        "arrival", Integer, nullable=False
    ),  # 1, 2, ... in the order in which the run's batches were stored
    Column("digest", LargeBinary, nullable=False),  # SHA-256 of the body, unpacked
    Column("segment", Integer, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),  # of the hole, if the batch says that steps were lost
    Column("last_step", BigInteger, nullable=False),
    Column("lost", Boolean, nullable=False),
    Column("tensor_table", Integer, ForeignKey("tensor_table.id")),
    Column("received", Double, nullable=False),
    Column("judged", Boolean, nullable=False),  # False: the diagnosis failed on it and leaves it out
    Column("glance_json", Text, nullable=False),  # the few numbers that lists and messages show
    Index("batch_by_arrival", "run", "arrival", unique=True),
)

block = Table(
    "block",
    metadata,
    _run_key(),
    Column("rank", Integer, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),  # see store.blocks: rows, scalars, stat, histogram
    Column("name", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

series = Table(
    "series",
    metadata,
    _run_key(),
    Column("kind", SmallInteger, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("rank", Integer, primary_key=True),
)

verdict = Table(
    "verdict",
    metadata,
    _run_key(),
    Column("body_json", Text, nullable=False),
    Column("updated", Double, nullable=False),
)

engine_state = Table(
    "engine_state",
    metadata,
    _run_key(),
    Column("revision", Integer, nullable=False),
    Column("arrivals", Integer, nullable=False),
    Column("baseline_arrivals", Integer, nullable=False),
    Column("state", LargeBinary, nullable=False),  # zstd
)

alert = Table(
    "alert",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),  # order of creation, for cursors
    Column("id", String(160), nullable=False, unique=True),  # the finding's
    Column("run", Integer, ForeignKey("run.id"), nullable=False, index=True),
    Column("family", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("severity", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("finding_state", String(16), nullable=False),
    Column("first_seen", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("mute_until", Double),
    Column("finding_json", Text, nullable=False),
    sqlite_autoincrement=True,
)

alert_event = Table(
    "alert_event",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("alert", String(160), ForeignKey("alert.id"), nullable=False, index=True),
    Column("time", Double, nullable=False),
    Column("event", String(32), nullable=False),
    Column("by", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("note", Text),
)

channel = Table(
    "channel",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text),  # secret; None: taken from the settings
    Column("min_severity", String(16), nullable=False),
    Column("projects_json", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("created", Double, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("channel", String(64), ForeignKey("channel.id"), nullable=False),
    Column("alert", String(160), ForeignKey("alert.id"), nullable=False, index=True),
    Column("event", String(32), nullable=False),
    Column("body_json", Text, nullable=False),
    Column("state", String(16), nullable=False),  # pending, sent, dead
    Column("created", Double, nullable=False),
    Column("due", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("finished", Double),
    Index("outbox_due", "state", "due"),
    sqlite_autoincrement=True,
)

token = Table(
    "token",
    metadata,
    Column("hash", String(64), primary_key=True),  # SHA-256 in hex; tokens are random, so no salt is needed
    Column("name", Text, nullable=False),
    Column("created", Double, nullable=False),
)

secret = Table(
    "secret",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
