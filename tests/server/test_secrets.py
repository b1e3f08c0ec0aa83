"""Secrets are never shown or logged again: not at the finest log level, not in errors, not in settings."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from floatscope_server.access import Grant, digest_of
from floatscope_server.database import Database
from floatscope_server.settings import Settings, SettingsError, load
from tests.server.conftest import Serve
from tests.server.live import TOKEN, Client, free_port, in_own_process, wait_for
from tests.server.samples import body, faulty_run, rows, send

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
HOOK = "hook-secret-4711"
GUESS = "guess-of-somebody-4711"


@pytest.mark.timeout(90)
def test_a_whole_session_at_debug_level_leaves_no_secret_in_the_log(tmp_path: Path) -> None:
    environment = {
        "FLOATSCOPE_LOG_LEVEL": "debug",
        "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS": "1",
        "FLOATSCOPE_SLACK_WEBHOOK_URL": f"http://127.0.0.1:{free_port()}/{HOOK}",
    }
    with in_own_process(tmp_path / "data", **environment) as process:
        admin = process.start()
        stranger = Client(admin.port, None)
        made = admin.call("POST", "/api/v1/tokens", {"name": "n", "scopes": ["write"]}).json
        cookies = []
        for answer in (
            stranger.get(f"/runs/r?at=1&token={TOKEN}"),
            stranger.call("POST", "/login", f"token={made['token']}&next=/".encode(), headers=FORM),
        ):
            assert answer.status == 303
            cookies.append(answer.headers["set-cookie"].partition(";")[0].partition("=")[2])
        name = answer.headers["set-cookie"].partition("=")[0]
        for cookie in cookies:
            stranger.call("GET", "/", headers={"Cookie": f"{name}={cookie}"})
        for path in (f"/?token={GUESS}", f"/nothing?token={GUESS}"):
            assert stranger.get(path).status == 303
        assert Client(admin.port, GUESS).get(f"/api/v1/runs?token={GUESS}").status == 401
        assert stranger.call("POST", "/login", f"token={GUESS}x".encode(), headers=FORM).status == 401
        hook = f"http://127.0.0.1:{free_port()}/{HOOK}"
        channel = admin.call("POST", "/api/v1/channels", {"kind": "slack", "name": "c", "url": hook})
        assert channel.status == 201, channel.text
        admin.call("POST", f"/api/v1/channels/{channel.json['id']}/test", b"")
        wrong = admin.call("POST", "/api/v1/channels", {"kind": "slack", "name": "c", "url": f"odd://{HOOK}"})
        assert wrong.status == 422
        described, steps = faulty_run(96, fault_at=64)
        admin.open_run("r", **described)
        send(admin, "r", steps, size=48)
        admin.call("DELETE", f"/api/v1/tokens/{made['id']}")
        shown = [
            admin.get(path).text for path in ("/api/v1/channels", "/api/v1/tokens", "/api/v1/audit", "/")
        ]
        wait_for(lambda: "wrong token from 127.0.0.1" in process.log.read_text())
        assert process.stop(signal.SIGTERM) == 0
        said = process.log.read_text()
    for secret in (TOKEN, made["token"], HOOK, GUESS, *cookies):
        assert secret not in said
        assert not any(secret in text for text in shown)
        for hashed in (digest_of(secret), digest_of(secret)[:32]):
            assert hashed not in said


def test_an_error_of_the_database_does_not_repeat_the_values(database: Database) -> None:
    with pytest.raises(SQLAlchemyError) as raised, database.write() as c:
        c.execute(text("insert into nowhere values (:a)"), {"a": HOOK})
    assert HOOK not in str(raised.value)
    assert HOOK not in repr(raised.value)


def test_a_server_fault_tells_and_logs_no_header_and_no_body(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("made by the test")

    monkeypatch.setattr("floatscope_server.routes.tokens.tokens.listed", broken)
    with caplog.at_level(logging.DEBUG):
        answer = serve().get("/api/v1/tokens")
        wait_for(lambda: "made by the test" in caplog.text)
    assert (answer.status, answer.json["title"]) == (500, "Server fault")
    assert "made by the test" not in answer.text
    assert TOKEN not in caplog.text


def test_settings_and_what_they_say_when_wrong_hold_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = Settings(
        data_dir=tmp_path,
        token=SecretStr(TOKEN),
        database_url=SecretStr(f"postgresql://u:{HOOK}@db/x"),
        slack_webhook_url=SecretStr(f"https://hooks.slack.com/{HOOK}"),
    )
    for dumped in (repr(found), str(found.model_dump()), found.model_dump_json()):
        assert TOKEN not in dumped
        assert HOOK not in dumped
    monkeypatch.setenv("FLOATSCOPE_TOKEN", f"{HOOK}\u00e4")
    with pytest.raises(SettingsError) as raised:
        load({}, config=None)
    assert HOOK not in str(raised.value)


def test_a_batch_is_not_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    with caplog.at_level(logging.DEBUG):
        server.open_run("r", name="a-name-of-a-run")
        server.put("r", 0, body(rows(0, 3)))
        server.put("r", 1, b'{"steps": [{"step": "odd-value-4711"}]}')
    assert "odd-value-4711" not in caplog.text


def test_what_is_passed_around_inside_holds_no_token() -> None:
    grant = Grant(digest_of(TOKEN), "id", "name", frozenset(("read",)))
    assert TOKEN not in repr(grant)
    assert TOKEN not in repr(grant.caller("127.0.0.1"))
