"""Extra state of delayed scaling in checkpoints of all kinds, found without unpickling."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from floatscope.preflight.check import Check
from floatscope.preflight.checkpoint_checks import ALLOW, checkpoint_checks
from floatscope.preflight.checkpoint_reading import read_checkpoint
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.table_reading import read_table

DELAYED = "fp8_delayed_scaling"
Names = dict[str, Any]
STATE: Names = {"layer.weight": np.zeros(2, np.float32), "layer._extra_state": np.zeros(3, np.uint8)}
PLAIN: Names = {"layer.weight": np.zeros(2, np.float32)}


def checks(path: Path | str, recipe: str = DELAYED, te: str = "", **environment: str) -> dict[str, Check]:
    facts = Facts(versions={"transformer-engine": te} if te else {}, environment=environment)
    return {one.name: one for one in checkpoint_checks(facts, Wanted(recipe=recipe, resume=str(path)))}


def as_torch(path: Path, names: Names) -> Path:
    torch.save(OrderedDict((name, torch.from_numpy(value)) for name, value in names.items()), path)
    return path


class Bomb:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


def test_no_checkpoint_no_check() -> None:
    assert checkpoint_checks(Facts(), Wanted(recipe=DELAYED)) == []


def test_safetensors_a_torch_file_and_a_distributed_one(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    assert read_checkpoint(tmp_path).keys == 1
    assert read_checkpoint(tmp_path / "model.safetensors").kind == "safetensors"
    found = read_checkpoint(as_torch(tmp_path / "model.pt", STATE))
    assert (found.kind, found.keys) == ("torch", 1)
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps({"state_dict_metadata": dict.fromkeys(STATE)}))
    found = read_checkpoint(folder)
    assert (found.kind, found.keys) == ("dcp", 1)


def test_the_last_of_megatrons_checkpoints_is_looked_at(tmp_path: Path) -> None:
    note = tmp_path / "latest_checkpointed_iteration.txt"
    note.write_text("500\n")
    assert "iter_0000500" in read_checkpoint(tmp_path).error
    inner = tmp_path / "iter_0000500" / "mp_rank_00"
    inner.mkdir(parents=True)
    as_torch(inner / "model_optim_rng.pt", STATE)
    assert read_checkpoint(tmp_path).keys == 1
    for text in ("five", "-1", "٣"):
        note.write_text(text)
        assert read_checkpoint(tmp_path).error


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a._extra_state": 1, "bomb": Bomb()}))
    assert read_checkpoint(tmp_path).keys == 1
    torch.save({"a._extra_state": torch.zeros(1), "bomb": Bomb()}, tmp_path / "bomb.pt")
    assert read_checkpoint(tmp_path / "bomb.pt").keys == 1


def test_scales_that_are_missing_restart_at_one(tmp_path: Path) -> None:
    save_file(PLAIN, tmp_path / "model.safetensors")
    found = checks(tmp_path)["checkpoint.extra_state"]
    assert found.status == "warn"
    assert "scale 1" in found.why
    assert checks(tmp_path, recipe="")["checkpoint.extra_state"].status == "unknown"
    assert checks(tmp_path, recipe="mxfp8")["checkpoint.extra_state"].status == "pass"


@pytest.mark.parametrize(
    ("te", "allowed", "status"),
    [
        ("2.17.0", "", "pass"),
        ("2.18.0", "", "fail"),
        ("2.20.2", "1", "pass"),
        ("2.20.2", "0", "fail"),
        ("", "", "warn"),
    ],
)
def test_loading_raises_since_2_18_unless_it_is_allowed(
    tmp_path: Path, te: str, allowed: str, status: str
) -> None:
    path = as_torch(tmp_path / "model.pt", STATE)
    environment = {ALLOW: allowed} if allowed else {}
    found = checks(path, DELAYED, te, **environment)["checkpoint.extra_state"]
    assert found.status == status
    assert (ALLOW in found.do) == (status != "pass")


def test_loaders_that_pass_extra_state_by_are_said(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    assert checks(tmp_path, DELAYED, "2.17.0")["checkpoint.loader"].status == "warn"
    path = as_torch(tmp_path / "model.pt", STATE)
    assert "checkpoint.loader" not in checks(path, DELAYED, "2.17.0")


def test_places_that_are_no_checkpoint(tmp_path: Path) -> None:
    assert checks(tmp_path / "none")["checkpoint.extra_state"].status == "fail"
    assert checks(tmp_path)["checkpoint.extra_state"].status == "unknown"
    assert checks("a\0b")["checkpoint.extra_state"].status in ("fail", "unknown")
    huge = tmp_path / "huge.safetensors"
    huge.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    assert "header" in checks(huge)["checkpoint.extra_state"].read
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"a._extra_state": 1}))
    assert "no file of a known kind" in checks(tmp_path / "old.pt")["checkpoint.extra_state"].read


def test_a_table_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / ".metadata").open("wb") as file:
        file.truncate(2**30)
    assert "larger than" in read_checkpoint(tmp_path).error


@settings(max_examples=80, deadline=None)
@given(raw=st.binary(max_size=300), name=st.sampled_from(["a.safetensors", "a.pt", ".metadata"]))
def test_any_bytes_give_facts(tmp_path_factory: pytest.TempPathFactory, raw: bytes, name: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    for content in (raw, struct.pack("<Q", len(raw)) + raw, pickle.dumps("_extra_state")[:-1] + raw):
        (folder / name).write_bytes(content)
        found = read_checkpoint(folder)
        assert found.error or found.kind


def test_cut_off_files_are_said(tmp_path: Path) -> None:
    whole = io.BytesIO()
    torch.save({"a._extra_state": torch.zeros(100)}, whole)
    for share in (0.1, 0.5, 0.9):
        path = tmp_path / "cut.pt"
        path.write_bytes(whole.getvalue()[: int(len(whole.getvalue()) * share)])
        assert checks(path)["checkpoint.extra_state"].status == "unknown"


def test_every_text_has_a_source() -> None:
    assert all(one["source"] and one["why"] for one in read_table("checkpoints")["texts"].values())
