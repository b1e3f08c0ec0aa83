"""Training processes of their own for tests, and ways in which a server misbehaves."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

LOOP = """
    import os, signal, sys, time
    import floatscope
    settings = {"recorder_steps": 0, **SETTINGS}
    monitor = floatscope.watch(run="p", run_id="p", gpu=False, strict=True, **settings)
    def train(steps, pause=0.0):
        for step in steps:
            monitor.step(step, loss=1.0 / (step + 1))
            time.sleep(pause)
    def wait():
        print("trained", flush=True)
        time.sleep(60)
"""


class Job:
    """A training process of its own."""

    def __init__(self, code: str, settings: dict[str, Any]) -> None:
        program = textwrap.dedent(LOOP).replace("SETTINGS", repr(settings)) + textwrap.dedent(code)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, line: str) -> None:
        """Until it has printed this line."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == line, self.process.communicate()

    def end(self, with_signal: int | None = None) -> tuple[int, str]:
        """Exit code and standard error, after a signal if one is given."""
        if with_signal is not None:
            self.process.send_signal(with_signal)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def until(what: Callable[[], object]) -> None:
    """Waits for something that comes by itself."""
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def hang(handler: Any) -> bool:
    return bool(handler.rfile.read(1))  # waits for a byte that never comes


def garbage(handler: Any) -> bool:
    handler.wfile.write(b"\x00\xff\r\n\r\nnot HTTP at all\r\n")
    handler.close_connection = True
    return True


def login_page(handler: Any) -> bool:
    page = b"<html>please log in</html>"
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(page)))
    handler.end_headers()
    handler.wfile.write(page)
    return True


def broken(handler: Any) -> bool:
    handler.send_error(503)
    return True


def gone(handler: Any) -> bool:
    handler.connection.close()
    return True
