"""Readers meet damaged inputs: whatever comes, they read what is valid or refuse with a message, in bounded
time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floatscope_diagnostics.readers.formats import readers
from tests.diagnostics.fuzz import fixtures, limited, mangled, noise, read

LOGS = fixtures()
NAMES = [r.name for r in readers()]


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_logs(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "input"
    path.write_bytes(mangled(rng, LOGS) if rng.random() < 0.9 else noise(rng))
    with limited():
        read(path)


@pytest.mark.parametrize("name", NAMES)
def test_each_reader_takes_what_is_not_its_format(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    path = tmp_path / "input"
    for _ in range(4):
        path.write_bytes(mangled(rng, LOGS) if rng.random() < 0.8 else noise(rng))
        with limited():
            read(path, name)


@given(st.binary(max_size=400))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "input"
    path.write_bytes(data)
    with limited():
        read(path)


@given(st.text(max_size=400))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_behind_a_log(tmp_path: Path, text: str) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"step 1: loss 2.0\nstep 2: loss 1.9\n" + text.encode("utf-8", "surrogatepass"))
    with limited():
        read(path)
