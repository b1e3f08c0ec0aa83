"""The container: another user than root, a read-only root file system, no capabilities, no secret inside."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.repo.repository import ROOT, relative, tracked

COMPOSE = tracked("docker-compose*.yml")
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|WEBHOOK|ACCESS_KEY", re.I)


def dockerfile() -> list[tuple[str, str]]:
    """Instructions and their arguments, with continued lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    found = []
    for line in lines:
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.append((name.upper(), rest.strip()))
    return found


def services() -> list[tuple[str, str, dict[str, Any]]]:
    found = []
    for path in COMPOSE:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            found.append((relative(path), name, service))
    return found


SERVICES = services()
OURS = [item for item in SERVICES if "build" in item[2]]


def ids(items: list[tuple[str, str, dict[str, Any]]]) -> list[str]:
    return [f"{path}:{name}" for path, name, _service in items]


def test_the_last_stage_runs_as_a_user_by_number() -> None:
    last = [index for index, (name, _) in enumerate(dockerfile()) if name == "FROM"][-1]
    stage = dockerfile()[last:]
    users = [argument for name, argument in stage if name == "USER"]
    assert users
    assert re.fullmatch(r"[1-9]\d{3,}", users[-1])
    after = [name for name, _ in stage[[name for name, _ in stage].index("USER") :]]
    assert not {"RUN", "COPY", "ADD"} & set(after)


def test_the_image_holds_no_secret_and_fetches_nothing_unchecked() -> None:
    for name, argument in dockerfile():
        assert name != "ADD", argument
        assert "curl " not in argument
        assert "wget " not in argument
        assert "sudo" not in argument
        if name in ("ENV", "ARG"):
            assert not SECRET.search(argument), argument


def test_only_what_the_product_is_made_of_is_copied() -> None:
    sources = [argument.split()[:-1] for name, argument in dockerfile() if name == "COPY"]
    assert {".", "./"}.isdisjoint({part for group in sources for part in group})


@pytest.mark.parametrize("item", SERVICES, ids=ids(SERVICES))
def test_no_service_gains_rights_or_holds_a_secret(item: tuple[str, str, dict[str, Any]]) -> None:
    _path, _name, service = item
    assert "no-new-privileges:true" in service.get("security_opt", [])
    assert not service.get("privileged", False)
    assert service.get("network_mode") != "host"
    assert service.get("pid") != "host"
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))
    for port in service.get("ports", []):
        assert str(port).startswith("127.0.0.1:"), port
    environment = service.get("environment", {})
    pairs = environment.items() if isinstance(environment, dict) else (e.split("=", 1) for e in environment)
    for key, value in pairs:
        if SECRET.search(key):
            assert str(value).startswith("${"), key


@pytest.mark.parametrize("item", OURS, ids=ids(OURS))
def test_our_services_have_no_capability_and_a_read_only_root(item: tuple[str, str, dict[str, Any]]) -> None:
    _path, _name, service = item
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["read_only"] is True
    assert "/tmp" in str(service["tmpfs"])
    assert "user" not in service
