"""Run by ``make test-wheel`` with the installed wheel, outside the checkout:

command, diagnosis, server, migrations.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

BIN = Path(sys.executable).parent
FLOATSCOPE = str(BIN / "floatscope")
TOKEN = "wheel-smoke-0123456789abcdef"


def main() -> None:
    """Fails with an exception at the first thing that does not work."""
    folder = Path(tempfile.mkdtemp(prefix="floatscope-wheel-"))
    missing = subprocess.run([FLOATSCOPE, "train"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2, missing
    assert "pip install 'floatscope[trainer]'" in missing.stderr, missing.stderr

    log = folder / "run.jsonl"
    rows = [{"step": i, "loss": 2.0 if i < 30 else "NaN", "grad_norm": 1.0} for i in range(40)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [FLOATSCOPE, "diagnose", "--json", str(log)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done
    assert json.loads(done.stdout)["findings"][0]["onset_step"] == 30, done.stdout
    subprocess.run([FLOATSCOPE, "diagnose", str(log), "--html", str(folder / "report.html")], check=False)
    assert "@media print" in (folder / "report.html").read_text(), "the page lacks its style"

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "FLOATSCOPE_TOKEN": TOKEN, "FLOATSCOPE_DATA_DIR": str(folder / "data")}
    command = [FLOATSCOPE, "serve", "--port", str(port)]
    with (
        (folder / "serve.log").open("wb") as output,
        subprocess.Popen(command, env=env, stdout=output, stderr=output) as server,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port}/healthz", server)
            assert b"<html" in get(f"http://127.0.0.1:{port}/").lower()
            assert get(f"http://127.0.0.1:{port}/api/v1/runs") == b'{"items":[],"next_cursor":null}'
            sent = [FLOATSCOPE, "import", str(log), "--server", f"http://127.0.0.1:{port}"]
            subprocess.run(sent, env=env, check=True)
            assert b'"health":"critical"' in get(f"http://127.0.0.1:{port}/api/v1/runs")
        finally:
            server.terminate()
            print((folder / "serve.log").read_text()[-2000:])
    print("wheel: command, diagnose, import, serve, pages and migrations work")


def get(url: str) -> bytes:
    """Body of a page that needs the token."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return bytes(answer.read())


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Returns once the server answers."""
    for _ in range(150):
        assert server.poll() is None, "the server ended"
        try:
            get(url)
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(url)


if __name__ == "__main__":
    main()
