"""The command: exit codes, one JSON document, refusals that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from floatscope.preflight import cli
from floatscope.preflight.check import Check
from floatscope.preflight.document import Preflight
from floatscope.preflight.recipe_names import ALIASES, recipe_of
from floatscope.protocol.names import RECIPES
from floatscope.protocol.preflight_field import preflight_field
from tests.agent.preflight.made import check, parts, preflight


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """The checks of a machine with an H100; a test adds its own."""
    checks: list[Check] = [check("a", "pass")]
    monkeypatch.setattr(cli, "all_parts", lambda *, smoke, compiled: parts(*checks))
    return checks


@pytest.mark.parametrize(("status", "code"), [("pass", 0), ("warn", 0), ("fail", 1)])
def test_the_exit_code_is_the_decision(
    machine: list[Check], status: Any, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.append(check("b", status))
    assert cli.main(["--recipe", "delayed"]) == code
    assert f"Exit code {code}." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("decision", "codes"),
    [("pass", (0, 0, 0)), ("warn", (0, 0, 1)), ("unknown", (0, 2, 2)), ("fail", (1, 1, 1))],
)
def test_fail_on_chooses_what_ends_with_0(
    machine: list[Check], decision: str, codes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Preflight, "decision", decision)
    assert tuple(cli.main(["--fail-on", level]) for level in cli.FAIL_ON) == codes
    assert cli.main([]) == codes[cli.FAIL_ON.index("unknown")]
    assert cli.main(["--fail-on", "nothing"]) == 2


def test_json_is_one_document_and_nothing_else(
    machine: list[Check], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--recipe", "mxfp8", "--library", "te", "--model", "llama-3-8b", "--micro-batch", "2"]
    assert cli.main([*words, "--sequence", "4096", "--tp", "8", "--sequence-parallel", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = preflight_field(json.loads(said.out), field="document")
    wanted = found["wanted"]
    assert (wanted["recipe"], wanted["library"], wanted["micro_batch"]) == ("mxfp8", "transformer_engine", 2)
    assert wanted["parallelism"] | {"tensor": 8, "sequence": True} == wanted["parallelism"]
    assert abs(wanted["model"]["parameters"] / 8.03e9 - 1) < 0.01


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipe", "fp7"], "there is no recipe 'fp7'; known are delayed"),
        (["--library", "jax"], "expected one of te, ao"),
        (["--tp", "0"], "expected a whole number from 1"),
        (["--sequence", "9" * 30], "expected a whole number from 1"),
        (["--model", "/none/config.json"], "/none/config.json"),
        (["--against", "/none.json"], "/none.json: expected a file written by"),
        (["--no-such"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_used_is_said_and_ends_with_2(
    machine: list[Check], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert "Traceback" not in told.err


def test_it_is_held_against_another_ranks(
    machine: list[Check], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = preflight([check("a", "pass")]).to_json()
    other["versions"]["torch"] = "2.12.0"
    path = tmp_path / "rank1.json"
    path.write_text(json.dumps(other))
    assert cli.main(["--recipe", "delayed", "--against", str(path)]) == 1
    text = capsys.readouterr().out
    assert "mixed versions (here / rank1.json): torch 2.13.0 / 2.12.0" in text


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "exit codes: 0" in text
    assert "floatscope preflight --json >" in text


def test_names_of_recipes() -> None:
    assert {recipe_of(name) for name in ALIASES} <= set(RECIPES)
    assert recipe_of("Current-Scaling") == "fp8_current_scaling"
    assert all(recipe_of(name) == name for name in RECIPES)


def test_this_machine_is_checked_whatever_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(
        ["--recipe", "delayed", "--model", "llama-3-8b", "--sequence", "8192", "--no-smoke", "--json"]
    )
    found = preflight_field(json.loads(capsys.readouterr().out), field="document")
    assert code == {"pass": 0, "warn": 0, "fail": 1}.get(found["decision"], 2)
    assert not [one for one in found["checks"] if one["area"] == "preflight"]
    assert found["gpus"] or found["decision"] in ("fail", "unknown")
    assert sum(found["counts"].values()) == len(found["checks"]) > 15
    assert abs(sum(row["flops_share_pct"] for row in found["layers"]) - 100) < 0.1
