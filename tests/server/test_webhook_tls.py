"""Webhooks over TLS: the certificate must be the name's, although an address is called."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from floatscope_server.notify import webhook
from floatscope_server.notify.targets import Target
from floatscope_server.notify.webhook import DeliveryFailed

NAME = "hooks.example.org"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own for NAME, with its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", "key.pem", "-out", "certificate.pem", "-days", "2", "-subj", f"/CN={NAME}"]
    subprocess.run(
        [*command, "-addext", f"subjectAltName=DNS:{NAME}"], cwd=folder, check=True, capture_output=True
    )
    return folder / "certificate.pem"


class Taker(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200 if self.headers["host"].startswith(NAME) else 421)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def port(certificate: Path) -> Iterator[int]:
    """Where a receiver with that certificate listens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(5)


def test_the_name_is_checked_and_not_the_address(
    port: int, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert webhook.post(Target("https", NAME, port, "/x", ("127.0.0.1",)), b"{}") == 200
    with pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1 does not answer"):
        webhook.post(Target("https", "127.0.0.1", port, "/x", ("127.0.0.1",)), b"{}")


def test_a_certificate_that_nobody_vouches_for_is_refused(port: int) -> None:
    with pytest.raises(DeliveryFailed, match=NAME):
        webhook.post(Target("https", NAME, port, "/x", ("127.0.0.1",)), b"{}")
