"""Where a run comes from: a file, or a floatscope server that is asked over its REST interface."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import quote, urlsplit

from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_diagnostics.compare.side import Side, side_of
from floatscope_diagnostics.readers import floatscope_jsonl
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.opening import PEEK_BYTES, Opened
from floatscope_diagnostics.readers.run_log import UnreadableLog

TIMEOUT_S = 60.0
MAX_FETCHED_BYTES = 4 << 30  # of one run; a million steps with scalars only are 0.3 GiB
_RUN_ID = re.compile(f"{RUN_ID_PATTERN}\\Z")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Server:
    """A floatscope server. token: sent as Bearer; None sends none."""

    url: str
    token: str | None = None


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
    address = url or environment.get("FLOATSCOPE_URL") or None
    if address is None:
        return None
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is no address like http://host:8321")
    found = token or environment.get("FLOATSCOPE_TOKEN") or None
    if found is None and parts.hostname in _LOOPBACK:
        found = _local_token(Path(environment.get("FLOATSCOPE_DATA_DIR") or "floatscope-data"))
    return Server(address.rstrip("/"), found)


def _local_token(folder: Path) -> str | None:
    try:
        return (folder / "token").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


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
    query = "&".join(
        f"{key}={value}"
        for key, value in (("from", reading.first), ("to", reading.last))
        if value is not None
    )
    path = f"/api/v1/runs/{quote(run_id)}/steps" + (f"?{query}" if query else "")
    with _request(server, path) as stream:
        runs = floatscope_jsonl.read(Opened(stream, b"", run_id))
        try:
            log = next(runs, None)
            if log is None:
                raise UnreadableLog(f"the server {server.url} has no steps of this run")
            return side_of(run_id, log, first=reading.first, last=reading.last)
        except (OSError, HTTPException) as error:
            raise UnreadableLog(f"the answer of {server.url} broke off: {error}; try again") from error


@contextmanager
def _request(server: Server, path: str) -> Iterator[BinaryIO]:
    """The body of the answer. A redirect is refused: it would carry the token to another address."""
    parts = urlsplit(server.url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Accept": "application/jsonl"}
    if server.token is not None:
        headers["Authorization"] = f"Bearer {server.token}"
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        try:
            connection.request("GET", parts.path + path, headers=headers)
            answer = connection.getresponse()
        except (OSError, HTTPException, ValueError) as error:
            raise UnreadableLog(
                f"the server {server.url} was not reached: {error}. Check the address and that it runs"
            ) from error
        if answer.status != 200:
            raise UnreadableLog(_refusal(answer, server))
        yield cast(BinaryIO, io.BufferedReader(_Limited(answer), PEEK_BYTES))
    finally:
        connection.close()


class _Limited(io.RawIOBase):
    """The answer, up to MAX_FETCHED_BYTES."""

    def __init__(self, answer: HTTPResponse) -> None:
        super().__init__()
        self._answer = answer
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._answer.read(len(view))
        view[: len(data)] = data
        self._size += len(data)
        if self._size > MAX_FETCHED_BYTES:
            raise UnreadableLog(
                f"the run is larger than {MAX_FETCHED_BYTES >> 30} GiB as a log; name a range of steps with "
                "--from and --to"
            )
        return len(data)


def _refusal(answer: HTTPResponse, server: Server) -> str:
    if answer.status in (401, 403):
        sent = "refuses the token" if server.token is not None else "wants a token"
        return f"the server {server.url} {sent} ({answer.status}); set FLOATSCOPE_TOKEN or --token"
    if answer.status == 404:
        return f"there is no file of this name, and the server {server.url} has no run of this id (404)"
    if 300 <= answer.status < 400:
        return f"{server.url} redirects to {answer.getheader('Location')!r}; give that address with --server"
    return f"the server {server.url} answers {answer.status}: {_detail(answer)}"


def _detail(answer: HTTPResponse) -> str:
    try:
        value = json.loads(answer.read(1 << 16))
    except (OSError, HTTPException, ValueError):
        return answer.reason
    return str(value.get("detail") or value.get("title") or answer.reason) if isinstance(value, dict) else ""
