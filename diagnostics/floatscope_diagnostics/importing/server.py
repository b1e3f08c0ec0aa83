"""A floatscope server as an import sees it: what it has of a run, and a way to send the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from floatscope.answers import Verdict, detail, read_answer, retry_after_s, whole
from floatscope.api.where import DEFAULT_URL, BadAddress, server_of
from floatscope.client import Answer, HttpTransport, Transport, TransportError
from floatscope.protocol import wire_safetensors
from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo, TensorTable
from floatscope.protocol.strict_json import dumps

TIMEOUT_S = 60.0
ATTEMPTS = 6
FIRST_WAIT_S = 0.5  # doubles: 15 s in all, about what a server needs to start again
SAID_CHARS = 60  # of an answer that is not ours
_JSON = {"Content-Type": "application/json"}


class ImportFailed(Exception):
    """The run cannot be sent; the message says why and what to do."""


@dataclass(frozen=True)
class Target:
    """Where to send. Raises ImportFailed for an address that is none."""

    url: str
    token: str | None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ImportFailed(f"--server {self.url!r}: expected an address such as {DEFAULT_URL}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise ImportFailed("the token holds characters that no token has")


def target(url: str | None, token: str | None, env: Mapping[str, str]) -> Target:
    """The server and its token: as given, else FLOATSCOPE_URL and FLOATSCOPE_TOKEN, else the token that a
    server on this machine keeps in its data directory; that one goes to no other machine."""
    try:
        found = server_of(env, url=url, token=token)
    except BadAddress as error:
        raise ImportFailed(f"--server: {error}") from error
    return Target(found.url, found.token)


@dataclass(frozen=True)
class Position:
    """How far a rank is stored. seq: the next one expected."""

    seq: int = 0
    segment: int = 0
    last_step: int | None = None


@dataclass(frozen=True)
class Stored:
    """A run as the server has it."""

    positions: Mapping[int, Position]
    status: str
    health: str | None
    summary: str | None


class Server:
    """Requests that are repeated while the server is away and whose refusals say what to do."""

    def __init__(
        self,
        where: Target,
        *,
        transport: Transport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = where.url
        self._transport = transport or HttpTransport(
            where.url, token=where.token, timeout_s=TIMEOUT_S, user_agent="floatscope-import"
        )
        self._sleep = sleep

    def close(self) -> None:
        self._transport.close()

    def find(self, run_id: str) -> Stored | None:
        """The run, or None if the server has none of this id."""
        answer = self._ask("GET", _path(run_id), b"")
        if answer.status == 404:
            return None
        body = self._body(answer)
        ranks = body.get("ranks")
        found = {}
        for at in ranks if isinstance(ranks, list) else []:
            rank = whole(at.get("rank")) if isinstance(at, dict) else None
            if rank is not None:
                last = whole(at.get("last_step"))
                found[rank] = Position(
                    whole(at.get("expected_seq")) or 0, whole(at.get("segment")) or 0, last
                )
        return Stored(found, str(body.get("status")), _text(body.get("health")), _text(body.get("summary")))

    def open(self, run_id: str, info: RunInfo) -> str:
        """Creates or resumes the run; returns its address for people."""
        answer = self._ask("POST", "/api/v1/runs", dumps({**info.to_json(), "run_id": run_id}).encode())
        url = self._body(answer).get("url")
        return url if isinstance(url, str) else self.link(run_id)

    def link(self, run_id: str) -> str:
        return f"{self.url}/runs/{quote(run_id, safe='')}"

    def put(self, run_id: str, rank: int, seq: int, batch: Batch, table: TensorTable) -> int:
        """Sends a batch; returns the seq of the next.

        The same rows under the same seq are the same bytes, whoever sends them: two imports of one log help
        each other. So the table goes by the seq, not by what this import has sent before.
        """
        path = f"{_path(run_id)}/ranks/{rank}/batches/{seq}"
        headers = {"Content-Type": wire_safetensors.CONTENT_TYPE}
        with_table = seq == 0 or not table  # a server does not keep an empty one
        body = wire_safetensors.encode(batch, table, with_table=with_table)
        answer = self._ask("PUT", path, body, headers)
        if read_answer(answer) is Verdict.NEED_TENSORS and not with_table:
            body = wire_safetensors.encode(batch, table, with_table=True)
            answer = self._ask("PUT", path, body, headers)
        after = whole(self._body(answer).get("expected_seq"))
        if after is None or after <= seq:
            raise ImportFailed(f"{self.url} is not a floatscope server: it took a batch without counting it")
        return seq + 1  # not ``after``: another import may be ahead

    def finish(self, run_id: str, status: str, reason: str | None) -> None:
        body = dumps({"status": status, "reason": reason}).encode()
        self._body(self._ask("POST", f"{_path(run_id)}/finish", body))

    def scalars_at(
        self, run_id: str, rank: int, position: Position, names: tuple[str, ...]
    ) -> dict[str, float | None]:
        """Stored values of the last step of a rank; None for one that is not finite."""
        query = {
            "names": ",".join(names),
            "rank": rank,
            "segment": position.segment,
            "from": position.last_step,
            "to": position.last_step,
            "points": 1,
        }
        body = self._body(self._ask("GET", f"{_path(run_id)}/scalars?{urlencode(query)}", b""))
        series = body.get("series")
        found: dict[str, float | None] = {}
        for name, columns in (series if isinstance(series, dict) else {}).items():
            last = columns.get("last") if isinstance(columns, dict) else None
            value = last[-1] if isinstance(last, list) and last else None
            found[name] = value if isinstance(value, int | float) else None
        return found

    def _body(self, answer: Answer) -> Mapping[str, Any]:
        """The object of a good answer. Raises ImportFailed for any other."""
        verdict = read_answer(answer)
        said = detail(answer)
        if verdict is Verdict.OK and answer.body is not None:
            return answer.body
        if verdict is Verdict.STOP:
            raise ImportFailed(
                f"{self.url} refuses the token ({answer.status}): give --token or FLOATSCOPE_TOKEN; a server "
                "on this machine keeps its token in <data dir>/token"
            )
        if verdict in (Verdict.GAP, Verdict.CONFLICT):
            raise ImportFailed(
                f"something else sends under the same run and rank ({said}): wait until it has ended, or "
                "give --run-id a name of its own"
            )
        if verdict is Verdict.TOO_LARGE:
            raise ImportFailed(f"a step is too large for the server: {said}")
        if answer.status == 404:
            raise ImportFailed(f"{self.url} has no such address; is it a floatscope server? ({said})")
        if answer.status == 200:
            raise ImportFailed(f"{self.url} is not a floatscope server: it answered {said[:SAID_CHARS]}")
        if 300 <= answer.status < 400:
            to = answer.headers.get("location", "elsewhere")
            raise ImportFailed(f"{self.url} leads to {to}: give that address to --server")
        raise ImportFailed(f"{self.url} answered {answer.status}: {said}")

    def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """One request, again while the server is away or busy: every one of them may be repeated."""
        wait = FIRST_WAIT_S
        for attempt in range(ATTEMPTS):
            is_last = attempt == ATTEMPTS - 1
            try:
                answer = self._transport.request(method, path, body, headers or _JSON)
            except TransportError as error:
                if is_last:
                    raise ImportFailed(
                        f"no answer from {self.url} ({error}): start it with floatscope serve, or name "
                        "another with --server; what was sent is kept, the same command goes on from there"
                    ) from error
            else:
                if answer.status not in (429, 500, 502, 503, 504) or is_last:
                    return answer
                wait = max(wait, retry_after_s(answer) or 0.0)
            self._sleep(wait)
            wait *= 2.0
        raise AssertionError("unreachable")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _path(run_id: str) -> str:
    return f"/api/v1/runs/{quote(run_id, safe='')}"
