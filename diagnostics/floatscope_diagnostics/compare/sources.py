"""Where a run comes from: a file, or a floatscope server that is asked over its REST interface."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

from floatscope.api import Api, ApiError, NotFound, Problem, Refused, Server, server_of
from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_diagnostics.compare.side import Side, side_of
from floatscope_diagnostics.readers import floatscope_jsonl
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.opening import PEEK_BYTES, Opened
from floatscope_diagnostics.readers.run_log import UnreadableLog

MAX_FETCHED_BYTES = 4 << 30  # of one run; a million steps with scalars only are 0.3 GiB
_RUN_ID = re.compile(f"{RUN_ID_PATTERN}\\Z")


@dataclass(frozen=True)
class Reading:
    """How inputs are read.

    server: where run ids are looked up, None for files only.  ids_only: never look for files.  first, last:
    steps to read.
    """

    server: Server | None = None
    ids_only: bool = False
    first: int | None = None
    last: int | None = None
    format_name: str | None = None


def server_from(environment: Mapping[str, str], *, url: str | None, token: str | None) -> Server | None:
    """The server that options and environment name, or None.

    Without a token the one that a server on this machine keeps in its data folder is used. Raises ValueError
    for an address that is none.
    """
    if not (url or environment.get("FLOATSCOPE_URL")):
        return None
    return server_of(environment, url=url, token=token)


def read_side(name: str, reading: Reading) -> Side:
    """A run by file name or run id; a file wins. Raises UnreadableLog with what to do."""
    is_file = name == "-" or os.path.exists(name)
    if reading.ids_only or (not is_file and reading.server is not None):
        if reading.server is None:
            raise UnreadableLog("run ids need a server: --server URL or FLOATSCOPE_URL")
        return _fetched(name, reading.server, reading)
    if not is_file:
        raise UnreadableLog("no such file, and no server to ask for a run of this id: --server URL")
    with open_runs(name, format_name=reading.format_name) as runs:
        log = next(runs, None)
        if log is None:
            raise UnreadableLog("holds no run")
        side = side_of(name, log, first=reading.first, last=reading.last)
        more = next(runs, None) is not None
    return _noted(side, "the file holds several runs; the first is compared") if more else side


def _noted(side: Side, note: str) -> Side:
    return replace(side, notes=(*side.notes, note))


def _fetched(run_id: str, server: Server, reading: Reading) -> Side:
    if not _RUN_ID.match(run_id):
        raise UnreadableLog("is neither a file nor a run id (letters, digits, . _ -; at most 128)")
    with Api(server, user_agent="floatscope-compare") as api:
        lines = api.lines(run_id, first=reading.first, last=reading.last)
        stream = cast(BinaryIO, io.BufferedReader(_Lines(lines), PEEK_BYTES))
        runs = floatscope_jsonl.read(Opened(stream, b"", run_id))
        try:
            log = next(runs, None)
            if log is None:
                raise UnreadableLog(f"the server {server.url} has no steps of this run")
            return side_of(run_id, log, first=reading.first, last=reading.last)
        except ApiError as error:
            raise UnreadableLog(refusal(error, server)) from error


class _Lines(io.RawIOBase):
    """Lines as a file, up to MAX_FETCHED_BYTES."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__()
        self._lines = lines
        self._rest = memoryview(b"")
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        if not self._rest:
            line = next(self._lines, None)
            if line is None:
                return 0
            self._rest = memoryview(line + b"\n")
            self._size += len(self._rest)
            if self._size > MAX_FETCHED_BYTES:
                raise UnreadableLog(
                    f"the run is larger than {MAX_FETCHED_BYTES >> 30} GiB as a log; name a range of steps "
                    "with --from and --to"
                )
        data, self._rest = self._rest[: len(view)], self._rest[len(view) :]
        view[: len(data)] = data
        return len(data)


def refusal(error: ApiError, server: Server) -> str:
    """What went wrong with a server, and what to do."""
    if isinstance(error, Refused):
        sent = "refuses the token" if server.token is not None else "wants a token"
        return f"the server {server.url} {sent} ({error.status}); set FLOATSCOPE_TOKEN or --token"
    if isinstance(error, NotFound):
        return f"there is no file of this name, and the server {server.url} has no run of this id (404)"
    if isinstance(error, Problem):
        return f"the server {server.url} answers {error}"
    return str(error)
