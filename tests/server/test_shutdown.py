"""SIGTERM under load: nothing that was acknowledged is lost, streams end, and readiness says so first."""

from __future__ import annotations

import http.client
import itertools
import signal
import threading
import time
from pathlib import Path

from tests.server.live import TOKEN, Client, in_own_process, wait_for
from tests.server.samples import body, rows

SENDERS = 4


def test_told_to_stop_under_load(tmp_path: Path) -> None:
    acknowledged = [0] * SENDERS
    refused: list[int] = []
    ready: list[int] = []
    ended = threading.Event()
    with in_own_process(tmp_path / "data", FLOATSCOPE_DRAIN_S="1", FLOATSCOPE_LOG_FORMAT="json") as process:
        client = process.start()
        assert client.get("/readyz").json == {"status": "ready", "problems": []}
        for number in range(SENDERS):
            client.open_run(f"r{number}")

        def sending(number: int) -> None:
            for seq in itertools.count():
                try:
                    answer = client.put(f"r{number}", seq, body(rows(seq * 4, 4)))
                except (OSError, http.client.HTTPException):
                    return
                if answer.status != 200:
                    refused.append(answer.status)
                    return
                acknowledged[number] = seq + 1

        def listening() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
            connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {TOKEN}"})
            connection.getresponse().read()  # returns only if the stream is ended properly
            connection.close()
            ended.set()

        def watching() -> None:
            while True:
                try:
                    ready.append(client.get("/readyz").status)
                except (OSError, http.client.HTTPException):
                    return
                time.sleep(0.05)

        threads = [threading.Thread(target=sending, args=(n,)) for n in range(SENDERS)]
        threads += [threading.Thread(target=listening), threading.Thread(target=watching)]
        for thread in threads:
            thread.start()
        wait_for(lambda: min(acknowledged) > 3)
        assert process.stop(signal.SIGTERM) == 0
        for thread in threads:
            thread.join(30)
        assert ended.is_set()
        assert refused == []
        assert 503 in ready  # before connections were refused
        log = process.log.read_text()
        assert '"level": "error"' not in log
        again = process.start()
        for number in range(SENDERS):
            stored = again.get(f"/api/v1/runs/r{number}").json["ranks"][0]["expected_seq"]
            assert stored - acknowledged[number] in (0, 1)  # the last answer may not have got through
            assert len(again.steps(f"r{number}")) == 4 * stored


def test_an_unready_server_says_so_and_still_serves(tmp_path: Path) -> None:
    with in_own_process(tmp_path / "data", FLOATSCOPE_DRAIN_S="3") as process:
        client = process.start()
        client.open_run("r")
        assert process.process is not None
        process.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get("/readyz").status == 503)
        assert client.get("/readyz").json["problems"] == ["the server is stopping"]
        assert client.put("r", 0, body(rows(0, 4))).status == 200
        assert Client(client.port, None).get("/healthz").status == 200
        assert process.process.wait(30) == 0
