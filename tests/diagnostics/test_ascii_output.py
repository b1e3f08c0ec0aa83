"""Names outside ASCII on an output that has ASCII only, as in containers with LANG=C and an old setting."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from floatscope.cli import main
from tests.diagnostics.advisor import made_runs
from tests.diagnostics.compare.logs import pair_of, write
from tests.diagnostics.whatif.test_cli import log_at

NAME, ESCAPED = "modèle-模型", "mod\\xe8le-\\u6a21\\u578b"
MODEL = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000,
}  # fmt: skip


def printed(monkeypatch: pytest.MonkeyPatch, *words: str) -> bytes:
    """What the command writes to a standard output of ASCII."""
    kept = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(kept, encoding="ascii", write_through=True))
        assert main(words) in (0, 1)
        return kept.getvalue()


def words_of(command: str, folder: Path) -> list[str]:
    """The command on a file, or on tensors, of that name."""
    if command == "plan":
        model = folder / f"{NAME}.json"
        model.write_text(json.dumps(MODEL))
        return ["plan", "--model", str(model), "--gpu", "H100"]
    if command == "what-if":
        return ["what-if", _named(log_at(folder / "log.jsonl"))]
    if command == "advise":
        vanish = {"blocks.1.mlp.fc2/grad_output": {"underflow_pct": 60.0, "sqnr_db": 2.0}}
        rows = made_runs.rows(vanish, loss=2.5)
        return ["advise", _named(made_runs.write_log(folder / "log.jsonl", rows, made_runs.run_info()))]
    run, base = pair_of(np.zeros(60))
    logs = [write(folder / f"{NAME}{i}.jsonl", rows) for i, rows in enumerate((run, base))]
    return ["compare", *logs] if command == "compare" else ["diagnose", logs[0]]


def _named(log: Path) -> str:
    log.write_text(log.read_text().replace("blocks.", f"{NAME}."))
    return str(log)


@pytest.mark.parametrize("command", ["plan", "compare", "what-if", "advise", "diagnose"])
def test_text_is_escaped_and_json_holds_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    words = words_of(command, tmp_path)
    assert ESCAPED in printed(monkeypatch, *words).decode("ascii")
    document = json.loads(printed(monkeypatch, *words, "--json").decode("ascii"))
    assert NAME in json.dumps(document, ensure_ascii=False)


def test_a_page_on_standard_output_is_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = printed(monkeypatch, *words_of("compare", tmp_path), "--html", "-").decode("utf-8")
    assert NAME in page
    assert "\\u6a21" not in page
