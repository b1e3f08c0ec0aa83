"""Reads downstream evaluations: results of lm-evaluation-harness, its samples, and a plain form.

Understood are

- ``results_DATE.json`` of lm-evaluation-harness: ``{"results": {task: {"acc,none": 0.62, "acc_stderr,none":
  0.004}}, "n-samples": {task: {"effective": 14042}}}``; the ``samples_TASK_DATE.jsonl`` of the same date that
  stand beside it (``--log_samples``) are read with it,
- one ``samples_*.jsonl``, a line a question with ``doc_id`` and the metric's value,
- a folder of these, of which the newest of each task counts,
- the plain form ``{task: {"correct": [0, 1, ...], "ids": [...]}}``, ids optional, ``{task: {"score": 0.62,
  "n": 1000}}`` where only that is known.

Nothing of a file is trusted: sizes are limited before anything is read, and every refusal names the file and
the place in it. Field names: lm_eval/loggers/evaluation_tracker.py and evaluator.py of lm-evaluation-harness.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 64 << 20
MAX_SAMPLES_BYTES = 2 << 30
MAX_LINE_BYTES = 16 << 20
MAX_QUESTIONS = 2_000_000
MAX_TASKS = 10_000
MOST_TOLD = 10**9  # questions of a task whose score alone is given
LEAST_ERROR = 1e-6
"""Standard error of a score; smaller ones are no binomial's."""
METRICS = ("acc_norm", "acc", "exact_match", "pass@1", "correct")
"""Shares of questions answered right, in the order of preference; other metrics are no such shares."""
FILTERS = ("none", "strict-match")
_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[0-9.:-]+)\.jsonl\Z")
_RESULTS = re.compile(r"results_(?P<date>\d{4}-\d\d-\d\dT[0-9.:-]+)\.json\Z")


class UnreadableEvals(Exception):
    """A file of evaluations cannot be used; the message names it, the place and what was expected."""


@dataclass(frozen=True, eq=False)
class Task:
    """One task. score: share of questions answered right, 0 to 1.  n: questions, None if unknown.  correct:
    value 0 to 1 of each question by its id, None where only the score is known.
    """

    metric: str
    score: float
    n: int | None
    correct: Mapping[str, float] | None = None


def read_evals(path: str) -> dict[str, Task]:
    """Tasks by name. Raises UnreadableEvals."""
    where = Path(path)
    if where.is_dir():
        return _folder(where)
    if not where.is_file():
        raise UnreadableEvals(f"{path}: no such file or folder")
    if where.suffix == ".jsonl":
        found = _SAMPLES.search(where.name)
        name = found["task"] if found else where.stem
        return {name: _samples(where)}
    tasks = _document(where)
    dated = _RESULTS.search(where.name)
    if dated:
        tasks.update(_beside(where.parent, dated["date"]))
    return tasks


def _folder(folder: Path) -> dict[str, Task]:
    inside = sorted(p for p in folder.rglob("*.json*") if p.is_file())[: 2 * MAX_TASKS]
    results = [p for p in inside if _RESULTS.search(p.name)]
    out: dict[str, Task] = {}
    for place in sorted(results, key=lambda p: p.name):
        out.update(_document(place))
    for place in sorted((p for p in inside if _SAMPLES.search(p.name)), key=_date_of):
        found = _SAMPLES.search(place.name)
        if found:
            out[found["task"]] = _samples(place)
    if not out:
        raise UnreadableEvals(
            f"{folder}: holds no results_DATE.json or samples_TASK_DATE.jsonl of lm-evaluation-harness"
        )
    return out


def _beside(folder: Path, date: str) -> dict[str, Task]:
    out = {}
    for place in sorted(folder.iterdir()):
        found = _SAMPLES.search(place.name)
        if found and found["date"] == date:
            out[found["task"]] = _samples(place)
    return out


def _date_of(place: Path) -> str:
    found = _SAMPLES.search(place.name)
    return found["date"] if found else ""


def _document(place: Path) -> dict[str, Task]:
    if place.stat().st_size > MAX_JSON_BYTES:
        raise UnreadableEvals(f"{place}: larger than {MAX_JSON_BYTES >> 20} MiB; pass the samples_*.jsonl")
    try:
        made = json.loads(place.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise UnreadableEvals(f"{place}: is no JSON ({error})") from error
    if not isinstance(made, dict):
        raise UnreadableEvals(f"{place}: expected an object of tasks, got {type(made).__name__}")
    if isinstance(made.get("results"), dict):
        tasks = dict(_harness(made, place))
        samples = made.get("samples")
        if isinstance(samples, dict):
            for name, rows in samples.items():
                if isinstance(rows, list):
                    tasks[name] = _of_rows(((k, row) for k, row in enumerate(rows)), f"{place}: {name}")
    else:
        tasks = {name: _plain(row, f"{place}: {name}") for name, row in made.items()}
    if not tasks:
        raise UnreadableEvals(
            f"{place}: no task with a share of right answers ({', '.join(METRICS[:-1])}) was found"
        )
    if len(tasks) > MAX_TASKS:
        raise UnreadableEvals(f"{place}: more than {MAX_TASKS:,} tasks")
    return tasks


def _harness(made: Mapping[str, Any], place: Path) -> Iterator[tuple[str, Task]]:
    groups = made.get("group_subtasks")
    sizes = made.get("n-samples")
    for name, row in made["results"].items():
        if not isinstance(row, dict):
            continue
        if isinstance(groups, dict) and groups.get(name):
            continue  # a group is the sum of tasks that are listed as well
        key = _metric_key(row)
        if key is None:
            continue
        score = _share(row[key], f"{place}: results.{name}.{key}")
        size = sizes.get(name) if isinstance(sizes, dict) else None
        n = size.get("effective") if isinstance(size, dict) else size
        known = isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= MOST_TOLD
        questions = n if known else _from_error(score, row.get(key.replace(",", "_stderr,", 1)))
        yield name, Task(key.partition(",")[0], score, questions)


def _metric_key(row: Mapping[str, Any]) -> str | None:
    """The key of the preferred metric, as "acc,none" or "acc"."""
    for metric in METRICS:
        keys = [k for k in row if k.partition(",")[0] == metric and _is_number(row[k])]
        if keys:
            order = {name: k for k, name in enumerate(FILTERS)}
            return min(keys, key=lambda k: (order.get(k.partition(",")[2], len(order)), k))
    return None


def _from_error(score: float, error: Any) -> int | None:
    """Questions that a binomial standard error tells of: n = p (1 - p) / se^2 + 1. None of an error that no
    number of questions that are read could have.
    """
    if not _is_number(error) or not LEAST_ERROR < error < 0.5 or not 0.0 < score < 1.0:
        return None
    return max(round(score * (1.0 - score) / float(error) ** 2) + 1, 1)


def _plain(row: Any, where: str) -> Task:
    if not isinstance(row, dict):
        raise UnreadableEvals(f'{where}: expected {{"correct": [0, 1, ...]}} or {{"score": ..., "n": ...}}')
    if "correct" in row:
        values = row["correct"]
        if not isinstance(values, list) or not values or len(values) > MAX_QUESTIONS:
            raise UnreadableEvals(f"{where}.correct: expected 1 to {MAX_QUESTIONS:,} numbers from 0 to 1")
        ids = row.get("ids", list(range(len(values))))
        if not isinstance(ids, list) or len(ids) != len(values):
            raise UnreadableEvals(f"{where}.ids: expected as many as there are values ({len(values):,})")
        correct = {
            str(i): _share(v, f"{where}.correct[{k}]")
            for k, (i, v) in enumerate(zip(ids, values, strict=True))
        }
        if len(correct) != len(values):
            raise UnreadableEvals(f"{where}.ids: an id stands twice")
        return Task("correct", sum(correct.values()) / len(correct), len(correct), correct)
    if "score" in row:
        n = row.get("n")
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MOST_TOLD):
            got = repr(n)[:40]
            raise UnreadableEvals(f"{where}.n: expected questions from 1 to {MOST_TOLD:,}, got {got}")
        return Task("score", _share(row["score"], f"{where}.score"), n)
    raise UnreadableEvals(
        f'{where}: expected "correct" or "score"; there are {", ".join(map(str, row))[:80]}'
    )


def _samples(place: Path) -> Task:
    if place.stat().st_size > MAX_SAMPLES_BYTES:
        raise UnreadableEvals(f"{place}: larger than {MAX_SAMPLES_BYTES >> 30} GiB")
    return _of_rows(_lines(place), str(place))


def _lines(place: Path) -> Iterator[tuple[int, Any]]:
    with place.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise UnreadableEvals(f"{place}, line {number:,}: longer than {MAX_LINE_BYTES >> 20} MiB")
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UnreadableEvals(f"{place}, line {number:,}: is no JSON ({error})") from error


def _of_rows(rows: Iterator[tuple[int, Any]], where: str) -> Task:
    correct: dict[str, float] = {}
    metric = chosen = ""
    for number, row in rows:
        if not isinstance(row, dict) or "doc_id" not in row:
            raise UnreadableEvals(f"{where}, line {number:,}: expected an object with doc_id and a metric")
        flt = str(row.get("filter", "none"))
        if not metric:
            metric = next((m for m in METRICS if _is_number(row.get(m))), "")
            chosen = flt
            if not metric:
                raise UnreadableEvals(
                    f"{where}, line {number:,}: holds none of {', '.join(METRICS)} as a number"
                )
        if flt != chosen:
            continue  # the same questions with another way to read the answer
        ident = str(row["doc_id"])
        if ident in correct:
            raise UnreadableEvals(f"{where}, line {number:,}: doc_id {ident[:40]} stands twice")
        correct[ident] = _share(row.get(metric), f"{where}, line {number:,}: {metric}")
        if len(correct) > MAX_QUESTIONS:
            raise UnreadableEvals(f"{where}: more than {MAX_QUESTIONS:,} questions")
    if not correct:
        raise UnreadableEvals(f"{where}: holds no question")
    return Task(metric, sum(correct.values()) / len(correct), len(correct), correct)


def _share(value: Any, where: str) -> float:
    if isinstance(value, bool):
        return float(value)
    if not _is_number(value) or not 0.0 <= value <= 1.0:
        raise UnreadableEvals(f"{where}: expected a number from 0 to 1, got {str(value)[:40]}")
    return float(value)


def _is_number(value: Any) -> bool:
    """Whether it is one that a float can hold: an integer of hundreds of digits is not."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False
