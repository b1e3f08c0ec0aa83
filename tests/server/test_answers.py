"""What a training loop learns from the answers to its batches: the verdict in short, and where to look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from floatscope.protocol.closer_look import (
    LEAST_LAYERS,
    MOST_LAYERS,
    NEIGHBOURS,
    STEPS,
    layers_in_order,
    suspects,
)
from floatscope.protocol.judgement import MOST_FINDINGS, Judgement
from floatscope.schedule import MOST_SUSPECTS
from tests.server.live import Client
from tests.server.samples import Scripted, body, finding, rows

Script = Callable[[int | None], Sequence[Mapping[str, Any]]]
LAYERS = tuple(f"blocks.{i}.mlp.fc{k}" for i in range(60) for k in (1, 2))


def broken_run(count: int, *, fault_at: int) -> list[dict[str, Any]]:
    """Rows of a run in which a layer gives NaN from a step on."""
    rng = np.random.default_rng(0)
    out = []
    for step in range(count):
        bad = step >= fault_at
        tensors = {
            f"l{n}/input": {"amax": 3 + rng.normal(0, 0.1), "nan_count": float(bad and n >= 2)}
            for n in range(4)
        }
        loss = "NaN" if bad else 3 - 0.001 * step + rng.normal(0, 0.01)
        grad_norm = 1 + rng.normal(0, 0.02)
        out.append({"step": step, "loss": loss, "grad_norm": grad_norm, "tensors": tensors})
    return out


def fits(schema: Mapping[str, Any], value: Any) -> None:
    """Checks a value against the keywords of JSON Schema that the answers' description uses."""
    known = {"type", "properties", "required", "items", "maxItems", "minimum", "maximum", "enum"}
    assert not schema.keys() - known - {"description", "additionalProperties"}
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(type(value) in ((int, float) if n == "number" else (kinds[n],)) for n in named), value
    if "enum" in schema:
        assert value in schema["enum"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if isinstance(value, list):
        assert len(value) <= schema.get("maxItems", len(value))
        for item in value:
            fits(schema.get("items", {}), item)
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= value.keys()
        if "properties" in schema:
            assert value.keys() <= schema["properties"].keys(), "every field is described"
        for name, item in value.items():
            fits(schema.get("properties", {}).get(name, {}), item)


def answer_schema(client: Client) -> Mapping[str, Any]:
    document = client.get("/openapi.json").json
    put = document["paths"]["/api/v1/runs/{run_id}/ranks/{rank}/batches/{seq}"]["put"]
    schema = put["responses"]["200"]["content"]["application/json"]["schema"]
    found: Mapping[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def test_an_answer_carries_the_verdict_in_short_and_is_as_described(serve: Any) -> None:
    """The real diagnosis finds the fault in the very batch that shows it, and the answer says so."""
    client = serve()
    schema = answer_schema(client)
    steps = broken_run(84, fault_at=62)
    client.open_run("r")
    told: list[Judgement] = []
    for seq, at in enumerate(range(0, 84, 4)):
        answer = client.put("r", seq, body(steps[at : at + 4])).json
        fits(schema, answer)
        judgement = Judgement.from_json(answer["verdict"])
        assert judgement is not None
        assert judgement.judged_step == at + 3
        told.append(judgement)
    assert [j.status for j in told[:15]] == ["healthy"] * 15
    assert told[15].status == "critical"
    assert (told[-1].findings[0].family, told[-1].findings[0].onset_step) == ("kernel", 62)
    assert told[-1].last_clean_step == 61
    assert told[-1].findings[0].remedy
    whole = client.get("/api/v1/runs/r/verdict").json
    assert told[-1].summary == whole["summary"]
    assert Judgement.of_verdict(whole).findings == told[-1].findings


def test_a_repeat_has_no_verdict(serve: Any) -> None:
    client = serve()
    client.open_run("r")
    assert "verdict" in client.put("r", 0, body(rows(0, 2))).json
    again = client.put("r", 0, body(rows(0, 2)))
    assert again.status == 200
    assert again.json == {"expected_seq": 1, "segment": 0, "settings": {}}


def test_without_a_diagnosis_there_is_no_verdict(serve: Any) -> None:
    client = serve({"diagnose": False})
    client.open_run("r")
    assert client.put("r", 0, body(rows(0, 2))).json == {"expected_seq": 1, "segment": 0, "settings": {}}


def test_a_diagnosis_that_fails_says_nothing(serve: Any) -> None:
    def script(last: int | None) -> Sequence[Mapping[str, Any]]:
        raise ZeroDivisionError("a bug in a rule")

    client = serve(engines=Scripted(script))
    client.open_run("r")
    answer = client.put("r", 0, body(rows(0, 2)))
    assert answer.status == 200
    assert "verdict" not in answer.json


def test_an_answer_is_bounded_whatever_is_found(serve: Any) -> None:
    """Hundreds of findings with endless texts: the agent takes at most 1 MiB, this stays far below."""
    endless = "\u20ac" * 50_000

    def script(_last: int | None) -> Sequence[Mapping[str, Any]]:
        names = {"layer": "l" * 1024, "tensor": "l" * 1018 + "/input"}
        return [
            finding(id=str(n), summary=endless, remedy={"text": endless, "settings": {}}, **names)
            for n in range(300)
        ]

    client = serve(engines=Scripted(script))
    client.open_run("r")
    answer = client.put("r", 0, body(rows(0, 2)))
    assert answer.status == 200
    assert len(answer.content) < 128 * 1024
    assert len(answer.json["verdict"]["findings"]) == MOST_FINDINGS


def test_each_rank_hears_its_own_segment_and_what_all_have_sent(serve: Any) -> None:
    """A rank that lags holds back what counts as judged, until it is 64 steps behind."""
    client = serve()
    client.open_run("r")

    def judged(seq: int, rank: int, first: int, count: int) -> tuple[int, int]:
        verdict = client.put("r", seq, body(rows(first, count)), rank=rank).json["verdict"]
        return verdict["judged_step"], verdict["segment"]

    assert judged(0, 0, 0, 10) == (9, 0)
    assert judged(0, 1, 0, 4) == (3, 0)
    assert judged(1, 0, 10, 90) == (35, 0)  # 99 - 64
    assert judged(2, 0, 40, 10) == (39, 1)  # gone back, and rank 1 has not: nothing from there on is known
    assert judged(1, 1, 4, 96) == (39, 0)
    assert judged(2, 1, 40, 5) == (44, 1)
    assert judged(3, 0, 50, 5) == (44, 1)


def test_what_was_trained_again_is_marked(serve: Any) -> None:
    """Once the run has gone back to before a fault, the fault no longer counts for the steps trained anew."""
    client = serve()
    client.open_run("r")
    for seq, at in enumerate(range(0, 84, 12)):
        said = client.put("r", seq, body(broken_run(84, fault_at=62)[at : at + 12])).json["verdict"]
    assert (said["last_clean_step"], said["segment"]) == (61, 0)
    assert not said["findings"][0]["rolled_back"]
    mended = broken_run(84, fault_at=10_000)
    said = client.put("r", 7, body(mended[50:60])).json["verdict"]
    assert (said["judged_step"], said["last_clean_step"], said["segment"]) == (59, 59, 1)
    assert said["findings"][0]["rolled_back"]
    said = client.put("r", 8, body(mended[60:80])).json["verdict"]
    assert said["last_clean_step"] == 79
    assert client.get("/api/v1/runs/r").json["health"] == "critical", "the run's own record keeps it"


def test_a_run_that_went_back_to_after_the_fault_still_carries_it(serve: Any) -> None:
    client = serve()
    client.open_run("r")
    for seq, at in enumerate(range(0, 84, 12)):
        client.put("r", seq, body(broken_run(84, fault_at=62)[at : at + 12]))
    said = client.put("r", 7, body(broken_run(84, fault_at=62)[70:80])).json["verdict"]
    assert (said["segment"], said["last_clean_step"]) == (1, 61)
    assert not any(f["rolled_back"] for f in said["findings"] if f["onset_step"] == 62)


def table(count: int) -> dict[str, dict[str, Any]]:
    return {
        f"{layer}/{role}": {"call_order": at}
        for at, layer in enumerate(LAYERS[:count])
        for role in ("input", "weight", "grad_output")
    }


def asked(serve: Any, layers: int, *findings: dict[str, Any]) -> dict[str, Any]:
    client = serve(engines=Scripted(lambda last: findings if last is not None else ()))
    client.open_run("r", tensors=table(layers))
    found: dict[str, Any] = client.put("r", 0, body(rows(0, 8))).json["settings"]
    return found


def test_the_closer_look_is_at_the_layers_a_finding_names(serve: Any) -> None:
    """The suspect, those whose tensors are evidence, and enough neighbours for a class to have a middle."""
    suspect = LAYERS[40]
    found = asked(
        serve, 120, finding(layer=suspect, affected_tensors=3, evidence=[{"tensor": LAYERS[60] + "/input"}])
    )
    assert (found["stats_every"], found["until_step"]) == (1, 206)
    assert set(found["layers"]) >= {*LAYERS[38:43], *LAYERS[58:63]}
    assert LEAST_LAYERS <= len(found["layers"]) <= MOST_LAYERS <= MOST_SUSPECTS
    assert found["layers"] == sorted(found["layers"], key=LAYERS.index)


@pytest.mark.parametrize(
    "whole_run",
    [
        {"layer": None, "tensor": None},
        {"layer": LAYERS[3], "affected_tensors": 300},
        {
            "layer": LAYERS[3],
            "affected_tensors": 1,
            "log_next": [{"signal": "sqnr_db", "tensors": "*/input"}],
        },
    ],
)
def test_a_finding_about_the_whole_run_asks_for_everything(serve: Any, whole_run: dict[str, Any]) -> None:
    both = (finding(id="a", layer=LAYERS[9], affected_tensors=1), finding(id="b", **whole_run))
    assert "layers" not in asked(serve, 120, *both)


def test_a_small_model_is_looked_at_as_a_whole(serve: Any) -> None:
    assert "layers" not in asked(serve, LEAST_LAYERS, finding(layer=LAYERS[3], affected_tensors=1))


def test_layers_that_rules_wish_for_come_along() -> None:
    """``log_next`` names them as the verdict does: a name, a range of numbers, a range with what follows."""

    def chosen(span: str) -> list[str]:
        wish = {"signal": "sqnr_db", "tensors": f"{span}/input|weight"}
        found = suspects(
            [finding(layer=LAYERS[0], affected_tensors=1, evidence=[], log_next=[wish])],
            order=LAYERS,
            tensors=360,
        )
        assert found is not None
        return found

    assert set(LAYERS[60:66]) <= set(chosen("blocks.30-32.mlp.fc1")) | set(LAYERS[61:66:2])
    assert set(LAYERS[60:66]) <= set(chosen("blocks.30-32.*"))
    assert LAYERS[100] in chosen(LAYERS[100])
    assert set(chosen("no such layer")) == set(chosen(LAYERS[0]))


def test_too_many_suspects_means_all() -> None:
    many = [
        finding(id=str(n), layer=LAYERS[n], affected_tensors=1, evidence=[]) for n in range(MOST_LAYERS + 1)
    ]
    assert suspects(many, order=LAYERS, tensors=360) is None
    few = suspects(many[:MOST_LAYERS], order=LAYERS, tensors=360)
    assert few is not None
    assert len(few) == MOST_LAYERS


def test_layers_stand_in_the_order_of_their_calls() -> None:
    tensors: dict[str, dict[str, Any]] = {
        "z/input": {"call_order": 0}, "a/input": {"call_order": 1}, "a/weight": {}, "b/weight": {},
    }  # fmt: skip
    assert layers_in_order(tensors) == ("z", "a", "b")
    assert NEIGHBOURS >= 1
    assert STEPS > 0
