"""What is handed to the programs that make a backup of PostgreSQL."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from floatscope_server.dbtool.backup import back_up


@pytest.mark.parametrize("url", ["me:s3cret@h/d", "me@h/d?password=s3cret", "me:old@h/d?password=s3cret"])
def test_a_password_is_never_an_argument_of_pg_dump(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine sees the arguments of its processes."""
    seen: list[tuple[list[str], str]] = []

    def run(command: list[str], *, env: dict[str, str], **_given: Any) -> subprocess.CompletedProcess[str]:
        seen.append((command, env["PGPASSWORD"]))
        for word in command:
            if word.startswith("--file="):
                Path(word.removeprefix("--file=")).touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    back_up(f"postgresql+psycopg://{url}&sslmode=require".replace("d&", "d?"), tmp_path / "dump", schema="x")
    assert len(seen) == 2
    for command, password in seen:
        assert password == "s3cret"
        assert not any("s3cret" in word or "password=" in word for word in command)
    assert seen[0][0][-1] == "postgresql://me@h/d?sslmode=require"
