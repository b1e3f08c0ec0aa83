"""What the library is made of: splits, scenarios, and that every case aims where it says."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis.cases import Case, draw_scenarios, fill, fork_steps
from benchmarks.diagnosis.other_cases import CONTROLS
from benchmarks.diagnosis.outcome import FAMILY
from benchmarks.diagnosis.plan import CASES, FULL, SMALL, entries
from benchmarks.diagnosis.settings import RECIPES, SHAPES, Base, split_of
from floatscope_diagnostics.rule import FAMILY_OF
from floatscope_trainer.faults.injection import parse_injection
from floatscope_trainer.faults.kinds import FAULTS

TUNE = Base(shape="small", recipe="delayed-max-32", seed=11, steps=2000)
REPORT = Base(shape="small", recipe="delayed-max-32", seed=2004, steps=2000)
EVERYTHING = (*CASES, *CONTROLS)


@pytest.mark.parametrize(
    ("seed", "split"),
    [
        (10, "tune"),
        (1999, "tune"),
        (2000, "calibrate"),
        (2004, "report"),
        (2009, "report"),
        (2010, "calibrate"),
        (2016, "report"),
    ],
)
def test_the_seed_decides_the_split(seed: int, split: str) -> None:
    assert split_of(seed) == split


@pytest.mark.parametrize("seed", [0, 9])
def test_the_demos_seeds_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed: expected 10 or more"):
        split_of(seed)


def test_no_run_of_either_library_uses_a_seed_of_the_demo() -> None:
    for size in (FULL, SMALL):
        assert all(entry.base.split in ("tune", "calibrate", "report") for entry in entries(size))


def test_severities_that_are_held_back_never_reach_the_tuning_split() -> None:
    assert any(case.held_back for case in CASES)
    drawn = draw_scenarios(TUNE, CASES, depth=2, count=len(CASES))
    assert not any(scenario.case.held_back for scenario in drawn)
    shown = draw_scenarios(REPORT, CASES, depth=2, count=len(CASES))
    assert any(scenario.case.held_back for scenario in shown)


def test_splits_share_no_scenario_and_both_have_every_recipe() -> None:
    for size in (FULL, SMALL):
        by_split: dict[str, set[str]] = {"tune": set(), "calibrate": set(), "report": set()}
        for entry in entries(size):
            by_split[entry.base.split].add(entry.base.recipe)
        assert by_split["tune"] == by_split["calibrate"] == set(size.recipes)
        assert by_split["report"] == (set(size.recipes) if size is FULL else set())


def test_a_new_case_leaves_the_others_where_they_are() -> None:
    before = {s.case.name: s.id for s in draw_scenarios(REPORT, CASES, depth=2, count=99)}
    more = (*CASES, Case("another", "stall"))
    after = {s.case.name: s.id for s in draw_scenarios(REPORT, more, depth=2, count=99)}
    assert before.items() <= after.items()


def test_every_case_fits_some_recipe_and_ends_before_the_run_does() -> None:
    for case in EVERYTHING:
        assert any(case.suits(recipe) for recipe in RECIPES), case.name
        for size in (FULL, SMALL):
            base = Base(shape="small", recipe="bf16", seed=10, steps=size.steps)
            steps = fork_steps(base, case)
            assert all(0 < step <= base.steps - case.horizon for step in steps), case.name
            assert steps or size is SMALL, case.name


def test_names_of_cases_are_unique_and_fit_a_file_name() -> None:
    names = [case.name for case in EVERYTHING]
    assert len(set(names)) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.^-") for name in names)


def test_causes_are_those_of_the_verdict() -> None:
    assert {name: family for name, family in FAMILY.items() if name != "healthy"} == dict(FAMILY_OF)
    for case in EVERYTHING:
        assert {case.cause, *case.also} <= set(FAMILY), case.name


def test_injections_can_be_read_and_name_faults_of_the_trainer() -> None:
    known = {fault.name for fault in FAULTS}
    for case in EVERYTHING:
        for text in case.inject(250, "blocks.1.mlp.fc1"):
            injection = parse_injection(text)
            assert injection.fault in known
            assert injection.step >= 250


def test_a_control_injects_nothing_of_the_trainers() -> None:
    assert all(case.is_control and not case.inject(1, "blocks.0.mlp.fc1") for case in CONTROLS)
    assert not any(case.is_control for case in CASES)


def test_right_answers_are_filled_with_the_layer_its_block_and_its_reader() -> None:
    patterns = ("{layer}/input", "{block}.attn", "{next}")
    assert fill(patterns, layer="blocks.0.mlp.fc2", depth=2) == [
        "blocks.0.mlp.fc2/input",
        "blocks.0.attn",
        "blocks.1.attn.qkv",
    ]
    assert fill(("{next}",), layer="blocks.1.mlp.fc2", depth=2) == ["head"]


def test_a_seed_has_the_same_data_and_learning_rate_under_every_recipe() -> None:
    """Else the bf16 run would be no reference for the others."""
    configs = [Base("small", r, 12, 2000).config(vocab_size=90) for r in RECIPES]
    assert len({(c.seed, c.batch, c.optim, c.model, c.eval_every) for c in configs}) == 1


def test_shapes_are_of_the_sizes_named() -> None:
    assert (SHAPES["small"].layers, SHAPES["small"].width) == (2, 64)
