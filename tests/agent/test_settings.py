"""Settings, run ids, guard, schedule, backlog: the small parts."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import floatscope
from floatscope.backlog import Backlog
from floatscope.config import from_env
from floatscope.guard import Guard
from floatscope.identity import choose_run_id, slug_of
from floatscope.rows import Block, Columns, Row
from floatscope.schedule import Schedule
from tests.agent.conftest import read_log


def test_importing_the_agent_loads_nothing_heavy() -> None:
    heavy = [
        "torch",
        "pandas",
        "scipy",
        "fastapi",
        "sqlalchemy",
        "plotly",
        "pydantic",
        "pynvml",
        "jinja2",
        "transformer_engine",
    ]
    code = f"import sys, floatscope; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_monitor_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, floatscope\n"
        f"m = floatscope.watch(run='x', mode='local', log_path={str(tmp_path / 'x.jsonl')!r}, strict=True)\n"
        "m.batch([1, 2]); m.step(loss=1.0); m.finish()\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 2


def test_the_version_is_the_distributions() -> None:
    assert floatscope.__version__.count(".") == 2


def options(**more: Any) -> dict[str, Any]:
    return {"run": "Qwen2 7B / fp8", **more}


def test_without_a_url_the_mode_is_local() -> None:
    assert from_env(options(), {})[0].mode == "local"
    assert from_env(options(), {"FLOATSCOPE_URL": "http://h:1", "FLOATSCOPE_TOKEN": "t"})[0].mode == "server"
    assert from_env(options(mode="local"), {"FLOATSCOPE_URL": "http://h:1"})[0].mode == "local"


def test_the_token_does_not_show() -> None:
    config, _ = from_env(options(), {"FLOATSCOPE_URL": "http://h:1", "FLOATSCOPE_TOKEN": "secret"})
    assert config.token == "secret"
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"stat_every": 1}, TypeError, "stat_every"),
        ({"stats_every": 0}, ValueError, "stats_every"),
        ({"stats_every": 1.5}, ValueError, "stats_every"),
        ({"stats_every": True}, ValueError, "stats_every"),
        ({"mode": "remote"}, ValueError, "mode"),
        ({"mode": "server"}, ValueError, "FLOATSCOPE_URL"),
        ({"url": "ftp://x"}, ValueError, "url"),
        ({"url": "http://"}, ValueError, "url"),
        ({"run_id": "a/b"}, ValueError, "run_id"),
        ({"run_id": ".."}, ValueError, "run_id"),
        ({"baseline": "a b"}, ValueError, "baseline"),
        ({"run": ""}, ValueError, "run"),
        ({"run": "x" * 2000}, ValueError, "run"),
        ({"project": "a\nb"}, ValueError, "project"),
        ({"rank": -1}, ValueError, "rank"),
        ({"flush_every_s": -1}, ValueError, "flush_every_s"),
        ({"close_timeout_s": "soon"}, ValueError, "close_timeout_s"),
    ],
)
def test_a_wrong_argument_says_which(wrong: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        floatscope.watch(**options(**wrong))


def test_a_token_is_trimmed_and_one_that_cannot_be_is_never_repeated() -> None:
    config, complaints = from_env({"run": "r"}, {"FLOATSCOPE_TOKEN": "s3cret\n"})
    assert (config.token, complaints) == ("s3cret", [])
    for odd in ("s3\ncret", "s3cret\u20ac"):
        config, complaints = from_env({"run": "r"}, {"FLOATSCOPE_TOKEN": odd})
        assert config.token is None
        assert "s3" not in complaints[0]
        with pytest.raises(ValueError, match="token") as error:
            from_env({"run": "r", "token": odd}, {})
        assert "s3" not in str(error.value)


def test_a_wrong_environment_is_reported_and_ignored() -> None:
    env = {"FLOATSCOPE_URL": "host:8321", "FLOATSCOPE_RUN_ID": "a b", "RANK": "many"}
    config, complaints = from_env(options(), env)
    assert (config.mode, config.run_id, config.rank) == ("local", None, 0)
    assert len(complaints) == 2
    assert "FLOATSCOPE_URL" in complaints[0]
    assert "FLOATSCOPE_RUN_ID" in complaints[1]


@pytest.mark.parametrize(
    ("env", "rank", "size"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, 2, 4),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1, 2),
        ({}, 0, None),
    ],
)
def test_the_rank_is_the_launchers(env: dict[str, str], rank: int, size: int | None) -> None:
    config, _ = from_env(options(), env)
    assert (config.rank, config.world_size) == (rank, size)
    assert from_env(options(rank=7), env)[0].rank == 7


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_configuration_of_anything_becomes_json(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    config = {
        "lr": np.float32(0.5), "nan": float("nan"), "big": 2**200, "path": tmp_path, "none": None,
        3: (1, {2}), "mute": Mute(), "endless": endless, "bytes": b"x", "surrogate": "\ud800",
        "many": list(range(10_000)),
    }  # fmt: skip
    path = tmp_path / "x.jsonl"
    monitor = floatscope.watch(run="x", mode="local", log_path=path, config=config, gpu=False, strict=True)
    monitor.finish("failed", Mute())  # type: ignore[arg-type]
    found, _ = read_log(path)
    assert (found["config"]["lr"], found["config"]["nan"], found["config"]["3"]) == (0.5, "NaN", [1, [2]])
    assert found["config"]["mute"] == found["reason"] == "<Mute without text: RuntimeError>"
    assert len(found["config"]["many"]) == 2000


def run_id(env: dict[str, str], **more: Any) -> str:
    return choose_run_id(from_env(options(**more), env)[0])


def test_the_run_id_is_the_argument_then_the_variable() -> None:
    assert run_id({"FLOATSCOPE_RUN_ID": "env"}, run_id="arg") == "arg"
    assert run_id({"FLOATSCOPE_RUN_ID": "env", "SLURM_JOB_ID": "1"}) == "env"


@pytest.mark.parametrize(
    "env",
    [
        {"TORCHELASTIC_RUN_ID": "job7"},
        {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77"},
        {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
    ],
)
def test_under_a_launcher_all_ranks_have_one_id(env: dict[str, str]) -> None:
    ids = {run_id({**env, "RANK": str(rank)}) for rank in range(4)}
    assert len(ids) == 1
    assert ids.pop().startswith("qwen2-7b-fp8-")
    assert run_id({**env, "SLURM_JOB_ID": "78", "TORCHELASTIC_RUN_ID": "other"}) != run_id(env)
    assert run_id(env) != run_id(env, run="another name")


def test_a_single_process_has_a_new_id_each_time() -> None:
    assert run_id({}) != run_id({})
    assert run_id({"TORCHELASTIC_RUN_ID": "none"}) != run_id({"TORCHELASTIC_RUN_ID": "none"})


@pytest.mark.parametrize("name", ["", "...", "/", "日本語", "a" * 500, "-x-", "..", "A B"])
def test_any_name_gives_a_valid_id(name: str) -> None:
    from floatscope.protocol.names import check_run_id

    check_run_id(slug_of(name) + "-12345678")
    assert slug_of("A B") == "a-b"


def test_the_guard_swallows_counts_says_once_and_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(limit=3)
    area = guard.area("reading", loses="some numbers")
    for _ in range(3):
        assert not area.tripped
        with area:
            raise ValueError("line one\nline two")
    assert area.tripped
    assert guard.failures == {"reading": 3}
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert said == [
        "floatscope: reading failed (ValueError: line one line two). Training goes on; "
        "you lose some numbers.",
        "floatscope: reading failed 3 times and is switched off for this run.",
    ]


def test_the_guard_lets_an_interrupt_pass_and_a_strict_one_everything() -> None:
    with pytest.raises(KeyboardInterrupt), Guard().area("a", loses="b"):
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), Guard(strict=True).area("a", loses="b"):
        print(1 / 0)


def test_a_broken_logging_handler_does_not_reach_the_training() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space left")

    logger = logging.getLogger("floatscope")
    handler = Broken()
    logger.addHandler(handler)
    try:
        Guard().say("hello")
    finally:
        logger.removeHandler(handler)


def test_the_schedule() -> None:
    schedule = Schedule(10)
    assert [step for step in range(25) if schedule.look(step).is_sampled] == [0, 10, 20]
    schedule.ask({"stats_every": 2, "until_step": 14})
    assert [step for step in range(9, 25) if schedule.look(step).is_sampled] == [10, 12, 14, 20]
    schedule.look_closer(15)
    assert [step for step in range(15, 21) if schedule.look(step).is_sampled] == [15, 16, 17, 18, 20]
    schedule.ease(3)
    assert [step for step in range(21, 70) if schedule.look(step).is_sampled] == [30, 60], "under pressure"
    schedule.ease(1)
    for nonsense in ({}, {"stats_every": 0, "until_step": 5}, {"stats_every": "1", "until_step": 5}):
        schedule.ask(nonsense)


def test_a_wish_for_ever_ends() -> None:
    """A server that has asked for every step may be gone since; one that has a reason asks again."""
    schedule = Schedule(10)
    schedule.look(7)
    schedule.ask({"stats_every": 1, "until_step": 2**62})
    assert schedule.look(10_007).is_sampled
    assert not schedule.look(10_008).is_sampled


def heavy_row(step: int) -> Row:
    names = tuple(f"layer{i}/input" for i in range(1000))
    return Row(step, 0.0, {"loss": 1.0}, [Block(names, {"amax": np.ones(1000, np.float32)})])


def test_memory_gives_up_detail_before_steps() -> None:
    backlog = Backlog(most_rows=50, most_bytes=60_000)
    for step in range(40):
        backlog.add([heavy_row(step)], now=0.0)
    rows = backlog.first(100)
    assert [row.step for row in rows] == list(range(40)), "no step is lost"
    assert not any(row.blocks for row in rows[:30])
    assert rows[-1].blocks, "the newest keep their detail"
    assert backlog.thinned > 0
    assert backlog.dropped == 0
    backlog.take(39)
    assert [row.step for row in backlog.first(100)] == [39]


def test_columns_of_blocks_that_overlap() -> None:
    first = Block(("b/input", "a/input"), {"amax": np.array([1, 2], np.float32)})
    second = Block(
        ("a/input", "c/input"),
        {"amax": np.array([5, np.nan], np.float32), "rms": np.array([7, 8], np.float32)},
        {"rms": np.array([False, True])},
    )
    columns = Columns()
    batch = columns.batch([Row(0, 0.0, {}, [first, second]), Row(1, 1.0, {"x": 1.0})])
    assert batch.tensor_names == ("a/input", "b/input", "c/input")
    assert batch.stats["amax"][0].tolist()[:2] == [5.0, 1.0], "the later block wins"
    assert batch.stats_present["rms"][0].tolist() == [False, False, True]
    assert batch.stat_row.tolist() == [0]
    assert columns.batch([Row(2, 2.0)]).tensor_names == ()
