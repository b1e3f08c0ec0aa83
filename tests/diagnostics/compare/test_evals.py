"""Evaluations side by side: files of all kinds, and what can be decided from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_diagnostics.compare.eval_files import Task, UnreadableEvals, read_evals
from floatscope_diagnostics.compare.evals import compare_evals, evals_gate, mcnemar

DATE = "2026-11-30T10-11-12.123456"
RESULTS = {
    "results": {
        "mmlu": {"alias": "mmlu", "acc,none": 0.62, "acc_stderr,none": 0.004},
        "gsm8k": {"exact_match,strict-match": 0.3, "exact_match,flexible-extract": 0.35,
                  "exact_match_stderr,strict-match": "N/A"},
        "wikitext": {"word_perplexity,none": 9.1},
        "all": {"acc,none": 0.5},
    },
    "group_subtasks": {"all": ["mmlu", "gsm8k"]},
    "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}},
}  # fmt: skip


def answers(n: int, p: float, seed: int) -> list[int]:
    return [int(v) for v in np.random.default_rng(seed).random(n) < p]


def write(path: Path, value: object) -> str:
    path.write_text(json.dumps(value))
    return str(path)


def plain_pair(tmp_path: Path, run: list[int], base: list[int]) -> tuple[dict[str, Task], dict[str, Task]]:
    return (
        read_evals(write(tmp_path / "run.json", {"task": {"correct": run}})),
        read_evals(write(tmp_path / "base.json", {"task": {"correct": base}})),
    )


def test_results_of_the_harness(tmp_path: Path) -> None:
    tasks = read_evals(write(tmp_path / "r.json", RESULTS))
    assert set(tasks) == {"mmlu", "gsm8k"}  # a group is no task, a perplexity no share of questions
    assert tasks["gsm8k"].score == 0.3
    assert tasks["gsm8k"].n == 1319
    assert tasks["mmlu"].n == pytest.approx(0.62 * 0.38 / 0.004**2, rel=0.01)  # from the standard error


def test_samples_beside_the_results_are_read_with_them(tmp_path: Path) -> None:
    write(tmp_path / f"results_{DATE}.json", RESULTS)
    lines = [{"doc_id": k, "filter": f, "acc": float(k % 2)} for k in range(10) for f in ("none", "other")]
    (tmp_path / f"samples_mmlu_{DATE}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (tmp_path / "samples_gsm8k_2020-01-01T00-00-00.0.jsonl").write_text('{"doc_id": 1, "acc": 1}\n')
    tasks = read_evals(str(tmp_path / f"results_{DATE}.json"))
    assert tasks["mmlu"].correct is not None
    assert len(tasks["mmlu"].correct) == 10
    assert tasks["gsm8k"].correct is None
    assert read_evals(str(tmp_path))["gsm8k"].n == 1  # a folder takes all there are
    assert read_evals(str(tmp_path / f"samples_mmlu_{DATE}.jsonl")).keys() == {"mmlu"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "expected an object"),
        ("{}", "no task"),
        ('{"a": 1}', "expected"),
        ('{"a": {"correct": []}}', "expected 1 to"),
        ('{"a": {"correct": [2]}}', "from 0 to 1"),
        ('{"a": {"correct": [NaN]}}', "from 0 to 1"),
        ('{"a": {"correct": [1, 0], "ids": [1]}}', "expected as many"),
        ('{"a": {"correct": [1, 0], "ids": [1, 1]}}', "stands twice"),
        ('{"a": {"score": 0.5, "n": -1}}', "from 1"),
        ('{"results": {"a": {"acc,none": 7}}}', "from 0 to 1"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_what_cannot_be_read_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UnreadableEvals, match=message) as error:
        read_evals(str(path))
    assert "x.json" in str(error.value)


def test_samples_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "samples_a_2026-01-01T00-00-00.jsonl"
    for content, message in (
        ('{"doc_id": 1, "acc": 1}\n{"doc_id": 1, "acc": 0}\n', "line 2: doc_id 1 stands twice"),
        ('{"doc_id": 1, "acc": 1}\nnothing\n', "line 2: is no JSON"),
        ('{"acc": 1}\n', "line 1: expected an object with doc_id"),
        ('{"doc_id": 1, "bleu": 1}\n', "holds none of"),
        ("", "holds no question"),
    ):
        path.write_text(content)
        with pytest.raises(UnreadableEvals, match=message):
            read_evals(str(path))
    with pytest.raises(UnreadableEvals, match="no such file"):
        read_evals(str(tmp_path / "nowhere"))


def test_numbers_that_no_float_holds_are_refused_or_unknown(tmp_path: Path) -> None:
    path, huge = tmp_path / "x.json", 10**400
    for content, message in (
        ({"t": {"score": huge}}, r"t\.score: expected a number from 0 to 1"),
        ({"t": {"score": 0.5, "n": huge}}, r"t\.n: expected questions"),
        ({"results": {"t": {"acc,none": huge}}}, "no task"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(UnreadableEvals, match=message):
            read_evals(str(path))
    odd = {"results": {"t": {"acc,none": 0.5, "acc_stderr,none": 1e-200}}, "n-samples": {"t": huge}}
    path.write_text(json.dumps(odd))
    assert read_evals(str(path))["t"].n is None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda x: st.lists(x, max_size=4)
    | st.dictionaries(
        st.sampled_from(["results", "samples", "correct", "score", "n", "ids", "acc,none", "n-samples", "a"]),
        x, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(value=JSON)
@settings(max_examples=120, deadline=None)
def test_any_json_is_read_or_refused(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value))
    try:
        tasks = read_evals(str(path))
    except UnreadableEvals:
        return
    assert all(0.0 <= t.score <= 1.0 for t in tasks.values())


def test_the_same_answers_pass_and_many_lost_ones_fail(tmp_path: Path) -> None:
    base = answers(3000, 0.6, 1)
    found = compare_evals(*plain_pair(tmp_path, base, base), 1.0)
    assert found.rows[0].state == "pass"
    assert evals_gate(found, 1.0).state == "pass"
    worse = [0 if k % 20 == 0 else v for k, v in enumerate(base)]
    found = compare_evals(*plain_pair(tmp_path, worse, base), 1.0)
    assert found.rows[0].state == "fail"
    assert evals_gate(found, 1.0).state == "fail"
    assert found.rows[0].difference < -2.0
    assert "McNemar p" in found.rows[0].how


def test_pairs_decide_where_two_accuracies_do_not(tmp_path: Path) -> None:
    base = answers(4000, 0.6, 1)
    run = [1 - v if k % 100 == 0 else v for k, v in enumerate(base)]
    assert compare_evals(*plain_pair(tmp_path, run, base), 1.0).rows[0].state == "pass"
    alone = {"t": Task("score", 0.6, 4000)}
    row = compare_evals(alone, {"t": Task("score", 0.6, 4000)}, 1.0).rows[0]
    assert row.state == "undecided"
    assert row.low is not None
    assert row.low < -1.0
    assert "cannot be decided" in row.how
    gate = evals_gate(compare_evals(alone, {"t": Task("score", 0.6, None)}, 1.0), 1.0)
    assert gate.state == "undecided"
    assert "log_samples" in gate.next_step


def test_only_common_questions_and_tasks_count(tmp_path: Path) -> None:
    run = {"a": Task("correct", 0.5, 4, {"1": 1.0, "2": 0.0, "3": 1.0, "9": 0.0}), "b": Task("acc", 0.5, 9)}
    base = {"a": Task("correct", 1.0, 3, {"1": 1.0, "2": 0.0, "3": 1.0}), "c": Task("acc", 0.5, 9)}
    found = compare_evals(run, base, 1.0)
    assert found.rows[0].n == 3
    assert found.rows[0].difference == 0.0
    assert found.only_one == ("b", "c")
    assert evals_gate(compare_evals({"a": run["a"]}, {"z": base["a"]}, 1.0), 1.0).state == "undecided"


def test_mcnemar_is_the_exact_binomial() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 10) == pytest.approx(2.0 * 0.5**10)
    assert mcnemar(2, 8) == pytest.approx(2 * sum(math.comb(10, k) for k in range(3)) / 2**10)
    assert 0.0 < mcnemar(400, 700) < 1e-15


def test_coverage_of_the_paired_interval(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    inside = 0
    for _ in range(200):
        base = (draw.random(300) < 0.6).astype(int)
        flip = draw.random(300) < 0.05
        run = np.where(flip, 1 - base, base)
        truth = 100.0 * 0.05 * (0.4 - 0.6)
        tasks = [
            {"t": Task("correct", 0.0, 300, {str(k): float(v) for k, v in enumerate(x)})} for x in (run, base)
        ]
        row = compare_evals(tasks[0], tasks[1], 1.0).rows[0]
        assert row.low is not None
        assert row.high is not None
        inside += row.low <= truth <= row.high
    assert inside >= 170  # nominal 180 of 200
