"""Whatever a log holds: a verdict or a clear refusal, in bounded time and memory."""

from __future__ import annotations

import contextlib
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from floatscope.protocol.batch import Batch, lost_batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.names import MAX_STEP
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.cli import main
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.episodes import MAX_EPISODES_PER_SIGNAL
from floatscope_diagnostics.rule import FAMILY_OF

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a run an example: shrinking takes minutes
SLOW = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
RECIPE = {"recipe": {"name": "fp8_delayed_scaling", "amax_history_len": 4}, "vocab_size": 50}

STRANGE = st.sampled_from(
    [
        *(
            0.0,
            -0.0,
            1.0,
            -1.0,
            1e-45,
            -1e-45,
            5e-324,
            1e-30,
            65504.0,
            3e38,
            -3e38,
            1e308,
            -1e308,
            100.0,
            7.5,
        ),
        *(math.nan, math.inf, -math.inf),
    ]
)
STAT = STRANGE.filter(lambda v: abs(v) < 3.5e38 or not math.isfinite(v))
TENSORS = (
    "a/input",
    "b/weight",
    "c/grad_output",
    "d/output",
    "x",
    "a/b/c",
    "\u00fc.\u4e2d/input",
    "'; --/weight",
)
STATS = ("amax", "rms", "scale", "sat", "nan_count", "inf_count", "overflow_pct", "underflow_pct", "sqnr_db",
         "grad_norm", "update_ratio", "unchanged_pct", "amax_min_block", "zero_pct")  # fmt: skip
SCALARS = ("loss", "grad_norm", "lr", "loss_scale", "skipped_steps", "update_norm", "param_norm", "eval_loss",
           "zero_grad_pct", "label_tokens", "step_time_s", "data_time_s", "ref_loss", "data_id", "resumed",
           "passes", "gpu_throttle", "mine")  # fmt: skip
ROW = st.fixed_dictionaries(
    {"step": st.sampled_from([0, 1, 2, 3, 5, 8, 100, MAX_STEP - 1, MAX_STEP])},
    optional={
        **dict.fromkeys(SCALARS, STRANGE),
        "time": st.sampled_from([0.0, -1e9, 1.7e9, 1e18]),
        "tensors": st.dictionaries(
            st.sampled_from(TENSORS), st.dictionaries(st.sampled_from(STATS), STAT, max_size=6), max_size=5
        ),
    },
)


def checked(engine: Engine) -> dict[str, Any]:
    """The verdict, held to what every verdict promises."""
    document = engine.verdict().to_json()
    json.dumps(document, allow_nan=False)
    assert document["status"] in ("healthy", "watch", "warning", "critical")
    for finding in document["findings"]:
        assert finding["cause"] in FAMILY_OF
        assert 0.0 <= finding["confidence"] <= 1.0
        shares = [a["confidence"] for a in finding["alternatives"]]
        assert finding["severity"] == "info" or finding["confidence"] + sum(shares) <= 1.03  # two digits each
        assert finding["onset_window"][0] <= finding["onset_step"] <= finding["onset_window"][1]
        assert finding["onset_step"] <= finding["detected_step"]
    return document


@SLOW
@given(st.lists(st.tuples(st.integers(0, 2), ROW), min_size=1, max_size=40), st.data())
def test_any_numbers_on_any_ranks_in_any_order_with_a_restart_anywhere(
    rows: list[tuple[int, dict[str, Any]]], data: st.DataObject
) -> None:
    info = RunInfo.from_json(RECIPE)
    engine, whole = Engine(info), Engine(info)
    for rank, row in rows:
        batch = batch_from_rows([row])
        whole.feed(batch, rank=rank)
        engine.feed(batch, rank=rank)
        if data.draw(st.integers(0, 3)) == 0:
            engine = Engine.restore(info, engine.state())
            engine.feed(batch_from_rows([]), rank=rank)
    assert checked(engine) == checked(whole)


@SLOW
@given(STRANGE, STAT, st.integers(1, 90))
def test_a_constant_run_of_any_value_is_judged(scalar: float, stat: float, steps: int) -> None:
    engine = Engine(RunInfo.from_json(RECIPE))
    tensors = {name: dict.fromkeys(STATS, stat) for name in TENSORS}
    row: Mapping[str, Any] = {**dict.fromkeys(SCALARS, scalar), "tensors": tensors}
    engine.feed(batch_from_rows([{**row, "step": s} for s in range(steps)]))
    checked(engine)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_run_that_is_not_finite_from_its_first_step_is_critical(value: float) -> None:
    engine = Engine(RunInfo.from_json(RECIPE))
    engine.feed(batch_from_rows([{"step": s, "loss": value, "grad_norm": value} for s in range(9)]))
    document = checked(engine)
    assert document["status"] == "critical"
    assert document["last_clean_step"] is None


def test_a_run_of_constant_numbers_is_healthy() -> None:
    engine = Engine(RunInfo())
    engine.feed(batch_from_rows([{"step": s, "loss": 2.5, "lr": 1e-3} for s in range(500)]))
    assert checked(engine)["status"] == "healthy"


def test_statistics_without_scalars_and_scalars_without_statistics() -> None:
    engine = Engine(RunInfo.from_json(RECIPE))
    for s in range(60):
        stats = {"amax": 1.0, "scale": 100.0, "underflow_pct": 1.0}
        only = {"tensors": {"a/input": stats, "b/weight": stats}} if s % 2 else {"loss": 2.0, "tensors": {}}
        engine.feed(batch_from_rows([{"step": s, **only}]))
    assert checked(engine)["findings"] == []


def test_lost_and_empty_batches_are_no_steps() -> None:
    engine = Engine(RunInfo())
    for k in range(300):
        engine.feed(lost_batch(10 * k, 10 * k + 9))
        engine.feed(batch_from_rows([]))
    document = checked(engine)
    assert document["source"]["steps"] == 0
    assert len(engine.state()) < 20_000


def test_thousands_of_restarts_fill_neither_state_nor_time() -> None:
    info = RunInfo.from_json(RECIPE)
    engine = Engine(info)
    rng = np.random.default_rng(1)
    sizes = []
    begin = time.process_time()
    for turn in range(2000):
        rows = [
            {
                "step": s,
                "loss": math.nan if turn % 3 == 0 else float(rng.normal()),
                "tensors": {
                    "a/input": {
                        "amax": 1.0,
                        "scale": float(rng.integers(1, 99)),
                        "nan_count": float(turn % 3 == 0),
                    }
                },
            }
            for s in range(3)
        ]
        engine.feed(batch_from_rows(rows))
        if turn in (999, 1999):
            sizes.append(len(engine.state()))
    document = checked(engine)
    assert time.process_time() - begin < 60
    assert sizes[1] < 1.1 * sizes[0] + 2000
    assert len(document["findings"]) < 8 * MAX_EPISODES_PER_SIGNAL
    assert len(document["source"]["notes"]) <= 128
    assert Engine.restore(info, engine.state()).verdict().to_json() == document


def test_endless_new_scalar_names_do_not_fill_the_state() -> None:
    engine = Engine(RunInfo())
    for k in range(40):
        engine.feed(
            batch_from_rows([{"step": k, "loss": 2.0, **{f"extra_{k}_{j}": 1.0 for j in range(200)}}])
        )
    assert len(engine.state()) < 120_000
    assert checked(engine)["status"] == "healthy"


@pytest.mark.parametrize("ranks", [10_000, 1_000_000_000])
def test_ranks_that_are_claimed_and_never_come_cost_nothing(ranks: int) -> None:
    engine = Engine(RunInfo.from_json({**RECIPE, "ranks": ranks}))
    for rank in (0, 7, ranks - 1):
        engine.feed(
            batch_from_rows([{"step": s, "loss": 2.0, "param_norm": 40.0} for s in range(100)]), rank=rank
        )
    document = checked(engine)
    assert document["status"] == "healthy"
    assert len(engine.state()) < 300_000


def test_a_thousand_ranks_that_do_come_are_judged() -> None:
    engine = Engine(RunInfo.from_json({"ranks": 1000}))
    begin = time.process_time()
    for start in (0, 8):
        batch = batch_from_rows(
            [{"step": s, "loss": 2.0 + 0.01 * (s % 3), "param_norm": 40.0} for s in range(start, start + 8)]
        )
        for rank in range(1000):
            engine.feed(batch, rank=rank)
    checked(engine)
    assert time.process_time() - begin < 60


def wide(tensors: int, steps: int) -> Batch:
    """A run of many tensors that all leap at once, half way."""
    rng = np.random.default_rng(0)
    amax = np.exp(rng.normal(0, 0.1, (steps, tensors))).astype(np.float32)
    amax[steps // 2 :] *= 1e4
    stats = {
        "amax": amax,
        "scale": np.full((steps, tensors), 100, np.float32),
        "underflow_pct": np.where(np.arange(steps)[:, None] > steps // 2, 90, 1)
        * np.ones((1, tensors), np.float32),
        "nan_count": np.where(np.arange(steps)[:, None] > steps - 2, 1, 0)
        * np.ones((1, tensors), np.float32),
    }
    here = np.ones((steps, tensors), bool)
    return Batch(
        step=np.arange(steps),
        time=np.zeros(steps),
        scalar_names=("loss",),
        scalars=np.full((steps, 1), 2.5),
        scalars_present=np.ones((steps, 1), bool),
        tensor_names=tuple(
            f"layers.{k // 3}.mlp/{('input', 'weight', 'grad_output')[k % 3]}" for k in range(tensors)
        ),
        stat_row=np.arange(steps),
        stats={k: v.astype(np.float32) for k, v in stats.items()},
        stats_present=dict.fromkeys(stats, here),
    )


def test_a_hundred_thousand_tensors_are_judged_in_bounded_time_and_size() -> None:
    """Measured on one core: 100,000 tensors take 0.3 s a step, 40 MB of state and 1.3 GB of memory."""
    begin = time.process_time()
    engine = Engine(RunInfo.from_json(RECIPE))
    engine.feed(wide(100_000, 6))
    document = checked(engine)
    assert time.process_time() - begin < 60
    assert document["source"]["tensors"] == 100_000
    assert len(json.dumps(document)) < 100_000
    assert len(engine.state()) < 80e6


def test_many_tensors_fall_at_once_and_are_one_incident() -> None:
    engine = Engine(RunInfo.from_json(RECIPE))
    engine.feed(wide(3000, 60))
    found = [f for f in checked(engine)["findings"] if f["severity"] != "info"]
    assert len(found) <= 2
    assert max(f["affected_tensors"] for f in found) >= 1000
    assert len(json.dumps(found)) < 20_000


# ---- the same through the command, from files


def diagnose(path: Path) -> tuple[int, Any]:
    """Exit code and JSON document of ``floatscope diagnose --json``."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(path), "--json"])
    assert "Traceback" not in err.getvalue()
    assert code in (0, 1, 2), err.getvalue()
    return code, json.loads(out.getvalue())


JSON_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
KEY = st.sampled_from(
    [*SCALARS, "step", "rank", "time", "tensors", "run", "segment", "iteration", "train/loss"]
)
LINE = st.one_of(
    st.dictionaries(KEY, JSON_VALUE, max_size=6).map(json.dumps),
    ROW.map(json.dumps),
    ROW.map(json.dumps).map(lambda text: text[: len(text) // 2]),
    st.text(max_size=30),
)


@SLOW
@given(st.lists(LINE, max_size=30), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_any_lines_give_a_document(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str
) -> None:
    path = tmp_path_factory.mktemp("bad") / "log.jsonl"
    path.write_text('{"step": 0, "loss": 2.5}\n' + end.join(lines), encoding="utf-8", errors="surrogatepass")
    code, document = diagnose(path)
    assert ("unread" in document) == (code == 2)


@SLOW
@given(st.binary(max_size=300))
def test_any_bytes_give_a_document(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bad") / "log.jsonl"
    path.write_bytes(content)
    code, document = diagnose(path)
    assert code == 2 or document["source"]["steps"] >= 0


FIELD = st.one_of(
    st.floats().map(str), st.integers().map(str), st.text(max_size=8), st.sampled_from(["", "nan", '"'])
)


@SLOW
@given(
    st.lists(st.sampled_from(["step", "loss", "lr", "grad_norm", "rank", "x", ""]), min_size=1, max_size=5),
    st.lists(st.lists(FIELD, max_size=6), max_size=12),
    st.sampled_from(",;\t"),
)
def test_any_table_gives_a_document(
    tmp_path_factory: pytest.TempPathFactory, header: list[str], rows: list[list[str]], sep: str
) -> None:
    path = tmp_path_factory.mktemp("bad") / "log.csv"
    text = "\n".join(sep.join(fields) for fields in [["step", *header], *rows])
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    diagnose(path)


@SLOW
@given(st.lists(st.dictionaries(KEY, JSON_VALUE, max_size=5), max_size=9), JSON_VALUE)
def test_any_trainer_state_gives_a_document(
    tmp_path_factory: pytest.TempPathFactory, history: list[dict[str, Any]], other: Any
) -> None:
    path = tmp_path_factory.mktemp("bad") / "trainer_state.json"
    path.write_text(json.dumps({"global_step": other, "log_history": history}))
    diagnose(path)


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(r) for r in rows))
    return path


def test_a_scalar_that_changes_its_type_is_passed_over_where_it_is_no_number(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": s, "loss": 2.0 + 0.01 * (s % 3)} for s in range(40)]
    rows[10]["loss"] = "2.01"
    rows[11]["loss"] = None
    rows[12]["loss"] = {"mean": 2.0}
    rows[13]["loss"] = [2.0]
    rows[14]["loss"] = True
    code, document = diagnose(written(tmp_path / "a.jsonl", rows))
    assert code == 0
    assert document["source"]["skipped_lines"] >= 2
    assert document["source"]["last_step"] == 39


def test_steps_that_are_no_steps_are_passed_over(tmp_path: Path) -> None:
    strange = [2**62, 2**64, -1, 1.5, "7", "x", None, True, 1e30]
    rows: list[dict[str, Any]] = [{"step": s, "loss": 2.0} for s in [1, 2, 3, *strange, 4]]
    code, document = diagnose(written(tmp_path / "a.jsonl", rows))
    assert code in (0, 1)
    assert document["source"]["skipped_lines"] >= 5


def test_ten_thousand_ranks_in_one_file_are_too_many_and_it_says_so(tmp_path: Path) -> None:
    rows = [{"step": 1, "rank": r, "loss": 2.0} for r in range(10_000)]
    _, document = diagnose(written(tmp_path / "a.jsonl", rows))
    assert any("more than 1,024 ranks in one file" in note for note in document["source"]["notes"])


def odd_log(path: Path, tensor: str) -> str:
    rows: list[dict[str, Any]] = [{"run": {"name": "'; DROP TABLE runs; --"}}]
    for s in range(60):
        bad = s > 40
        stats = {"amax": 1.0, "nan_count": float(bad)}
        rows.append({"step": s, "loss": math.nan if bad else 2.0, "tensors": {tensor: stats}})
    return str(written(path, rows))


@pytest.mark.parametrize(
    "tensor", ["\u00fc.\u4e2d/input", "<b>{x}%s$(y)/input", "a b/c d/input", "/", "input"]
)
def test_odd_names_are_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tensor: str
) -> None:
    assert main([odd_log(tmp_path / "log.jsonl", tensor)]) == 1
    text = capsys.readouterr().out
    assert "CRITICAL" in text
    assert tensor in text


def test_names_that_could_drive_a_terminal_are_refused_and_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = odd_log(tmp_path / "odd\x1b[31m.jsonl", "\u202e\u2028\x1b[31mx/input")
    assert main([path]) == 2
    out = capsys.readouterr()
    assert "expected a name without control characters" in out.err
    assert not {"\x1b", "\u202e", "\u2028"} & set(out.out + out.err)


def test_a_batch_beyond_the_protocol_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="step"):
        batch_from_rows([{"step": 2**63}])
