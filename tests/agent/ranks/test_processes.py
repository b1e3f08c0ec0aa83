"""Four ranks in processes of their own, under DistributedDataParallel and FSDP2, over gloo on the CPU."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import LAUNCHER, read_log
from tests.agent.ranks.job import MAX_NORM, RANKS, SCENARIOS, references

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 240.0
STEPS = {scenario.name: scenario.steps for scenario in SCENARIOS}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, port: int) -> dict[str, str]:
    """As torchrun sets it."""
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    return {
        **kept, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a finished job, and what each rank wrote to its standard error."""
    folder = tmp_path_factory.mktemp("job")
    port = free_port()
    command = [sys.executable, "-m", "tests.agent.ranks.job", str(folder)]
    errors = [folder / f"stderr{rank}.txt" for rank in range(RANKS)]
    ranks = []
    for rank, path in enumerate(errors):
        with path.open("w") as out:
            ranks.append(
                subprocess.Popen(command, cwd=ROOT, env=environment(rank, port), stdout=out, stderr=out)
            )
    try:
        codes = [process.wait(TIMEOUT_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    said = [path.read_text() for path in errors]
    assert codes == [0] * RANKS, "\n".join(text[-3000:] for text in said)
    return folder, said


def logs(folder: Path, name: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Run object and rows of each rank; all in the one folder of the one run."""
    [run] = (folder / name).iterdir()
    assert sorted(p.name for p in run.glob("*.jsonl")) == [f"rank{rank}.jsonl" for rank in range(RANKS)]
    return [read_log(run / f"rank{rank}.jsonl") for rank in range(RANKS)]


def diagnosis(folder: Path, name: str) -> list[dict[str, Any]]:
    """Findings of ``floatscope diagnose rank*.jsonl``."""
    [run] = (folder / name).iterdir()
    paths = sorted(str(path) for path in run.glob("rank*.jsonl"))
    done = subprocess.run(
        [sys.executable, "-m", "floatscope.cli", "diagnose", *paths, "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return [f for f in json.loads(done.stdout)["findings"] if f["severity"] != "info"]


def test_training_is_the_same_bit_for_bit_on_every_rank(job: tuple[Path, list[str]]) -> None:
    for rank in range(RANKS):
        same = json.loads((job[0] / f"rank{rank}.json").read_text())
        assert same == dict.fromkeys(STEPS, True), f"rank {rank}"


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_each_rank_writes_its_own_rows_of_one_run(job: tuple[Path, list[str]], name: str) -> None:
    for rank, (run, rows) in enumerate(logs(job[0], name)):
        assert [row["step"] for row in rows] == list(range(STEPS[name]))
        assert {row.get("rank", 0) for row in rows} == {rank}
        assert {row["dp_rank"] for row in rows} == {rank}
        assert run["ranks"] == RANKS
        assert run["config"]["place"]["dp"] == rank
    losses = [[row["loss"] for row in rows] for _, rows in logs(job[0], name)]
    assert len({tuple(loss) for loss in losses}) == RANKS, "each rank has its own batches"


def test_under_ddp_every_rank_has_the_norms_of_the_whole(job: tuple[Path, list[str]]) -> None:
    for _, rows in logs(job[0], "ddp"):
        for row, expected in zip(rows, references(STEPS["ddp"]), strict=True):
            assert row["grad_norm"] == pytest.approx(math.hypot(*expected.values()), rel=1e-4)
            assert "local_grad_norm" not in row
            for name in ("0", "2"):
                found = row["tensors"][f"{name}/weight"]["grad_norm"]
                assert found == pytest.approx(expected[f"{name}.weight"], rel=1e-4)


def test_under_fsdp2_squares_of_all_ranks_add_up_to_the_whole(job: tuple[Path, list[str]]) -> None:
    ranks = [rows for _, rows in logs(job[0], "fsdp2")]
    for step, expected in enumerate(references(STEPS["fsdp2"])):
        rows = [rank[step] for rank in ranks]
        assert all("grad_norm" not in row for row in rows), "no rank knows the whole"
        whole = math.hypot(*(row["local_grad_norm"] for row in rows))
        assert whole == pytest.approx(math.hypot(*expected.values()), rel=1e-4)
        for name in ("0", "2"):
            parts = [row["tensors"].get(f"{name}/weight", {}).get("grad_norm", 0.0) for row in rows]
            assert math.hypot(*parts) == pytest.approx(expected[f"{name}.weight"], rel=1e-4)
        assert "2/weight" not in rows[3]["tensors"] or "grad_norm" not in rows[3]["tensors"]["2/weight"]


@pytest.mark.parametrize("name", ["hsdp", "tp"])
def test_elements_that_several_ranks_hold_count_once(job: tuple[Path, list[str]], name: str) -> None:
    """Sharded over two ranks and replicated over two; and split over two by tensor parallelism, with a bias
    that both of these hold."""
    ranks = [rows for _, rows in logs(job[0], name)]
    for step, expected in enumerate(references(STEPS[name], batches=4 if name == "hsdp" else 2)):
        whole = math.hypot(*(rows[step]["local_grad_norm"] for rows in ranks))
        assert whole == pytest.approx(math.hypot(*expected.values()), rel=1e-4)
    places = [(rows[0]["dp_rank"], rows[0].get("tp_rank")) for rows in ranks]
    assert places == (
        [(r, None) for r in range(4)] if name == "hsdp" else [(r // 2, r % 2) for r in range(4)]
    )
    assert diagnosis(job[0], name) == []


def test_under_fsdp1_norms_are_those_after_its_own_clipping(job: tuple[Path, list[str]]) -> None:
    ranks = logs(job[0], "fsdp1")
    for step in range(STEPS["fsdp1"]):
        whole = math.hypot(*(rows[step]["local_grad_norm"] for _, rows in ranks))
        assert whole == pytest.approx(MAX_NORM, rel=1e-3)
    for run, rows in ranks:
        assert "FullyShardedDataParallel.clip_grad_norm_" in run["config"]["grad_norm_point"]
        assert all("param_hash" not in row for row in rows)


def test_ranks_that_agree_have_equal_hashes_and_shards_have_none(job: tuple[Path, list[str]]) -> None:
    hashes = [[row["param_hash"] for row in rows] for _, rows in logs(job[0], "ddp")]
    assert hashes == [hashes[0]] * RANKS
    assert len(set(hashes[0])) == STEPS["ddp"], "weights change with every step"
    assert all("param_hash" not in row for _, rows in logs(job[0], "fsdp2") for row in rows)
    for name in ("ddp", "fsdp2"):
        assert diagnosis(job[0], name) == []


def test_a_rank_whose_weights_have_left_the_others_is_named(job: tuple[Path, list[str]]) -> None:
    [found] = diagnosis(job[0], "bent")
    assert (found["cause"], found["rank"], found["onset_step"]) == ("rank_divergence", 3, 6)


def test_a_nan_in_one_rank_s_batch_names_this_rank(job: tuple[Path, list[str]]) -> None:
    first = diagnosis(job[0], "spoilt")[0]
    assert (first["cause"], first["rank"], first["onset_step"]) == ("invalid_input", 2, 6)


def test_only_the_first_rank_speaks(job: tuple[Path, list[str]]) -> None:
    said = ["floatscope" in text for text in job[1]]
    assert said == [True] + [False] * (RANKS - 1), job[1]
