"""``floatscope serve``: it starts without any setting, says where it is, or says why it cannot start."""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from floatscope_server.access import FirstToken
from floatscope_server.cli import _greet, main
from floatscope_server.data_lock import DataLock
from floatscope_server.dbtool.cli import main as db_main
from floatscope_server.settings import Settings, SettingsError, load, misspelt
from tests.server.live import TOKEN, Client, Process, free_port, in_own_process
from tests.server.samples import body, rows


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own settings reaches a test."""
    for name in list(os.environ):
        if name.startswith("FLOATSCOPE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs ``serve``, expects it to give up with code 2 and these words, and returns all it said."""

    def check(arguments: list[str], *words: str) -> str:
        assert main(arguments) == 2
        said = capsys.readouterr()
        for word in words:
            assert word in said.err
        assert "Traceback" not in said.err
        return said.err + said.out

    return check


@pytest.mark.timeout(90)
def test_the_first_start_makes_a_token_and_the_next_one_keeps_it(tmp_path: Path) -> None:
    process = Process(tmp_path / "data")
    begun = time.monotonic()
    client = process.start()
    assert time.monotonic() - begun < 15  # about 1.5 s on a quiet machine
    try:
        said = process.log.read_text()
        match = re.search(rf"http://127\.0\.0\.1:{process.port}/\?token=(\S+)", said)
        assert match is not None, said
        token = match[1]
        assert (tmp_path / "data" / "token").read_text().strip() == token
        database = tmp_path / "data" / "floatscope.db"
        mine = Client(client.port, token)
        mine.open_run("r")
        for file in (database, Path(f"{database}-wal"), Path(f"{database}-shm")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        mine.put("r", 0, body(rows(0, 2)))
        assert process.stop() == 0
        process.log.write_text("")
        process.start()
        assert "token=" not in process.log.read_text()
        assert str(tmp_path / "data" / "token") in process.log.read_text()
        assert len(mine.steps("r")) == 2
        assert mine.get("/readyz").json["status"] == "ready"
    finally:
        process.stop()


def test_several_workers_need_postgresql(tmp_path: Path, refused: Callable[..., str]) -> None:
    where = ["--data-dir", str(tmp_path)]
    refused([*where, "--workers", "2"], "several workers need PostgreSQL", "FLOATSCOPE_DATABASE_URL")
    refused([*where, "--advertise", "http://10.0.0.5:8322"], "several workers need PostgreSQL")
    refused([*where, "--workers", "0"], "workers (FLOATSCOPE_WORKERS)")
    for odd in ("10.0.0.5:8322", "https://10.0.0.5", "http://u:p@host", "http://host/path", "http://:1"):
        refused([*where, "--advertise", odd], "advertise (FLOATSCOPE_ADVERTISE)", "http://host:port")


def test_an_address_for_other_workers_that_is_not_of_this_machine(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATSCOPE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    where = ["--data-dir", str(tmp_path), "--advertise", "http://192.0.2.1:8322"]
    refused(where, "cannot listen for other workers at http://192.0.2.1:8322")


def test_the_name_of_the_machine_in_what_it_advertises() -> None:
    settings = load({"advertise": "http://{hostname}:8322"}, config=None)
    assert settings.advertise_to == f"http://{socket.gethostname()}:8322"


def test_a_data_directory_that_another_server_uses(tmp_path: Path, refused: Callable[..., str]) -> None:
    lock = DataLock(tmp_path)
    lock.take()
    try:
        said = refused(["--data-dir", str(tmp_path), "--port", str(free_port())], "another floatscope server")
        assert f"process {os.getpid()}" in said
        assert not (tmp_path / "floatscope.db").exists()
    finally:
        lock.release()


def test_sqlite_named_by_its_address_has_one_server_too(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shared" / "mine.db"
    monkeypatch.setenv("FLOATSCOPE_DATABASE_URL", f"sqlite:///{file}")
    where = ["--data-dir", str(tmp_path / "data"), "--port", str(free_port())]
    refused(where, f"there is no folder {file.parent}")
    file.parent.mkdir()
    refused([*where, "--workers", "2"], "several workers need PostgreSQL")
    lock = DataLock(file.parent)
    lock.take()
    try:
        refused(where, "another floatscope server", str(file.parent))
        assert db_main(["compact", "--data-dir", str(tmp_path / "data")]) == 2
        assert list(file.parent.glob("*.db*")) == []
        file.touch()
        refused(where, "another floatscope server")
    finally:
        lock.release()


@pytest.mark.parametrize("address", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "nonsense"])
def test_an_address_that_names_no_database(
    address: str, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATSCOPE_DATABASE_URL", address)
    refused(["--data-dir", str(tmp_path)], "FLOATSCOPE_DATABASE_URL", "sqlite:///path/to/floatscope.db")


def test_a_wrong_address_of_the_object_store_is_said_before_anything_is_made(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATSCOPE_TILES_URL", "http://x/y")
    said = refused(["--data-dir", str(tmp_path / "data")], "FLOATSCOPE_TILES_URL", "s3://bucket/prefix")
    assert "token" not in said
    assert not (tmp_path / "data").exists()


def test_settings_of_a_project_that_cannot_be_read(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[retention_projects.nightly]\nweeks = 1\n")
    refused(["--config", str(file)], "'retention_projects.nightly.weeks'; known are days, gib, keep")
    monkeypatch.setenv("FLOATSCOPE_RETENTION_PROJECTS", '{"nightly"')
    refused([], "FLOATSCOPE_* variable", "not JSON", "retention_projects")


@pytest.mark.timeout(60)
def test_a_token_from_the_environment_works_and_is_never_written(tmp_path: Path) -> None:
    with in_own_process(tmp_path / "data") as process:
        assert process.start().open_run("r").status == 201
        assert not (tmp_path / "data" / "token").exists()
        assert TOKEN not in process.log.read_text()


def test_a_port_in_use(tmp_path: Path, refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(["--port", port, "--data-dir", str(tmp_path)], f"cannot listen on 127.0.0.1:{port}", "--port")


def test_a_host_that_is_not_ours(tmp_path: Path, refused: Callable[..., str]) -> None:
    refused(
        ["--host", "no-such-host.invalid", "--data-dir", str(tmp_path)],
        "cannot listen on no-such-host.invalid",
    )


def test_a_data_directory_that_cannot_be_written(tmp_path: Path, refused: Callable[..., str]) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    folder = str(in_the_way / "data")
    refused(["--data-dir", folder, "--port", str(free_port())], folder, "--data-dir")


def test_a_database_that_is_none(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "floatscope.db").write_bytes(b"this is not a database" * 100)
    refused(["--data-dir", str(tmp_path), "--port", str(free_port())], "cannot be opened")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FLOATSCOPE_PORT", "many", ("port", "FLOATSCOPE_PORT")),
        ("FLOATSCOPE_URL", "example.org", ("url", "http://")),
        ("FLOATSCOPE_TOKEN", "t\u00e4", ("token", "ASCII")),
        ("FLOATSCOPE_DATABASE_URL", "mysql://x/y", ("FLOATSCOPE_DATABASE_URL", "sqlite or postgresql")),
        ("FLOATSCOPE_DATABASE_URL", "postgresql://u:hunter2@127.0.0.1:1/x", ("FLOATSCOPE_DATABASE_URL",)),
        ("FLOATSCOPE_DATABASE_URL", "hunter2", ("FLOATSCOPE_DATABASE_URL",)),
        ("FLOATSCOPE_SLACK_WEBHOOK_URL", "http://10.0.0.1/hunter2", ("FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS",)),
    ],
)
def test_wrong_settings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
    name: str,
    value: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv(name, value)
    port = [] if name == "FLOATSCOPE_PORT" else ["--port", str(free_port())]
    assert "hunter2" not in refused(["--data-dir", str(tmp_path), *port], *words)


def test_a_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "floatscope.toml"
    file.write_text('port = 9000\nhost = "0.0.0.0"\nallow_private_webhooks = true\n')
    found = load({}, config=file)
    assert (found.port, found.host, found.allow_private_webhooks) == (9000, "0.0.0.0", True)
    assert load({"port": 7}, config=file).port == 7
    file.write_text("prot = 9000\n")
    with pytest.raises(SettingsError, match=r"no setting 'prot'.*known are host, port"):
        load({}, config=file)
    file.write_text("port = \n")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load({}, config=file)
    with pytest.raises(SettingsError, match="does not exist"):
        load({}, config=tmp_path / "none.toml")


def test_addresses_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().public_url == "http://127.0.0.1:8321"
    assert Settings(host="0.0.0.0", port=1).public_url == "http://127.0.0.1:1"
    assert Settings(host="::1").public_url == "http://[::1]:8321"
    assert Settings(url="https://fs.example.org/").public_url == "https://fs.example.org"
    monkeypatch.setenv("FLOATSCOPE_TOKEN", "hunter2-hunter2")
    monkeypatch.setenv("FLOATSCOPE_DATABASE_URL", "postgres://u:hunter2@db/x")
    found = Settings()
    assert "hunter2" not in repr(found)
    assert found.database == "postgresql+psycopg://u:hunter2@db/x"
    monkeypatch.setenv("FLOATSCOPE_TOKEN", "")
    assert Settings().token is None


@pytest.mark.parametrize(("token", "told"), [("hunter2", True), (TOKEN, False)])
def test_a_token_that_can_be_guessed_is_spoken_of_but_not_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, token: str, told: bool
) -> None:
    _greet(Settings(token=SecretStr(token)), FirstToken(None, tmp_path / "token", from_environment=True))
    said = capsys.readouterr().out
    assert ("short enough to be guessed" in said) == told
    assert token not in said


def test_a_variable_that_is_nearly_a_setting_is_found() -> None:
    found = misspelt(
        ["FLOATSCOPE_RETENTION_DAYZ", "FLOATSCOPE_RETENTION_DAYS", "FLOATSCOPE_SPOOL_DIR", "PATH"]
    )
    assert found == [("FLOATSCOPE_RETENTION_DAYZ", "FLOATSCOPE_RETENTION_DAYS")]


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "examples:" in said
    assert "FLOATSCOPE_DATABASE_URL" in said
