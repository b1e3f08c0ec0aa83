"""What an address of the advice may ask for: a GPU, as people name it; and where its figures are from."""

from __future__ import annotations

import pytest

from tests.server.live import Client
from tests.server.samples import send
from tests.server.test_precision_rest import BAD, described, rows

HTML = {"Accept": "text/html"}


@pytest.fixture
def run(client: Client) -> Client:
    client.open_run("r", tensors=described(), recipe={"name": "fp8_current_scaling"})
    send(client, "r", [row | {"tokens": 8192.0} for row in rows()])
    return client


def test_the_price_is_that_of_the_gpu_that_is_named(run: Client) -> None:
    asked = "/api/v1/runs/r/advice"
    assert "H100 SXM stands in" in run.get(asked).json["predicted"]["speed_from"]
    for name in ("l40s", "NVIDIA%20L40S"):
        named = run.get(f"{asked}?gpu={name}").json["predicted"]
        assert "on L40S at" in named["speed_from"]
        assert "stands in" not in named["speed_from"]
    wrong = run.get(f"{asked}?gpu=L40X")
    assert (wrong.status, wrong.json["field"]) == (422, "gpu")
    assert "L40S" in wrong.json["expected"]
    page = run.call("GET", "/runs/r/advice?gpu=l40s&framework=te", headers=HTML).text
    assert "<option selected>L40S</option>" in page
    assert "on L40S at" in page
    odd = run.call("GET", "/runs/r/advice?gpu=L40X", headers=HTML)
    assert (odd.status, "No GPU called L40X is known" in odd.text) == (200, True)


def test_a_value_is_the_mean_of_the_rows_it_names(run: Client) -> None:
    problems = run.get("/api/v1/runs/r/advice").json["problems"]
    found = next(one for one in problems if (one["tensor"], one["what"]) == (BAD, "underflow_pct"))
    assert found["value"] == pytest.approx(33.0)
    assert found["window"] == {
        "first_step": 20,
        "last_step": 99,
        "rows": 64,
    }  # the first 20 steps do not count
    page = run.call("GET", "/runs/r/advice", headers=HTML).text
    assert "64 rows, 20 to 99" in page
