"""Requests that are sent again while the server is away or busy, and answers that stream."""

from __future__ import annotations

import http.client
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from floatscope.api.errors import ApiError, CutOff, NotReached, Problem, problem_of
from floatscope.api.where import Server
from floatscope.jsonable import one_line

TIMEOUT_S = 60.0
ATTEMPTS = 6
FIRST_WAIT_S = 0.5  # doubles: 15 s in all, about what a server needs to start again
LONGEST_WAIT_S = 60.0  # of what a server asks for
AGAIN = (429, 502, 503, 504)
REPEATABLE = ("GET", "HEAD", "PUT", "DELETE")
MAX_ANSWER_BYTES = 256 << 20
PART_BYTES = 1 << 16

Sleep = Callable[[float], None]


class Connection:
    """One kept-alive connection, used by one thread."""

    def __init__(self, server: Server, *, user_agent: str, sleep: Sleep, timeout_s: float) -> None:
        self.server = server
        parts = urlsplit(server.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._http = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        self._prefix = parts.path.rstrip("/")
        self._sleep = sleep
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "gzip"}
        if server.token is not None:
            self._headers["Authorization"] = f"Bearer {server.token}"

    def close(self) -> None:
        self._http.close()

    def json(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of a good answer. Raises ApiError."""
        with self.stream(method, path, body) as parts:
            found: list[bytes] = []
            size = 0
            for part in parts:
                size += len(part)
                if size > MAX_ANSWER_BYTES:
                    raise ApiError(f"{self.server.url} answers with more than {MAX_ANSWER_BYTES >> 20} MiB")
                found.append(part)
        try:
            return json.loads(b"".join(found))
        except (ValueError, RecursionError) as error:
            raise ApiError(f"{self.server.url} does not answer as a floatscope server does") from error

    @contextmanager
    def stream(self, method: str, path: str, body: object = None) -> Iterator[Iterator[bytes]]:
        """The unpacked parts of a good answer. Raises ApiError, CutOff if it ends in the middle."""
        answer = self._good(method, path, None if body is None else json.dumps(body).encode())
        try:
            yield _parts(answer, self.server.url)
        finally:
            answer.close()
            if answer.will_close or answer.length != 0:  # what is left of it would be taken for the next one
                self._http.close()

    def _good(self, method: str, path: str, content: bytes | None) -> http.client.HTTPResponse:
        wait_s = FIRST_WAIT_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self._once(method, path, content)
            except NotReached:
                if attempt == ATTEMPTS or method not in REPEATABLE:
                    raise
            else:
                if 200 <= answer.status < 300:
                    return answer
                problem = self._problem(answer)
                limited = problem.status in (429, 503) or method in REPEATABLE  # those say: nothing was done
                if attempt == ATTEMPTS or problem.status not in AGAIN or not limited:
                    raise problem
                wait_s = max(wait_s, min(problem.retry_after_s or 0.0, LONGEST_WAIT_S))
            self._sleep(wait_s)
            wait_s *= 2.0
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, content: bytes | None) -> http.client.HTTPResponse:
        headers = {**self._headers, "Content-Type": "application/json"} if content else self._headers
        was_open = self._http.sock is not None
        try:
            self._http.request(method, self._prefix + path, body=content, headers=headers)
            return self._http.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._http.close()
            if was_open and method in REPEATABLE:  # the server may have closed it while it was idle
                return self._once(method, path, content)
            what = one_line(str(error), most=200) or type(error).__name__
            raise NotReached(
                f"no answer from {self.server.url} ({what}): check the address and that it runs"
            ) from error

    def _problem(self, answer: http.client.HTTPResponse) -> Problem:
        headers = {name.lower(): value for name, value in answer.getheaders()}
        try:
            content = _unpacked(answer.read(PART_BYTES), headers)
        except (OSError, http.client.HTTPException):
            content = b""
        self._http.close()
        if 300 <= answer.status < 400:  # following it would carry the token to another address
            to = headers.get("location", "elsewhere")
            return Problem(answer.status, "Moved", f"{self.server.url} leads to {to}: give that address")
        return problem_of(answer.status, answer.reason, content, headers)


def _parts(answer: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    packed = answer.getheader("Content-Encoding", "").lower() == "gzip"
    reader = zlib.decompressobj(wbits=31) if packed else None
    try:
        while part := answer.read1(PART_BYTES):
            while reader is not None and part:
                yield reader.decompress(part, PART_BYTES)
                part = reader.unconsumed_tail
            if reader is None:
                yield part
        if answer.length or (reader is not None and not reader.eof):
            raise http.client.IncompleteRead(b"")
    except (OSError, http.client.HTTPException, zlib.error) as error:
        raise CutOff(f"the answer of {url} ended in the middle ({type(error).__name__})") from error


def _unpacked(content: bytes, headers: Mapping[str, str]) -> bytes:
    if headers.get("content-encoding", "").lower() != "gzip":
        return content
    try:
        return zlib.decompressobj(wbits=31).decompress(content, PART_BYTES)
    except zlib.error:
        return b""
