"""`floatscope serve` as its own process, fed over HTTP like any trainer would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = "fs_browser-test-token-0123456789"
START_S = 60.0
SERVE = "import sys; from floatscope.cli import main; sys.exit(main(sys.argv[1:]))"


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class RealServer:
    """One data folder and port; may be killed and started again."""

    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once the server answers; fails with its output when it does not."""
        log = self.folder / "serve.log"
        command = [sys.executable, "-c", SERVE, "serve", "--port", str(self.port)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--data-dir", str(self.folder / "data")],
                env={**os.environ, "FLOATSCOPE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + "/healthz", timeout=2):
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"floatscope serve did not answer:\n{log.read_text()[-4000:]}")

    def kill(self) -> None:
        """As a machine that loses its power: no shutdown."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def call(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One API call with the token; an error answer fails with what it says."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                value: dict[str, Any] = json.loads(answer.read())
                return value
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error

    def send(self, run: str, seq: int, rows: list[dict[str, Any]]) -> None:
        """One batch of steps of rank 0."""
        self.call("PUT", f"/api/v1/runs/{run}/ranks/0/batches/{seq}", {"steps": rows})
