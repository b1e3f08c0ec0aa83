"""`floatscope facts`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from floatscope_trainer.facts import cli
from floatscope_trainer.facts.fact import Fact
from floatscope_trainer.facts.measured import cost_rule
from floatscope_trainer.facts.table import MODULES, fact_of

WIDTH = 100


def test_without_a_name_the_claims_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(fact_of(module).name in out for module in MODULES)
    assert max(map(len, out.splitlines())) <= WIDTH
    assert cli.main(["--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed["facts"]] == [fact_of(module).name for module in MODULES]


def test_one_claim_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["Cost_Rule"]) == 0
    out = capsys.readouterr().out
    assert "23.08 %" in out
    assert "Verdict   false" in out
    assert max(map(len, out.splitlines())) <= WIDTH


def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["overflow-shows", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == "floatscope.fact/1"
    assert made["agrees"] is True
    assert made["contradictions"] == []
    assert {figure["name"]: figure["value"] for figure in made["figures"]}["inf in E5M2"] == "Infinity"


def test_a_contradiction_is_said_and_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fact: Fact = cost_rule.FACT
    monkeypatch.setattr(cost_rule, "FACT", replace(fact, says="true"))
    assert cli.main(["cost-rule"]) == 1
    assert "This machine contradicts the page:" in capsys.readouterr().out
    assert cli.main(["cost-rule", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["agrees"] is False


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["magrin"], "did you mean margin?"),
        (["\x1b[2J"], "there is no claim '\\x1b[2J'"),
        (["margin", "--all"], "not both"),
    ],
)
def test_wrong_usage_is_exit_code_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
