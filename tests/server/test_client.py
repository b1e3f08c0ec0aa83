"""The client for programs against a real server."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from floatscope.api import Api, ApiError, BadAddress, CutOff, NotFound, NotReached, Problem, Refused, Server
from floatscope.api.where import server_of
from tests.server.live import TOKEN, Client
from tests.server.samples import TABLE, TENSORS, Scripted, as_stored, body, finding, lines, rows, send


def api_of(client: Client, *, token: str | None = TOKEN, naps: list[float] | None = None) -> Api:
    sleep = (lambda _s: None) if naps is None else naps.append
    return Api(Server(f"http://127.0.0.1:{client.port}", token), sleep=sleep, timeout_s=20)


@pytest.fixture
def api(client: Client) -> Iterator[Api]:
    with api_of(client) as found:
        yield found


def test_runs_come_page_by_page(client: Client, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatscope.api.api.PAGE", 3)
    for number in range(7):
        client.open_run(f"r{number}", project="odd" if number % 2 else "even")
    assert [run.run_id for run in api.runs()] == [f"r{n}" for n in reversed(range(7))]
    assert [run.run_id for run in api.runs(project="odd")] == ["r5", "r3", "r1"]
    first = next(api.runs())
    assert (first.status, first.health, first.last_loss) == ("running", "healthy", None)
    assert api.change_run("r0", name="other").name == "other"
    api.delete_run("r0")
    with pytest.raises(NotFound) as told:
        api.run("r0")
    assert (told.value.status, told.value.field) == (404, "run_id")
    assert told.value.hint is not None


def test_numbers_that_are_not_finite_stay_what_they_are(client: Client, api: Api) -> None:
    client.open_run("r", tensors=TABLE)
    steps = rows(0, 12)
    steps[-1]["loss"] = math.inf
    send(client, "r", steps)
    assert api.run("r").last_loss == math.inf
    assert lines(list(api.steps("r"))) == as_stored(steps)
    loss = api.scalars("r", "loss")["loss"]
    assert loss.step == list(range(12))
    assert loss.last[-1] is None
    assert loss.inf[-1] == 1
    series = api.series("r", TENSORS[0], "amax", first=2, last=5, points=4)
    assert all(2 <= step <= 5 for step in series.step)
    assert api.verdict("r")["schema"] == "floatscope.verdict/1"


def test_alerts_channels_silences_tokens(serve: Any) -> None:
    client: Client = serve(engines=Scripted(lambda last: [] if last is None else [finding(id="late")]))
    client.open_run("r")
    client.put("r", 0, body(rows(0, 4)))
    with api_of(client) as api:
        (alert,) = api.alerts(run="r", state="firing")
        assert (alert.id, alert.severity, alert.onset_step) == ("late", "critical", 4)
        assert api.act("late", "acknowledge", note="looking").state == "acknowledged"
        assert list(api.alerts(state="firing")) == []
        assert api.alert("late").body["history"][-1]["note"] == "looking"
        many = api.act_on((id_ for id_ in ("late", "gone")), "resolve", note="done")
        assert [(one["id"], one["after"], one["error"] is None) for one in many] == [
            ("late", "resolved", True),
            ("gone", None, False),
        ]
        silence = api.add_silence(run="r", note="known")
        assert [s["id"] for s in api.silences(state="active")] == [silence["id"]]
        assert api.end_silence(silence["id"])["state"] == "ended"
        hook = {"kind": "webhook", "name": "hook", "url": "https://127.0.0.1:1024/x"}
        made = client.call("POST", "/api/v1/channels", hook).json["id"]
        assert [channel["id"] for channel in api.channels()] == [made]
        assert api.test_channel(made)["delivered"] is False
        token = api.add_token("reader", ["read"])
        with api_of(client, token=token["token"]) as reader:
            assert reader.run("r").run_id == "r"
            with pytest.raises(Refused) as told:
                reader.delete_run("r")
            assert told.value.extra["missing_scope"] == "admin"
            assert api.revoke_token(token["id"])["state"] == "revoked"
            with pytest.raises(Refused):
                reader.run("r")
        assert token["id"] in [known["id"] for known in api.tokens()]


def test_a_problem_says_field_and_hint(api: Api) -> None:
    with pytest.raises(Problem) as told:
        next(api.runs(status="odd"))
    assert (told.value.status, told.value.field) == (422, "status")
    assert "finished" in str(told.value.expected)
    assert "status" in str(told.value)


def test_a_limit_is_waited_out(serve: Any) -> None:
    client: Client = serve({"requests_per_s": 0.5})
    naps: list[float] = []
    with api_of(client, naps=naps) as api:
        assert list(api.runs()) == []
        with pytest.raises(Problem) as told:
            api.run("r")
    assert (told.value.status, told.value.extra["limit"]) == (429, "requests_per_s")
    assert len(naps) == 5
    assert all(nap >= 1 for nap in naps)


def test_nobody_there_and_no_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    naps: list[float] = []
    with pytest.raises(NotReached), api_of(Client(port), naps=naps) as api:
        api.run("r")
    assert naps == [0.5, 1.0, 2.0, 4.0, 8.0]
    naps.clear()
    with pytest.raises(NotReached), api_of(Client(port), naps=naps) as api:
        list(api.lines("r"))
    assert naps == [0.5, 1.0, 2.0, 4.0, 8.0], "there is nothing to take up again"
    for url, token in (("ftp://x", None), ("x", None), ("http://[::1", None), ("http://x", "a\nb")):
        with pytest.raises((BadAddress, ValueError)):
            server_of({}, url=url, token=token)
    assert "secret" not in repr(Server("http://x", "secret"))


def test_the_kept_token_goes_to_no_other_machine(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("kept\n")
    known = {"FLOATSCOPE_DATA_DIR": str(tmp_path)}
    assert server_of(known).token == "kept"
    assert server_of(known, url="http://example.org").token is None
    assert server_of({**known, "FLOATSCOPE_TOKEN": "given"}).token == "given"


@contextmanager
def scripted(answers: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """A server that gives these answers, one a connection, and remembers the requests."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            for answer in answers:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(65536))
                    connection.sendall(answer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listener.getsockname()[1], asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def chunked(*parts: bytes, whole: bool) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    found = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head + found + (b"0\r\n\r\n" if whole else b"")


def row(step: int, rank: int = 0) -> bytes:
    return json.dumps({"step": step, "rank": rank, "loss": 1.0}).encode() + b"\n"


def test_a_cut_log_goes_on_where_it_stopped() -> None:
    head = b'{"run": {}}\n'
    first = chunked(head, row(1), row(1, 1), row(2), row(2, 1)[:9], whole=False)
    second = chunked(head + row(2) + row(2, 1), row(3), whole=False)
    third = chunked(head, row(3), row(3, 1), whole=True)
    with scripted([first, second, third]) as (port, asked), api_of(Client(port)) as api:
        found = [json.loads(line) for line in api.lines("r", rank="all", last=9)]
    assert "run" in found[0]
    assert [(r["step"], r["rank"]) for r in found[1:]] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert b"from=2&to=9&rank=all" in asked[1]
    assert b"from=3&to=9&rank=all" in asked[2]


def test_a_log_that_is_cut_again_and_again_is_not_taken_for_whole() -> None:
    cut = chunked(b'{"run": {}}\n', row(1), whole=False)
    with scripted([cut] * 6) as (port, _asked), api_of(Client(port)) as api:
        found: list[bytes] = []
        with pytest.raises(CutOff):
            found.extend(api.lines("r"))
    assert len(found) == 2


def test_answers_of_other_programs_are_no_tracebacks() -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n"
    odd = b"SSH-2.0-OpenSSH\r\n"
    with scripted([plain, moved, chunked(b"no json\n" * 2, whole=True), *[odd] * 6]) as (port, _asked):
        with api_of(Client(port)) as api, pytest.raises(ApiError, match="does not answer as"):
            api.run("r")
        with api_of(Client(port)) as api, pytest.raises(Problem, match="http://other/"):
            api.run("r")
        with api_of(Client(port)) as api, pytest.raises(ApiError, match="no step"):
            list(api.lines("r"))
        with api_of(Client(port)) as api, pytest.raises(NotReached):
            api.run("r")
