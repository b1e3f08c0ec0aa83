"""Nothing that a server answers acts on the terminal or breaks a log line: it is escaped and cut."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from floatscope.answers import detail, said
from floatscope.client import Answer, HttpTransport, TransportError
from floatscope.guard import Guard
from tests.agent.fake_server import HttpServer
from tests.agent.jobs import Job

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x00\x7f"


def test_garbage_instead_of_http() -> None:
    """Some hundred bytes of anything become a short line of printable characters."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.recv(65536)
            connection.sendall(bytes(range(256)).replace(b"\n", b"") * 2 + b"\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        client = HttpTransport(
            f"http://127.0.0.1:{listening.getsockname()[1]}", token=None, timeout_s=5.0, user_agent="test"
        )
        with pytest.raises(TransportError) as caught:
            client.request("POST", "/", b"{}", {})
        client.close()
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith("BadStatusLine: ")
    assert len(text) < 300


@pytest.mark.parametrize("field", ["detail", "title", None])
def test_words_of_an_answer(field: str | None) -> None:
    """A detail, a title, a page of a proxy."""
    words = EVIL + "x" * 5000
    answer = Answer(500, {field: words} if field else None, words)
    assert detail(answer).isprintable()
    assert said(answer).isprintable()
    assert "\\x1b]0;owned\\x07" in said(answer)
    assert len(said(answer)) < 600


def test_whatever_is_said_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    """A finding of a server, a name, a path: the one place that logs lets nothing through."""
    Guard().say(f"CRITICAL in {EVIL}: x")
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.isprintable()
    assert "\\x1b[2J\\x9b31m\\u202e" in line


def test_the_address_of_the_run(server: HttpServer, tmp_path: Any) -> None:
    """It is printed as it comes, so it is the plainest way in."""
    ask = server.server.request

    def with_url(*args: Any) -> Any:
        answer = ask(*args)
        if args[0] == "POST" and answer.body is not None and args[1].endswith("/runs"):
            answer.body["url"] = f"http://somewhere/{EVIL}\nfloatscope: pay here"  # type: ignore[index]
        return answer

    server.server.request = with_url  # type: ignore[method-assign, assignment]
    _, line = Job("train(range(5)); monitor.finish()", {"url": server.url, "spool_dir": str(tmp_path)}).end()
    assert line.count("\n") == 1
    assert line.startswith("floatscope: watching this run at http://somewhere/\\x1b]0;owned")
    assert line.rstrip("\n").isprintable()
