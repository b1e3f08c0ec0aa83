"""The numbers of runs: hot blocks, one row per batch and statistic, and the chunks they are rewritten to.

A batch is first stored as hot blocks. Later whole batches of one rank and segment, about 4,096 steps of
them, are rewritten to a chunk: series-major tiles and levels that summarise them. The row in ``chunk`` makes
them count: tiles without it are garbage of a process that died, hot blocks of batches that are in a chunk
are left-overs; both are swept.
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
    SmallInteger,
    String,
    Table,
    Text,
)

from floatscope_server.tables.registry import metadata, run_key

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
    run_key(),
    Column("rank", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("arrival", Integer, nullable=False),  # 1, 2, ... in the order in which the run's batches came
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
    Index("batch_by_tensor_table", "tensor_table"),  # asked of every tensor table that goes
)

block = Table(
    "block",
    metadata,
    run_key(),
    Column("rank", Integer, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),  # see store.kinds
    Column("name", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

chunk = Table(
    "chunk",
    metadata,
    run_key(),
    Column("rank", Integer, primary_key=True),
    Column("chunk", BigInteger, primary_key=True),  # seq of its last batch
    Column("first_seq", BigInteger, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("tensor_table", Integer, ForeignKey("tensor_table.id")),  # the union of its batches' tensors
    Column("rows", Integer, nullable=False),
    Column("stat_rows", Integer, nullable=False),
    Column("hist_rows", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("widths_json", Text, nullable=False),  # widths of its levels: of scalars, and of statistics
    Column("bytes", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
)

tile = Table(
    "tile",
    metadata,
    run_key(),
    Column("rank", Integer, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("part", Integer, primary_key=True),  # which 32 of the chunk's tensors; 0 for scalars and steps
    Column("chunk", BigInteger, primary_key=True),
    Column("data", LargeBinary),  # NULL: in the object store, at ``start`` of ``object``
    Column("object", Text),
    Column("start", BigInteger),
    Column("length", BigInteger, nullable=False),
)

level = Table(
    "level",
    metadata,
    run_key(),
    Column("rank", Integer, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("width", BigInteger, primary_key=True),  # of a bin, in steps
    Column("part", Integer, primary_key=True),  # which 128 of the chunk's tensors; 0 for scalars
    Column("chunk", BigInteger, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

frame = Table(
    "frame",
    metadata,
    run_key(),
    Column("rank", Integer, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("tensor_table", Integer, ForeignKey("tensor_table.id"), nullable=False),
    Column("data", LargeBinary, nullable=False),  # the last row of every statistic
)

series = Table(
    "series",
    metadata,
    run_key(),
    Column("kind", SmallInteger, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("rank", Integer, primary_key=True),
)

garbage = Table(  # objects in the store that nothing refers to any more
    "garbage",
    metadata,
    Column("object", Text, primary_key=True),
    Column("due", Double, nullable=False, index=True),  # readers that began before may still want it
)
