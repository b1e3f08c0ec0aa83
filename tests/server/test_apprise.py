"""Messages through the apprise library: they arrive, and its process can do nothing else."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from floatscope_server.notify import apprise_post, posting
from floatscope_server.notify.apprise_child import Guard
from floatscope_server.notify.posting import Letter
from floatscope_server.notify.targets import WebhookRefused
from floatscope_server.notify.webhook import DeliveryFailed
from tests.server.live import wait_for
from tests.server.samples import Scripted, body, finding, rows
from tests.server.slack import odd_receiver, silent, slack

TEXT = {"title": "Critical: <b>&", "body": "line\nline", "type": "failure"}


@contextmanager
def mail_server() -> Iterator[tuple[int, list[str]]]:
    """Port and letters of a server that takes any mail."""
    letters: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 ready\r\n")
            while line := self.rfile.readline().decode().strip():
                if line.upper() == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    parts = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                    letters.append("\n".join(parts))
                self.wfile.write(b"221 bye\r\n" if line.upper() == "QUIT" else b"250 ok\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server.server_address[1], letters
        server.shutdown()
        thread.join(5)


def gotify(receiver: Any) -> str:
    return f"gotify://127.0.0.1:{receiver.server.server_port}/token-B0-secret"


def test_an_alert_arrives_through_apprise(serve: Any) -> None:
    with slack() as receiver:
        client = serve(engines=Scripted(lambda last: [finding()]))
        new = {"kind": "apprise", "name": "phone", "url": gotify(receiver)}
        made = client.call("POST", "/api/v1/channels", new)
        assert (made.status, made.json["host"]) == (201, "gotify")
        assert "secret" not in made.text
        client.open_run("r")
        client.put("r", 0, body(rows(0, 1)))
        wait_for(lambda: len(receiver.got) == 1, seconds=20)
        told = client.call("POST", f"/api/v1/channels/{made.json['id']}/test").json
        assert (told["delivered"], told["status"]) == (True, None)
    (alert, test) = receiver.got
    assert alert["title"] == "Critical: The scale stands still while amax grows; 4.1 % of the values clip"
    assert "Roll back to step 4." in alert["message"]
    assert test["title"] == "Test"


def test_mail_arrives() -> None:
    with mail_server() as (port, letters):
        url = f"mailto://127.0.0.1:{port}/?from=floatscope@example.org&to=team@example.org&mode=insecure"
        apprise_post.post(url, TEXT, allow_private=True)
    (letter,) = letters
    assert "Subject: Critical: <b>&" in letter
    assert "To: team@example.org" in letter


def test_private_addresses_are_not_called_unless_allowed() -> None:
    with slack() as receiver, mail_server() as (port, letters):
        mail = f"mailto://127.0.0.1:{port}/?from=a@example.org&to=b@example.org&mode=insecure"
        for url in (gotify(receiver), mail, gotify(receiver).replace("127.0.0.1", "localhost")):
            with pytest.raises(DeliveryFailed, match="loopback or private address") as failed:
                apprise_post.post(url, TEXT, allow_private=False)
            assert failed.value.refused
            assert "secret" not in str(failed.value)
        assert (receiver.tried, letters) == ([], [])


def test_redirects_are_not_followed_and_a_refusal_is_a_failure() -> None:
    with slack() as inside, slack((302, {"Location": inside.url}), (500, {})) as receiver:
        for _ in range(2):
            with pytest.raises(DeliveryFailed, match=r"^gotify did not take the message$"):
                apprise_post.post(gotify(receiver), TEXT, allow_private=True)
        assert inside.tried == []


@pytest.mark.parametrize(
    "url",
    [
        "dbus://",
        "syslog://",
        "windows://",
        "macosx://",
        "json://example.org/B0-secret",
        "form://example.org",
        "mqtt://example.org/x",
        "rsyslog://example.org",
        "file:///etc/passwd",
        "https://example.org",
        "discord",
        "discord://short-B0-secret",
        "mailto://" + "x" * 3000,
        "mailto://a\nb",
    ],
)
def test_other_services_and_halves_of_addresses_are_refused(url: str) -> None:
    with pytest.raises(WebhookRefused) as refused:
        apprise_post.check(url)
    assert "secret" not in str(refused.value)


def test_a_file_of_this_machine_is_not_sent_along(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    with slack() as receiver:
        port = receiver.server.server_port
        url = f"workflows://127.0.0.1:{port}/workflow/signature/?template={secret}"
        with pytest.raises(DeliveryFailed, match="wanted to open a file"):
            apprise_post.post(url, TEXT, allow_private=True)
        assert receiver.tried == []


def test_one_that_hangs_is_ended() -> None:
    with odd_receiver(silent) as url:
        port = url.split(":")[2].split("/")[0]
        post = f"gotify://127.0.0.1:{port}/token-B0-secret?rto=60&cto=60"
        with pytest.raises(DeliveryFailed, match="within 3 s"):
            apprise_post.post(post, TEXT, allow_private=True, timeout=3.0)


def test_a_process_that_breaks_is_a_failure_without_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apprise_post, "CHILD", "no_such_module_at_all")
    post = posting.poster(allow_private=True)
    with pytest.raises(DeliveryFailed, match=r"^the process that sends to gotify failed$"):
        post(Letter("apprise", "gotify://127.0.0.1:9/token-B0-secret", None, TEXT, "1"))


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("socket.connect", (None, ("10.0.0.1", 443))),
        ("socket.connect", (None, ("::ffff:127.0.0.1", 443, 0, 0))),
        ("socket.connect", (None, ("169.254.169.254", 80))),
        ("socket.connect", (None, ("example.org", 443))),
        ("socket.connect", (None, "/run/dbus/system_bus_socket")),
        ("socket.connect", (None, ("93.184.216.34", 22))),
        ("socket.sendto", (None, ("10.0.0.1", 514))),
        ("subprocess.Popen", ("sh", [], None, None)),
        ("os.system", ("true",)),
        ("open", ("/etc/passwd", "r", 0)),
        ("open", (sys.prefix + "/../../etc/passwd", "r", 0)),
    ],
)
def test_the_guard_stops(event: str, arguments: tuple[Any, ...]) -> None:
    guard = Guard(allow_private=False)
    with pytest.raises(PermissionError):
        guard(event, arguments)
    assert len(guard.reasons) == 1


def test_the_guard_lets_through_what_a_message_needs() -> None:
    guard = Guard(allow_private=False)
    for port in (25, 443, 465, 587, 8443):
        guard("socket.connect", (None, ("93.184.216.34", port)))
    guard("open", (socket.__file__, "r", 0))
    guard("open", (3, "r", 0))
    Guard(allow_private=True)("socket.connect", (None, ("10.0.0.1", 443)))
    assert guard.reasons == []
