"""What a monitor leaves on a shared disk: no secret in it, and nothing of the spool that others can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import floatscope
from floatscope.client import address_of


@pytest.mark.parametrize(
    ("url", "noted"),
    [
        ("http://me:secret@127.0.0.1:9/fs/?key=secret#secret", "http://127.0.0.1:9/fs"),
        ("https://[::1]:8321", "https://[::1]:8321"),
        ("https://host.example/", "https://host.example"),
    ],
)
def test_an_address_is_noted_without_its_secrets(url: str, noted: str) -> None:
    assert address_of(url) == noted


def test_no_file_holds_the_token_or_a_password(tmp_path: Path) -> None:
    monitor = floatscope.watch(
        run="kept",
        run_id="kept",
        url="http://me:secret@127.0.0.1:9/?key=secret",
        token="secret-token",
        spool_dir=tmp_path,
        gpu=False,
        close_timeout_s=0.2,
    )
    for step in range(5):
        monitor.batch(torch.ones(2, 2))
        monitor.capture()
        monitor.step(step, loss=1.0)
    monitor.finish()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "rank0.recorder", "capture.json"} <= {path.name for path in files}
    assert any(path.suffix == ".seg" for path in files)
    assert [path.name for path in files if b"secret" in path.read_bytes()] == []
    (about,) = (json.loads(path.read_text()) for path in files if path.name == "run.json")
    assert about["url"] == "http://127.0.0.1:9"
    spooled = [path for path in files if path.parent.suffix == ".spool"]
    assert [path.name for path in spooled if path.stat().st_mode & 0o077] == []
