"""The server that the demo streams to: one that is running already, or one of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

DEFAULT_PORT = 8321
START_TIMEOUT_S = 60.0  # a first start migrates the database; on a busy laptop that takes seconds
STOP_TIMEOUT_S = 15.0  # longer than the server's own limit for requests under way
POLL_S = 0.1
REQUEST_TIMEOUT_S = 30.0


class ServerError(RuntimeError):
    """The server cannot be started or reached; the message says why."""


@dataclass(frozen=True)
class Server:
    """How to reach it.  process: None if it is not ours."""

    url: str
    token: str
    process: subprocess.Popen[bytes] | None = None

    def get(self, path: str) -> Any:
        """The JSON answer of `GET /api/v1{path}`. Raises ServerError."""
        try:
            return json.loads(self.get_text(path))
        except ValueError as error:
            raise ServerError(f"{self.url}: GET {path} did not answer with JSON") from error

    def get_text(self, path: str) -> str:
        """The text of an answer. Raises ServerError."""
        headers = {"Authorization": f"Bearer {self.token}"}
        request = Request(f"{self.url}/api/v1{path}", headers=headers)  # noqa: S310  http(s), see running_server
        try:
            with urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:  # noqa: S310
                return str(answer.read().decode())
        except HTTPError as error:
            error.close()
            raise ServerError(f"{self.url}: GET {path} answered {error.code} {error.reason}") from error
        except (URLError, OSError) as error:
            raise ServerError(f"{self.url} does not answer ({error})") from error

    def link(self) -> str:
        """The address to open in a browser, which logs in."""
        return f"{self.url}/?token={self.token}"


@contextmanager
def running_server(*, port: int | None, data_dir: Path, env: Mapping[str, str]) -> Iterator[Server]:
    """A server, stopped at the end if it was started here.

    With FLOATSCOPE_URL in `env` that server is used, with FLOATSCOPE_TOKEN. Else `floatscope serve` is
    started on `port`, by default 8321 or any free one if that is taken. Raises ServerError.
    """
    address = env.get("FLOATSCOPE_URL")
    if address:
        if not address.startswith(("http://", "https://")):
            raise ServerError(f"FLOATSCOPE_URL is {address!r}; expected an address like http://host:8321")
        yield Server(url=address.rstrip("/"), token=env.get("FLOATSCOPE_TOKEN", ""))
        return
    chosen = port or (DEFAULT_PORT if _is_free(DEFAULT_PORT) else _free_port())
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "serve.log"
    command = [
        sys.executable,
        "-m",
        "floatscope.cli",
        "serve",
        "--port",
        str(chosen),
        "--data-dir",
        str(data_dir),
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603  our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,  # Ctrl-C is for the demo, which then stops the server itself
        )
    try:
        url = f"http://127.0.0.1:{chosen}"
        _wait_until_ready(process, url, log=log)
        token = env.get("FLOATSCOPE_TOKEN") or _read_token(data_dir)
        yield Server(url=url, token=token, process=process)
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, *, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise ServerError(
                f"floatscope serve ended with code {process.returncode}: {' '.join(tail)} (see {log})"
            )
        try:
            with urlopen(f"{url}/healthz", timeout=REQUEST_TIMEOUT_S):  # noqa: S310
                return
        except (URLError, OSError):
            time.sleep(POLL_S)
    raise ServerError(f"floatscope serve does not answer at {url} after {START_TIMEOUT_S:.0f} s (see {log})")


def _read_token(data_dir: Path) -> str:
    path = data_dir / "token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ServerError(
            f"{path} cannot be read ({error.strerror}): this data directory was begun with a token from "
            "FLOATSCOPE_TOKEN; set that variable, or give another --data-dir"
        ) from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
