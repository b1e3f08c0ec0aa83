"""The server's REST interface as methods."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from floatscope.api import steps
from floatscope.api.connection import TIMEOUT_S, Connection, Sleep
from floatscope.api.records import Alert, Run, Series
from floatscope.api.where import Server
from floatscope.version import version

PAGE = 200
ACTED_ON_AT_ONCE = 2000
_API = "/api/v1"


class Api:
    """A server. Every method raises ApiError: NotReached without an answer, Problem for an error of the
    server with its field and hint, Refused and NotFound among them.

    Requests are sent again for a while if the server is away, busy or limits them (Retry-After). One object
    belongs to one thread.
    """

    def __init__(
        self,
        server: Server,
        *,
        user_agent: str | None = None,
        timeout_s: float = TIMEOUT_S,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.server = server
        self._sleep = sleep
        self._connection = Connection(
            server, user_agent=user_agent or f"floatscope-api/{version()}", sleep=sleep, timeout_s=timeout_s
        )

    def __enter__(self) -> Api:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def link(self, run_id: str) -> str:
        """The run's address for people."""
        return f"{self.server.url}/runs/{quote(run_id, safe='')}"

    # runs

    def runs(
        self, *, project: str | None = None, status: str | None = None, health: str | None = None
    ) -> Iterator[Run]:
        """Runs, newest first. status, health: one or several, separated by commas; health "warming_up" are
        those too young to be "healthy".
        """
        found = self._pages("/runs", {"project": project, "status": status, "health": health})
        return (Run.of(item) for item in found)

    def run(self, run_id: str) -> Run:
        """One run; its ``body`` also has ranks and description."""
        return Run.of(self._get(_run(run_id)))

    def change_run(self, run_id: str, **changes: str | None) -> Run:
        """Changes name, project or baseline; ``baseline=None`` takes the baseline away."""
        return Run.of(self._connection.json("PATCH", _run(run_id), changes))

    def delete_run(self, run_id: str) -> None:
        """Deletes the run with all that is stored of it."""
        self._connection.json("DELETE", _run(run_id))

    def verdict(self, run_id: str) -> dict[str, Any]:
        """What is wrong with the run; empty if nothing was judged yet."""
        return dict(self._get(f"{_run(run_id)}/verdict"))

    def scalars(
        self,
        run_id: str,
        *names: str,
        first: int | None = None,
        last: int | None = None,
        points: int | None = None,
        rank: int | None = None,
    ) -> dict[str, Series]:
        """Scalars by name, all there are if none is named; at most ``points`` bins each."""
        query = {
            "names": ",".join(names) or None,
            "from": first,
            "to": last,
            "points": points,
            "rank": rank,
        }
        found = self._get(f"{_run(run_id)}/scalars", query)
        return {name: Series.of(columns) for name, columns in found["series"].items()}

    def series(
        self,
        run_id: str,
        tensor: str,
        stat: str,
        *,
        first: int | None = None,
        last: int | None = None,
        points: int | None = None,
        rank: int | None = None,
    ) -> Series:
        """One statistic of one tensor."""
        query = {
            "tensor": tensor,
            "stat": stat,
            "from": first,
            "to": last,
            "points": points,
            "rank": rank,
        }
        return Series.of(self._get(f"{_run(run_id)}/series", query))

    def tensors(self, run_id: str) -> list[dict[str, Any]]:
        """The run's tensors in the order of the network: ``name`` and what is known of each."""
        return list(self._get(f"{_run(run_id)}/tensors")["items"])

    def frame(
        self,
        run_id: str,
        *,
        step: int | None = None,
        tensor: str | None = None,
        histograms: bool = False,
        rank: int | None = None,
    ) -> dict[str, Any]:
        """All statistics of the tensors at the newest step at or before ``step`` that has them: ``step``,
        ``tensors``, ``stats`` (name -> ``step``, ``values``) and, where asked for, ``hist_log2`` (``step``,
        ``counts`` by tensor).
        """
        query = {"step": step, "tensor": tensor, "histograms": "true" if histograms else None, "rank": rank}
        return dict(self._get(f"{_run(run_id)}/frame", query))

    def histogram(
        self, run_id: str, tensor: str, *, first: int | None = None, last: int | None = None
    ) -> dict[str, Any]:
        """A tensor's histograms of exponents: ``step``, ``lowest``, ``counts``."""
        query = {"tensor": tensor, "from": first, "to": last, "columns": 500}
        return dict(self._get(f"{_run(run_id)}/histogram", query))

    def lines(
        self,
        run_id: str,
        *,
        first: int | None = None,
        last: int | None = None,
        rank: int | str | None = None,
        segment: int | None = None,
    ) -> Iterator[bytes]:
        """The run as the lines of a floatscope log, streamed. rank: a number or ``"all"``; without it the
        lowest. A cut connection is taken up again; CutOff says that it could not be.
        """
        wanted = None if rank is None else str(rank)
        return steps.lines(
            self._connection,
            run_id,
            first=first,
            last=last,
            rank=wanted,
            segment=segment,
            sleep=self._sleep,
        )

    def steps(
        self,
        run_id: str,
        *,
        first: int | None = None,
        last: int | None = None,
        rank: int | str | None = None,
        segment: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The steps as objects, without the line that describes the run."""
        found = self.lines(run_id, first=first, last=last, rank=rank, segment=segment)
        next(found, None)
        return (json.loads(line) for line in found)

    # alerts and who is told

    def alerts(
        self,
        *,
        run: str | None = None,
        state: str | None = None,
        severity: str | None = None,
        project: str | None = None,
    ) -> Iterator[Alert]:
        """Alerts, newest first. state, severity: one or several, separated by commas."""
        query = {"run": run, "state": state, "severity": severity, "project": project}
        return (Alert.of(item) for item in self._pages("/alerts", query))

    def alert(self, alert_id: str) -> Alert:
        return Alert.of(self._get(f"{_API}/alerts/{quote(alert_id, safe='')}"))

    def act(self, alert_id: str, action: str, *, note: str | None = None) -> Alert:
        """What a person does: acknowledge, resolve, reopen, note, not_the_cause."""
        body = {"action": action} | ({} if note is None else {"note": note})
        return Alert.of(self._connection.json("PATCH", f"{_API}/alerts/{quote(alert_id, safe='')}", body))

    def act_on(
        self,
        alert_ids: Iterable[str],
        action: str,
        *,
        note: str | None = None,
        mute_until: str | None = None,
    ) -> list[dict[str, Any]]:
        """Does the same to many alerts. Of each: ``id``, ``before``, ``after`` (states) and ``error``, which
        is None unless nothing was done to it. Requests hold up to 2,000; each is done whole or not at all.
        """
        ids = list(dict.fromkeys(alert_ids))
        more = {"note": note, "mute_until": mute_until}
        body = {"action": action} | {name: value for name, value in more.items() if value is not None}
        done: list[dict[str, Any]] = []
        for first in range(0, len(ids), ACTED_ON_AT_ONCE):
            part = body | {"alerts": ids[first : first + ACTED_ON_AT_ONCE]}
            done += self._connection.json("POST", f"{_API}/alerts/actions", part)["items"]
        return done

    def channels(self) -> list[dict[str, Any]]:
        return list(self._pages("/channels", {}))

    def test_channel(self, channel_id: str) -> dict[str, Any]:
        """Sends one message now: ``delivered``, ``status``, ``took_s``, ``error``."""
        path = f"{_API}/channels/{quote(channel_id, safe='')}/test"
        return dict(self._connection.json("POST", path, {}))

    def silences(self, *, state: str | None = None) -> Iterator[dict[str, Any]]:
        """Silences, newest first. state: waiting, active or ended."""
        return self._pages("/silences", {"state": state})

    def add_silence(self, **fields: Any) -> dict[str, Any]:
        """Holds messages back: run, project, family, cause, starts, ends, critical, note."""
        return dict(self._connection.json("POST", f"{_API}/silences", fields))

    def end_silence(self, silence_id: str) -> dict[str, Any]:
        return dict(self._connection.json("DELETE", f"{_API}/silences/{quote(silence_id, safe='')}"))

    # tokens

    def tokens(self) -> list[dict[str, Any]]:
        return list(self._pages("/tokens", {}))

    def add_token(self, name: str, scopes: list[str], *, expires: str | None = None) -> dict[str, Any]:
        """Makes a token; ``token`` of the answer is shown this once."""
        body = {"name": name, "scopes": scopes} | ({} if expires is None else {"expires": expires})
        return dict(self._connection.json("POST", f"{_API}/tokens", body))

    def revoke_token(self, token_id: str) -> dict[str, Any]:
        return dict(self._connection.json("DELETE", f"{_API}/tokens/{quote(token_id, safe='')}"))

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        given = urlencode({name: value for name, value in (query or {}).items() if value is not None})
        return self._connection.json("GET", path + (f"?{given}" if given else ""))

    def _pages(self, path: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Items of all pages, each page asked for when it is needed."""
        cursor = None
        while True:
            page = self._get(f"{_API}{path}", {**query, "cursor": cursor, "limit": PAGE})
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return


def _run(run_id: str) -> str:
    return f"{_API}/runs/{quote(run_id, safe='')}"
