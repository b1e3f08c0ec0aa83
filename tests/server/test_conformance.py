"""What the OpenAPI document says is what the server does: requests made from it, right and wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from floatscope_server import scopes
from floatscope_server.openapi.answers import ANSWERS, API, EVENT_STREAM
from floatscope_server.settings import Settings
from tests.server.live import TOKEN, Client, in_process
from tests.server.samples import TABLE, TENSORS, Scripted, body, finding, rows

CASES = 6  # of each operation and kind
SEED = 23
HOOK = {"kind": "webhook", "name": "hook", "url": "https://127.0.0.1:1024/x"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = {key for key, answer in ANSWERS.items() if answer.media == EVENT_STREAM}
OPERATIONS = sorted(ANSWERS.keys() - ENDLESS)


class Known:
    """Values that lead to something that is there; ``of`` has those of an address."""

    def __init__(self, client: Client) -> None:
        self.client = client
        client.open_run("r", project="p", tensors=TABLE)
        client.put("r", 0, body(rows(0, 4)))
        client.put("r", 1, body(rows(4, 10)))
        silence = {"run": "r", "ends": "2099-01-01T00:00:00Z"}
        self.values: dict[str, Any] = {
            "run_id": "r",
            "rank": 0,
            "seq": 2,
            "alert_id": "late",
            "code": "FS201",
            "channel_id": self.made("channels", HOOK),
            "silence_id": self.made("silences", silence),
            "backtest_id": self.made("rules/FS201/backtest", {"project": "p"}),
            "token_id": self.made("tokens", {"name": "t", "scopes": ["read"]}),
            "number": 1,
        }

    def made(self, path: str, content: dict[str, Any]) -> str:
        answer = self.client.call("POST", f"{API}/{path}", content)
        assert answer.status in (201, 202), answer.text
        return str(answer.json["id"])

    def of(self, method: str, path: str) -> dict[str, Any]:
        if (method, path) == ("DELETE", f"{API}/runs/{{run_id}}"):
            self.client.open_run("doomed")
            return {"run_id": "doomed"}
        if (method, path) == ("DELETE", f"{API}/channels/{{channel_id}}"):
            return {"channel_id": self.made("channels", HOOK)}
        return {name: value for name, value in self.values.items() if f"{{{name}}}" in path}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """A server with one of everything."""

    def script(last: int | None) -> list[dict[str, Any]]:
        return [] if last is None else [finding(id="late")]

    configured = Settings(
        data_dir=tmp_path_factory.mktemp("conformance"),
        token=SecretStr(TOKEN),
        allow_private_webhooks=True,
        sqlite_synchronous="NORMAL",
    )
    with in_process(configured, engines=Scripted(script)) as client:
        yield Known(client)


@pytest.fixture(scope="module")
def schema(known: Known) -> BaseSchema:
    """The document as the server gives it out."""
    url = f"http://127.0.0.1:{known.client.port}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    generation = GenerationConfig(allow_extra_parameters=False, with_security_parameters=False)
    project = ProjectConfig(base_url=url, headers=headers, generation=generation, request_timeout=20)
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    return schemathesis.openapi.from_url(f"{url}/openapi.json", config=config, headers=headers)


def judged(strategy: Any, checks: list[Any]) -> None:
    """Sends what the strategy makes and checks the answers."""

    @seed(SEED)
    @settings(
        max_examples=CASES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def sent(case: Any) -> None:
        case.call_and_validate(checks=checks)

    sent()


def test_every_route_is_described_and_nothing_else(known: Known) -> None:
    document = known.client.get("/openapi.json").json
    operations = {
        (method.upper(), path): operation
        for path, found in document["paths"].items()
        for method, operation in found.items()
    }
    assert operations.keys() == ANSWERS.keys()
    assert len({operation["operationId"] for operation in operations.values()}) == len(operations)
    shapes = document["components"]["schemas"]
    for (method, path), operation in operations.items():
        needs = scopes.needed(method, path)
        roles = [] if needs in (None, scopes.ANY) else [needs]
        is_open = (method, path) in scopes.OPEN
        assert operation.get("security", []) == ([] if is_open else [{"token": roles}, {"session": roles}])
        assert operation["description"]
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)):
        assert name in shapes
    unused = {name for name in shapes if f'"#/components/schemas/{name}"' not in json.dumps(document)}
    assert unused == set()


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_right_requests(known: Known, schema: BaseSchema, method: str, path: str) -> None:
    operation = schema[path][method.lower()]
    wanted = {"tensor": TENSORS[0], "stat": "amax"}
    if path == f"{API}/compare":
        wanted = {"run": known.values["run_id"], "baseline": known.values["run_id"]}
    query = {name: value for name, value in wanted.items() if _takes(operation, name)}
    judged(operation.as_strategy(), CHECKS)
    judged(operation.as_strategy(path_parameters=known.of(method, path), query=query or None), CHECKS)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_wrong_requests(known: Known, schema: BaseSchema, method: str, path: str) -> None:
    operation = schema[path][method.lower()]
    if not any(True for _ in operation.iter_parameters()) and not list(operation.body):
        judged(operation.as_strategy(), [*CHECKS, ignored_auth])
        return
    judged(operation.as_strategy(GenerationMode.NEGATIVE), [*CHECKS, negative_data_rejection, ignored_auth])


def _takes(operation: Any, name: str) -> bool:
    return any(parameter.name == name for parameter in operation.query)
