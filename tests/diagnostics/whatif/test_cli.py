"""``floatscope what-if`` on logs and on files of values, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.whatif.cli import main
from floatscope_diagnostics.whatif.measure import measure
from floatscope_diagnostics.whatif.selecting import Selection
from floatscope_diagnostics.whatif.server_reading import _read
from floatscope_diagnostics.whatif.spread import BLOCK_NAMES, spread_of
from floatscope_diagnostics.whatif.values_files import _Opened, names_in, read_values

NAMES = ("blocks.0.fc1/input", "blocks.0.fc2/input", "blocks.1.fc1/weight")
STEPS = (0, 50, 100)
SIZES = (1.0, 8.0, 64.0)


def stats_of(scale: float) -> dict[str, Any]:
    """A tensor's statistics and histogram as the agent logs them."""
    values = (scale * np.random.default_rng(3).standard_normal((64, 128))).astype(np.float32)
    spread = spread_of(values)
    out: dict[str, Any] = {"amax": spread.amax, "scale": 448.0 / (spread.amax or 1.0), "zero_pct": 0.0}
    out |= {"underflow_pct": 0.25, "hist_log2": spread.counts.tolist()}
    for size, block in spread.blocks.items():
        out[f"{BLOCK_NAMES[size]}_amax_sd_log2"] = block.sd
        out[f"{BLOCK_NAMES[size]}_amax_mean_log2"] = block.mean
    return out


def log_at(path: Path, *, histograms: bool = True) -> Path:
    """Three sampled steps of three tensors, with sizes that grow; steps between have none."""
    table = {name: {"format": "e4m3", "row_length": 128, "call_order": k} for k, name in enumerate(NAMES)}
    lines: list[dict[str, Any]] = [{"run": {"name": "demo", "tensors": table}}]
    for step, scale in zip(STEPS, SIZES, strict=True):
        tensors = {name: stats_of(scale) for name in NAMES}
        if not histograms:
            for stats in tensors.values():
                del stats["hist_log2"]
        lines += [{"step": step, "loss": 1.0, "tensors": tensors}, {"step": step + 1, "loss": 1.0}]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_log_is_answered_for_at_the_step_that_was_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest, the last before a step, and the first one where there is none before."""
    log = str(log_at(tmp_path / "run.jsonl"))
    for asked, step, scale in ((None, 100, 64.0), (99, 50, 8.0), (0, 0, 1.0)):
        words = [] if asked is None else ["--step", str(asked)]
        document = told(capsys, log, "--tensor", NAMES[0], "--format", "e4m3_tensor_as_used", *words)
        one = document["tensors"][0]
        assert (document["schema"], document["run"], document["from"]) == (
            "floatscope.what_if/1",
            "demo",
            "histogram",
        )
        assert document["step"] == one["step"] == step
        assert one["amax"] == pytest.approx(stats_of(scale)["amax"], rel=1e-5)
        assert one["in_use"]["underflow_pct"] == 0.25
        assert one["variant_in_use"] == one["variants"][0]["key"]
        assert (asked == 99) == any("nearest to step 99 are of step 50" in note for note in document["notes"])


def test_layers_roles_and_the_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(log_at(tmp_path / "run.jsonl"))
    for words, names in (
        (("--layer", "blocks.0.*"), NAMES[:2]),
        (("--role", "weight"), NAMES[2:]),
        (("--layer", "blocks.?.fc1", "--tensor", "*/in*"), NAMES[:1]),
        ((), NAMES),
    ):
        document = told(capsys, log, "--format", "nvfp4", *words)
        assert tuple(one["tensor"] for one in document["tensors"]) == names
    assert main([log]) == 0
    text = capsys.readouterr().out
    assert "MXFP8 E4M3, scales rounded up" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tensor", "blocks.0.fc3/input"), "near names: blocks.0.fc"),
        (("--layer", "block.1"), "near layers: blocks"),
        (("--layer", "blocks.[01].fc1"), "near layers: blocks"),
        (("--layer", "*a" * 17), "layer: expected a name, or a pattern of at most"),
        (("--role", "grad_output"), "it has input, weight"),
        (("--format", "e9m9"), "mxfp8_e4m3_up"),
        (("--step", "-3"), "expected a step"),
        (("--underflow-limit", "nan"), "expected per cent"),
        (("--underflow-limit", "x"), "expected per cent"),
        (("--sqnr-limit", "many"), "expected dB"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main([str(log_at(tmp_path / "run.jsonl")), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_histograms_names_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(log_at(tmp_path / "run.jsonl", histograms=False))]) == 2
    error = capsys.readouterr().err
    assert "no histograms" in error
    assert "stats_every" in error
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert "--server URL" in capsys.readouterr().err


def test_stored_values_are_cast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """npy and safetensors in each dtype give the figures of the values that they hold."""
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    np.save(tmp_path / "x.npy", x.numpy())
    tensors = {"h.x": x, "h.half": x.half(), "h.b": x.bfloat16(), "d": x.double(), "ids": torch.arange(4)}
    save_file(tensors, tmp_path / "all.safetensors")
    wide = {"x": x, "h.x": x, "h.half": x.half(), "h.b": x.bfloat16(), "d": x}
    for file, glob, count in (("x.npy", "*", 1), ("all.safetensors", "*", 4), ("all.safetensors", "h.*", 3)):
        document = told(capsys, str(tmp_path / file), "--tensor", glob, "--format", "mxfp4_up")
        assert document["from"] == "sample"
        assert len(document["tensors"]) == count
        for one in document["tensors"]:
            expected = measure(wide[one["tensor"]].float().numpy())
            found = next(p for p in expected if p.variant.key == "mxfp4_up")
            assert one["variants"][0]["measured"]
            assert one["variants"][0]["underflow_pct"] == pytest.approx(found.underflow_pct, rel=1e-5)
            assert one["variants"][0]["sqnr_db"] == pytest.approx(found.sqnr_db, rel=1e-5)


def test_a_large_tensor_is_sampled_and_keeps_the_scale_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floatscope_diagnostics.whatif.values_files.MOST_ELEMENTS", 2**13)
    x = np.random.default_rng(0).standard_normal((1024, 64)).astype(np.float32)
    x[77, 3] = 1000.0
    np.save(tmp_path / "x.npy", x)
    one = next(read_values(tmp_path / "x.npy", ("x",)))
    assert one.values.size <= 2**13
    assert one.every == 8
    assert one.whole_amax == 1000.0


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("a.npy", b"\x93NUMPY\x01\x00", "is no .npy file"),
        ("a.safetensors", b"\xff" * 64, "header's length"),
        ("a.safetensors", (2**20).to_bytes(8, "little") + b"{}", "header's length"),
        ("a.safetensors", (2).to_bytes(8, "little") + b"[]", "is no .safetensors file"),
    ],
)
def test_damaged_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, raw: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(raw)
    assert main([str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err


def test_a_pickled_array_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    assert main([str(tmp_path / "x.npy")]) == 2
    assert "no tensor of real numbers" in capsys.readouterr().err


entry = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I64", "X", 3]),
        "shape": st.one_of(st.lists(st.integers(-1, 2**50), max_size=3), st.text(max_size=3), st.none()),
        "data_offsets": st.one_of(st.lists(st.integers(-1, 2**50), max_size=3), st.none()),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.one_of(entry, st.integers()), max_size=3))
def test_no_header_reads_beyond_the_file(tmp_path_factory: pytest.TempPathFactory, header: object) -> None:
    """Whatever a header claims, it is refused or its tensors lie inside."""
    path = tmp_path_factory.mktemp("h") / "x.safetensors"
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(64))
    try:
        names = names_in(path)
    except UnreadableLog:
        return
    opened = _Opened(path)
    assert all(opened.array(name).nbytes <= 64 for name in names)


class FakeApi:
    """A server with histograms at steps 50 (all) and 100 (one suspect)."""

    def tensors(self, run_id: str) -> list[dict[str, Any]]:
        return [{"name": name, "format": "e4m3", "row_length": 128} for name in NAMES]

    def frame(self, run_id: str, *, step: int | None = None, histograms: bool = False) -> dict[str, Any]:
        at = next((s for s in (100, 50) if step is None or s <= step), None)
        names = NAMES if at == 50 else NAMES[:1]
        stats = stats_of(8.0)
        return {
            "step": at,
            "tensors": list(NAMES),
            "stats": {"amax": {"step": at, "values": [stats["amax"], "NaN", None]}},
            "hist_log2": {"step": at, "counts": {name: stats["hist_log2"] for name in names} if at else {}},
        }

    def histogram(self, run_id: str, tensor: str, *, first: int) -> dict[str, Any]:
        return {"step": [s for s in (50, 100) if s >= first]}


def test_a_run_on_a_server_is_asked_step_by_step() -> None:
    """Suspects have newer histograms than the rest; before the first sample the first one is taken."""
    api: Any = FakeApi()
    found = {one.name: one for one in _read(api, "r", Selection()).tensors}
    assert [found[name].step for name in NAMES] == [100, 50, 50]
    assert found[NAMES[0]].stats["amax"] == stats_of(8.0)["amax"]
    assert "amax" not in found[NAMES[1]].stats
    assert {one.step for one in _read(api, "r", Selection(step=7)).tensors} == {50}
