"""What other formats would do and which layers should change, over HTTP: the engine's answers for stored
runs, steps and pages of tensors, and what is refused.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from floatscope_diagnostics.whatif.grids import variants
from floatscope_server import advising
from tests.server.live import Client
from tests.server.samples import send

STEPS = 120
LAYERS = ("blocks.0.fc1", "blocks.0.fc2")
BAD = "blocks.0.fc2/grad_output"


def counts(size: np.ndarray[Any, Any]) -> list[int]:
    bins = np.clip(np.frexp(size[size > 0])[1] - 1 + 40, 0, 63)
    return [int(n) for n in np.bincount(bins, minlength=64)]


def rows(*, sampled: tuple[int, ...] = (40, 100), bad: bool = True) -> list[dict[str, Any]]:
    """Two layers; the gradients of the second lose a third of their values from step 10 on."""
    rng = np.random.default_rng(1)
    size = np.abs(rng.normal(size=8_000))
    found = []
    for step in range(STEPS):
        tensors: dict[str, Any] = {}
        for layer in LAYERS:
            for role, form_max in (("input", 448.0), ("weight", 448.0), ("grad_output", 57344.0)):
                name = f"{layer}/{role}"
                sick = bad and name == BAD and step >= 10
                stats: dict[str, Any] = {
                    "amax": float(size.max()),
                    "scale": form_max / float(size.max()),
                    "underflow_pct": 33.0 if sick else 0.01,
                    "overflow_pct": 0.0,
                    "sqnr_db": 8.0 if sick else 25.6 if role == "grad_output" else 31.5,
                }
                if step in sampled:
                    stats["hist_log2"] = counts(size)
                tensors[name] = stats
        found.append({"step": step, "loss": 2.0 - step / 1000, "tensors": tensors})
    return found


def described() -> dict[str, Any]:
    return {
        f"{layer}/{role}": {
            "format": "e5m2" if role == "grad_output" else "e4m3",
            "shape": [64, 125],
            "call_order": at,
        }
        for at, layer in enumerate(LAYERS)
        for role in ("input", "weight", "grad_output")
    }


@pytest.fixture
def run(client: Client) -> Client:
    client.open_run("r", tensors=described(), recipe={"name": "fp8_current_scaling"})
    send(client, "r", rows())
    return client


def test_a_tensor_is_predicted_from_the_nearest_histogram(run: Client) -> None:
    found = run.get(f"/api/v1/runs/r/what-if?tensor={LAYERS[0]}/input&step=60").json
    (one,) = found["tensors"]
    assert (found["schema"], found["step"], found["asked_step"]) == ("floatscope.what_if/1", 40, 60)
    assert {item["key"] for item in one["variants"]} == {variant.key for variant in variants()}
    by_key = {item["key"]: item for item in one["variants"]}
    assert by_key["e4m3_tensor"]["sqnr_db"] == pytest.approx(31.5, abs=0.2)
    assert by_key["bf16"]["sqnr_db"] == pytest.approx(55.5, abs=0.5)
    assert one["in_use"]["sqnr_db"] == pytest.approx(31.5)
    later = run.get(f"/api/v1/runs/r/what-if?tensor={LAYERS[0]}/input&step=75").json
    assert later["step"] == 100, "a histogram after the step is nearer than one before it"
    assert run.get(f"/api/v1/runs/r/what-if?tensor={LAYERS[0]}/input").json["step"] == 100


def test_layers_roles_and_the_whole_run_come_in_pages(run: Client) -> None:
    asked = "/api/v1/runs/r/what-if?formats=e4m3_tensor,nvfp4"
    layer = run.get(f"{asked}&layer={LAYERS[1]}").json
    assert [one["tensor"].rpartition("/")[2] for one in layer["tensors"]] == [
        "input",
        "weight",
        "grad_output",
    ]
    assert [item["key"] for item in layer["tensors"][0]["variants"]] == ["e4m3_tensor", "nvfp4"]
    seen, cursor = [], ""
    while True:
        page = run.get(f"{asked}&limit=4{cursor}").json
        assert page["total"] == 6
        seen += [one["tensor"] for one in page["tensors"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(seen) == len(set(seen)) == 6
    roles = run.get(f"{asked}&role=weight").json["tensors"]
    assert [one["tensor"] for one in roles] == [f"{layer}/weight" for layer in LAYERS]
    for pattern, found in (
        ("layer=blocks.*.fc?", 6),
        ("tensor=*/weight", 2),
        ("tensor=blocks.*&layer=*.fc1&role=input", 1),
        (f"tensor={LAYERS[0]}/input", 1),
    ):
        assert run.get(f"{asked}&{pattern}").json["total"] == found, pattern
    first = run.get(asked)
    again = run.call("GET", asked, headers={"If-None-Match": first.headers["etag"]})
    assert again.status == 304


WRONG_WHAT_IFS = (
    ("tensor=blocks.0.fc1/inptu", 404, "tensor", "blocks.0.fc1/input"),
    ("layer=blocks.0", 404, "layer", "blocks.0.fc1"),
    ("role=wieght", 404, "role", "weight"),
    ("layer=blocks.0.fc1&role=output", 404, "role", "grad_output, input, weight"),
    ("formats=e4m3_tensor,fp7", 422, "formats", "e4m3_tensor"),
    ("step=-1", 422, "step", ""),
    ("limit=101", 422, "limit", ""),
    ("cursor=%21", 422, "cursor", ""),
    ("rank=x", 422, "rank", ""),
    ("tensor=blocks.9.*", 404, "tensor", "pattern with * and ?"),
    ("layer=blocks.?.mlp.*", 404, "layer", "pattern with * and ?"),
    ("tensor=" + "*a" * 17, 422, "tensor", "16 of * and ?"),
    ("layer=*" + "a" * 256, 422, "layer", "256 letters"),
    ("format=nvfp4", 422, "format", "did you mean formats"),
    ("zzz=1", 422, "zzz", "cursor, formats, layer, limit, rank, role, step, tensor"),
)
WRONG_ADVICES = (
    ("baseline=gone", 404, "run_id"),
    ("framework=jax", 422, "framework"),
    ("recipes=bf16,int4", 422, "recipes"),
    ("max_layers=0", 422, "max_layers"),
)


def test_what_cannot_be_asked_says_what_can(run: Client) -> None:
    for query, status, field, hint in WRONG_WHAT_IFS:
        answer = run.get(f"/api/v1/runs/r/what-if?{query}")
        assert (answer.status, answer.json["field"]) == (status, field), query
        assert hint in answer.json.get("hint", "") + answer.json.get("expected", ""), query
    for query, status, field in WRONG_ADVICES:
        answer = run.get(f"/api/v1/runs/r/advice?{query}")
        assert (answer.status, answer.json["field"]) == (status, field), query
    assert run.get("/api/v1/runs/gone/what-if").status == 404
    assert run.get("/api/v1/runs/gone/advice").status == 404


def test_a_run_without_histograms_is_answered_with_why(client: Client) -> None:
    client.open_run("plain", tensors=described())
    send(client, "plain", rows(sampled=()))
    found = client.get("/api/v1/runs/plain/what-if").json
    assert found["tensors"] == []
    assert found["step"] is None
    assert "no histograms" in found["why_not"]
    assert found["why_not"] in found["notes"]
    assert len(found["without"]) == 6
    for part in ("limit=2", "role=input", f"layer={LAYERS[0]}"):
        why = client.get(f"/api/v1/runs/plain/what-if?{part}").json["why_not"]
        assert why.startswith("No histogram of these tensors"), part
    client.open_run("empty")
    assert client.get("/api/v1/runs/empty/what-if").json["total"] == 0
    page = client.call("GET", f"/runs/plain/tensors/{LAYERS[0]}%2Finput", headers={"Accept": "text/html"})
    assert "How well its format keeps this tensor" in page.text
    assert "No histogram of this tensor was sampled" in page.text


def test_the_tensor_page_predicts_for_its_step(run: Client) -> None:
    page = run.call("GET", f"/runs/r/tensors/{LAYERS[0]}%2Finput?at=75", headers={"Accept": "text/html"}).text
    assert "What if this tensor were in another format?" in page
    assert "Predicted from the histogram of step 100, the nearest to 75" in page
    assert 'class="now"' in page
    assert "NVFP4" in page


def test_the_layer_that_loses_its_gradients_is_advised_to_change(run: Client) -> None:
    found = run.get("/api/v1/runs/r/advice").json
    assert (found["schema"], found["decision"]) == ("floatscope.advice/1", "move_layers")
    assert [item["layer"] for item in found["layers"]] == [LAYERS[1]]
    assert found["problems"][0]["tensor"] == BAD
    assert 10 <= found["problems"][0]["since_step"] <= 40
    assert LAYERS[1] in found["settings"]["torchao"]
    assert found["step_rows"] == {"read": STEPS, "logged": STEPS}
    assert found["baseline"] is None
    page = run.call("GET", "/runs/r/advice", headers={"Accept": "text/html"})
    assert page.status == 200
    assert "Change the precision of 1 layer of 2" in page.text
    assert "<b>Transformer Engine</b>" in page.text
    other = run.call("GET", "/runs/r/advice?framework=torchao", headers={"Accept": "text/html"}).text
    assert "<b>torchao</b>" in other
    odd = run.call("GET", "/runs/r/advice?framework=x", headers={"Accept": "text/html"})
    assert (odd.status, "framework in the address cannot be used" in odd.text) == (200, True)
    assert "Precision advice" in run.call("GET", "/runs/r", headers={"Accept": "text/html"}).text


def test_the_gap_is_taken_to_the_baseline_that_is_named(run: Client) -> None:
    run.open_run("base", tensors=described())
    better = [{**row, "loss": row["loss"] - 0.1} for row in rows(bad=False)]
    send(run, "base", better)
    found = run.get("/api/v1/runs/r/advice?baseline=base").json
    assert found["baseline"] == "base"
    assert found["predicted"]["gap_nats"] == pytest.approx(0.1, abs=1e-6)
    healthy = run.get("/api/v1/runs/base/advice").json
    assert (healthy["decision"], healthy["layers"]) == ("keep_fp8", [])
    run.open_run("other")
    send(run, "other", [{"step": 9_000 + n, "loss": 1.0} for n in range(30)])
    apart = run.get("/api/v1/runs/r/advice?baseline=other").json
    assert apart["predicted"]["gap_nats"] is None
    assert "no_pairs" in [item["code"] for item in apart["not_decided"]]


def test_a_run_with_nothing_to_go_by_is_told_so(client: Client) -> None:
    client.open_run("bare")
    assert client.get("/api/v1/runs/bare/advice").json["decision"] == "cannot_say"
    send(client, "bare", [{"step": n, "loss": 2.0} for n in range(50)])
    found = client.get("/api/v1/runs/bare/advice").json
    assert found["decision"] == "cannot_say"
    assert found["not_decided"]
    page = client.call("GET", "/runs/bare/advice", headers={"Accept": "text/html"})
    assert "No advice can be given for this run yet" in page.text


def test_a_run_with_too_many_tensors_is_told_where_to_ask(
    run: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advising, "MOST_TENSORS", 5)
    found = run.get("/api/v1/runs/r/advice").json
    assert found["decision"] == "cannot_say"
    assert [note["code"] for note in found["not_decided"]] == ["too_many_tensors"]
    assert "6 tensors" in found["sentence"]
    assert "floatscope advise r --server" in run.get("/runs/r/advice").text


def test_a_set_of_recipes_is_one_question_in_any_order() -> None:
    asked = {advising.checked(None, names, None) for names in (("bf16", "current"), ("current", "bf16"))}
    assert asked == {advising.Asked(None, ("current", "bf16"), None)}
    assert advising.checked(None, ("bf16",) * 50, None) == advising.Asked(None, ("bf16",), None)


def test_limits_of_a_decision_are_taken_from_the_address(run: Client) -> None:
    run.open_run("base")
    send(run, "base", [{"step": row["step"], "loss": row["loss"], "step_time_s": 1.0} for row in rows()])
    asked = "/api/v1/compare?run=r&baseline=base"
    go = run.get(f"{asked}&margin=0.05&min_speedup=1.2&price_ratio=1.5&planned_steps=9000").json["go"]
    held = go["limits"]
    assert (held["margin_nats"], held["min_speedup"], held["price_ratio"]) == (0.05, 1.2, 1.5)
    assert held["planned_steps"] == 9000
    assert go["verdict"] == "not_yet"
    named = run.get(f"{asked}&preset=cost-25").json["go"]["limits"]
    assert named["min_saving_pct"] == 25.0
    for query, field in (
        ("margin=x", "margin"),
        ("min_speedup=-1", "min_speedup"),
        ("min_saving=100", "min_saving"),
        ("price_ratio=inf", "price_ratio"),
        ("planned_steps=1.5", "planned_steps"),
        ("preset=none-such", "preset"),
    ):
        answer = run.get(f"{asked}&{query}")
        assert (answer.status, answer.json["field"]) == (422, field), query
        page = run.call("GET", f"/compare?run=r&baseline=base&{query}", headers={"Accept": "text/html"})
        assert page.status == 200
        assert "and is left out" in page.text
    wrong = run.get(f"{asked}&preset=zzz").json
    assert wrong["detail"].startswith("preset: expected one of net-10, throughput-30, ")
    assert wrong["detail"].endswith(", got zzz")
    page = run.call("GET", "/compare?run=r&baseline=base&preset=zzz", headers={"Accept": "text/html"})
    assert "preset=zzz in the address is no preset and is left out. There are net-10, " in page.text
    report = run.call(
        "GET", "/compare/report?run=r&baseline=base&min_speedup=1.2", headers={"Accept": "text/html"}
    )
    assert "at least 1.2\u00d7 the throughput" in report.text
    assert "min_speedup=1.2" in report.text


def test_evaluations_that_both_runs_log_stand_side_by_side(client: Client) -> None:
    for name, score in (("r", 0.51), ("base", 0.525)):
        client.open_run(name)
        kept = [
            {"step": n, "loss": 2.0, **({"eval_accuracy": score} if n % 20 == 0 else {})} for n in range(60)
        ]
        send(client, name, kept)
    page = client.call("GET", "/compare?run=r&baseline=base", headers={"Accept": "text/html"}).text
    assert re.search(r"eval_<wbr>accuracy</td><td class=\"r\">40</td><td class=\"r\">0\.525.*0\.51<", page)
    assert "no difference can be judged" in page
