"""What every rule promises, and what every case says."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics import rules as rule_package
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.rule import FAMILY_OF, Rule
from floatscope_diagnostics.rules import load_rules
from tests.diagnostics.case import Case, alarms, diagnose
from tests.diagnostics.synthetic import Run

HEADINGS = (
    "What it checks", "Why it matters", "How it decides", "What excludes it", "Known false positives",
    "What to do", "Source",
)  # fmt: skip
FAMILY_CODE = {
    "input_nan": "FS1", "scale_calibration_blowup": "FS2", "slow_truncation_drift": "FS3",
    "activation": "FS4",
    "data": "FS4", "optimization": "FS4", "hardware": "FS5", "kernel": "FS6",
    "undetermined": "FS9",
}  # fmt: skip


def rule_modules() -> list[ModuleType]:
    names = sorted(i.name for i in pkgutil.iter_modules(rule_package.__path__))
    return [importlib.import_module(f"floatscope_diagnostics.rules.{n}") for n in names]


def case_modules() -> dict[str, ModuleType]:
    folder = Path(__file__).parent / "cases"
    return {
        p.stem: importlib.import_module(f"tests.diagnostics.cases.{p.stem}")
        for p in sorted(folder.glob("*.py"))
    }


def all_cases() -> list[tuple[str, Case]]:
    return [(f"{name}: {case.name}", case) for name, m in case_modules().items() for case in m.CASES]


@pytest.mark.parametrize("case", [c for _, c in all_cases()], ids=[n for n, _ in all_cases()])
def test_case(case: Case) -> None:
    verdict = diagnose(case)
    for finding in verdict["findings"]:
        told = re.search(r"[Ss]ince step ([0-9,]+)", finding["summary"])
        assert told is None or int(told[1].replace(",", "")) == finding["onset_step"], finding["summary"]
    found = alarms(verdict)
    got = [(f["cause"], f["kind"], f["onset_step"], f["tensor"]) for f in found]
    assert [f["cause"] for f in found] == [w.cause for w in case.want], got
    for finding, want in zip(found, case.want, strict=True):
        assert want.onset[0] <= finding["onset_step"] <= want.onset[1], got
        assert finding["detected_step"] >= finding["onset_step"]
        assert want.kind in (None, finding["kind"]), got
        assert want.tensor in (None, finding["tensor"]), got
        assert finding["cause"] not in [a["cause"] for a in finding["alternatives"]]
        assert 0.0 < finding["confidence"] <= 1.0
        assert finding["remedy"]["text"]
        assert finding["decisive_test"]


@pytest.mark.parametrize("module", rule_modules(), ids=lambda m: m.__name__.rpartition(".")[2])
def test_a_rule_file_is_documented_named_and_ends_in_its_rule(module: ModuleType) -> None:
    name = module.__name__.rpartition(".")[2]
    rule: Rule = module.RULE
    assert rule.name == name
    assert re.fullmatch(r"FS[1-9]\d\d", rule.code)
    doc = module.__doc__ or ""
    assert doc.startswith(f"{rule.code} ")
    positions = [doc.find(f"\n{h}\n") for h in HEADINGS]
    assert all(p >= 0 for p in positions), [h for h, p in zip(HEADINGS, positions, strict=True) if p < 0]
    assert positions == sorted(positions)
    assert rule.needs
    for cause in rule.causes:
        assert rule.code.startswith(FAMILY_CODE[FAMILY_OF[cause]])


@pytest.mark.parametrize("module", rule_modules(), ids=lambda m: m.__name__.rpartition(".")[2])
def test_a_rule_has_a_case_that_fires_and_one_that_is_silent(module: ModuleType) -> None:
    name = module.__name__.rpartition(".")[2]
    cases = case_modules().get(name)
    assert cases is not None, f"write tests/diagnostics/cases/{name}.py"
    causes = set(module.RULE.causes)
    assert any(causes & {w.cause for w in c.want} for c in cases.CASES)
    assert any(not causes & {w.cause for w in c.want} for c in cases.CASES)


def test_every_cause_has_a_rule() -> None:
    assert {c for r in load_rules() for c in r.causes} == set(FAMILY_OF)


def test_two_loads_give_equal_rules() -> None:
    assert [r.code for r in load_rules()] == [r.code for r in load_rules()]


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_no_finding_on_a_run_that_has_hardly_begun(steps: int) -> None:
    run = Run(steps=steps)
    engine = Engine(RunInfo.from_json(run.info()))
    if steps:
        engine.feed(batch_from_rows(run.rows()))
    assert not engine.verdict().findings


def test_what_is_not_logged_is_named_and_not_taken_for_healthy() -> None:
    engine = Engine(RunInfo())
    engine.feed(batch_from_rows([{"step": s, "loss": 2.0 + 0.01 * (s % 7)} for s in range(40)]))
    verdict = engine.verdict().to_json()
    assert verdict["findings"] == []
    missing = {n["rule"]: n for n in verdict["not_checked"]}
    assert missing["FS203"]["needs"] == [
        "*/input|weight|grad_output scale",
        "*/input|weight|grad_output amax",
    ]
    assert missing["FS302"]["why"]
    assert missing["FS501"]["needs"]
