"""Tensor tables: which tensors the columns of a batch are, stored once per run and hash."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass

from sqlalchemy import Connection, select

from floatscope.protocol.runinfo import TensorTable
from floatscope.protocol.wire_safetensors import table_hash
from floatscope_server import tables
from floatscope_server.codec import expand, squeeze
from floatscope_server.database import upsert

CACHED_TABLES = 256


@dataclass(frozen=True)
class StoredTable:
    """One table: its id, and its names sorted by code point, as the columns of a batch are."""

    id: int
    table: TensorTable
    names: tuple[str, ...]


class TensorTables:
    """Reads and writes tensor tables and remembers the latest ones, since nearly every batch names the
    same.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: OrderedDict[int, StoredTable] = OrderedDict()

    def find(self, c: Connection, run: int, digest: str) -> StoredTable | None:
        """The run's table with this hash, or None."""
        query = select(tables.tensor_table.c.id).where(
            tables.tensor_table.c.run == run, tables.tensor_table.c.hash == digest
        )
        found = c.execute(query).scalar()
        return None if found is None else self.get(c, found)

    def get(self, c: Connection, table_id: int) -> StoredTable:
        with self._lock:
            known = self._by_id.get(table_id)
            if known is not None:
                self._by_id.move_to_end(table_id)
                return known
        packed = c.execute(
            select(tables.tensor_table.c.table).where(tables.tensor_table.c.id == table_id)
        ).scalar_one()
        table = json.loads(expand(packed))
        stored = StoredTable(table_id, table, tuple(sorted(table)))
        with self._lock:
            self._by_id[table_id] = stored
            while len(self._by_id) > CACHED_TABLES:
                self._by_id.popitem(last=False)
        return stored

    def add(self, c: Connection, run: int, table: TensorTable) -> int:
        """Stores the table unless the run has it; returns its id.

        A table that ``find`` or ``get`` gave is known by itself: its hash is not made anew for every batch.
        """
        with self._lock:
            known = next((s for s in reversed(self._by_id.values()) if s.table is table), None)
        if known is not None:
            return known.id
        digest = table_hash(table)
        body = squeeze(json.dumps(table, ensure_ascii=True, separators=(",", ":")).encode())
        statement = upsert(c, tables.tensor_table).values(run=run, hash=digest, table=body)
        made = c.execute(statement.on_conflict_do_nothing().returning(tables.tensor_table.c.id)).scalar()
        if made is not None:
            return int(made)
        query = select(tables.tensor_table.c.id).where(
            tables.tensor_table.c.run == run, tables.tensor_table.c.hash == digest
        )
        return int(c.execute(query).scalar_one())
