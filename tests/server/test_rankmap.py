"""One scalar of all ranks over steps, beside what a look at every row says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from floatscope_server.store.rank_reads import rank_map, spread
from floatscope_server.store.stretches import Span
from tests.server.live import Client

STEPS = 90
RANKS = (0, 1, 3, 7)


def value(rank: int, step: int) -> float | None:
    """Every kind of value; rank 3 has a hole."""
    odd = {(1, 20): math.nan, (1, 21): math.inf, (7, 50): -math.inf}
    if rank == 3 and 30 <= step < 60:
        return None
    return odd.get((rank, step), float((rank * 31 + step * 17) % 97))


def send(client: Client, *, throttled: tuple[int, int] = (1, 40)) -> None:
    client.open_run("r")
    for rank in RANKS:
        rows: list[dict[str, Any]] = []
        for step in range(STEPS):
            row: dict[str, Any] = {"step": step, "loss": 1.0}
            found = value(rank, step)
            if found is not None:
                row["gpu_util_pct"] = row["step_time_s"] = str_of(found)
            row["gpu_throttle"] = 0x44 if (rank, step) == throttled else 0
            rows.append(row)
        for seq in range(3):
            answer = client.put("r", seq, {"steps": rows[seq * 30 : seq * 30 + 30]}, rank=rank)
            assert answer.status == 200, answer.text


def str_of(number: float) -> float | str:
    if math.isnan(number):
        return "NaN"
    return number if math.isfinite(number) else "Infinity" if number > 0 else "-Infinity"


@pytest.mark.parametrize(
    ("name", "worst", "columns", "low", "high"),
    [("gpu_util_pct", min, 10, 0, 89), ("step_time_s", max, 7, 13, 70), ("step_time_s", max, 500, 40, 60)],
)
def test_every_cell_is_the_worst_of_its_rows(
    client: Client, name: str, worst: Any, columns: int, low: int, high: int
) -> None:
    send(client)
    found = client.get(f"/api/v1/runs/r/rankmap?name={name}&columns={columns}&from={low}&to={high}").json
    assert found["ranks"] == [[rank] for rank in RANKS]
    assert (found["from"][0], found["to"][-1]) == (low, high)
    assert len(found["from"]) <= columns
    assert found["worst"] == ("low" if worst is min else "high")
    counts: dict[str, dict[tuple[int, int], int]] = {"nan": {}, "inf": {}}
    for row, rank in enumerate(RANKS):
        for column, (first, last) in enumerate(zip(found["from"], found["to"], strict=True)):
            inside = [v for s in range(first, last + 1) if (v := value(rank, s)) is not None]
            finite = [v for v in inside if math.isfinite(v)]
            assert found["values"][row][column] == (worst(finite) if finite else None)
            for kind, test in (("nan", math.isnan), ("inf", math.isinf)):
                if any(map(test, inside)):
                    counts[kind][row, column] = sum(map(test, inside))
    for kind, cells in counts.items():
        assert {(r, c): n for r, c, n in found[kind]} == cells


def test_where_a_gpu_was_slowed_down_is_marked_with_its_reasons(client: Client) -> None:
    send(client)
    found = client.get("/api/v1/runs/r/rankmap?name=gpu_util_pct&columns=500").json
    assert found["throttled"] == [[1, 40, 0x44]]


def test_an_answer_is_kept_until_something_is_stored(client: Client) -> None:
    send(client)
    path = "/api/v1/runs/r/rankmap?name=gpu_util_pct"
    etag = client.get(path).headers["etag"]
    assert client.call("GET", path, headers={"If-None-Match": etag}).status == 304
    client.put("r", 3, {"steps": [{"step": STEPS, "gpu_util_pct": 5.0}]}, rank=0)
    assert client.call("GET", path, headers={"If-None-Match": etag}).status == 200


def test_what_no_rank_logs_has_no_rows(client: Client) -> None:
    send(client)
    found = client.get("/api/v1/runs/r/rankmap?name=gpu_temp_c").json
    assert (found["ranks"], found["values"]) == ([], [])
    assert client.get("/api/v1/runs/r/rankmap?name=gpu_temp_c&columns=501").status == 422
    assert client.get("/api/v1/runs/none/rankmap?name=gpu_temp_c").status == 404
    assert client.get("/api/v1/runs/r/rankmap").json["field"] == "name"
    client.open_run("empty")
    assert client.get("/api/v1/runs/empty/rankmap?name=loss").json["ranks"] == []


def test_more_ranks_than_rows_are_put_together_by_their_worst(client: Client, monkeypatch: Any) -> None:
    send(client)
    monkeypatch.setattr("floatscope_server.store.rank_reads.rank_map.__kwdefaults__", {"most_rows": 2})
    found = client.get("/api/v1/runs/r/rankmap?name=step_time_s&columns=5").json
    assert found["ranks"] == [[0, 1], [3, 7]]
    for row, ranks in enumerate(found["ranks"]):
        for column, (first, last) in enumerate(zip(found["from"], found["to"], strict=True)):
            inside = [value(rank, s) for rank in ranks for s in range(first, last + 1)]
            finite = [v for v in inside if v is not None and math.isfinite(v)]
            assert found["values"][row][column] == max(finite)


def test_of_very_many_ranks_some_are_looked_at() -> None:
    assert spread([4, 5, 6], 8) == [4, 5, 6]
    found = spread(range(10_000), 1_024)
    assert (found[0], found[-1], len(found), len(set(found))) == (0, 9_999, 1_024, 1_024)


def test_no_rank_at_all_is_an_empty_map() -> None:
    found = rank_map([], "loss", Span(0, 9), columns=5, low=True)
    assert (found.rows, found.worst.shape) == ((), (0, 5))
    assert np.array_equal(found.start, [0, 2, 4, 6, 8])
