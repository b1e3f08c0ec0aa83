"""Runs with spikes of the loss or slow steps, for tests of what is set for rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from floatscope.protocol.runinfo import RunInfo
from floatscope_server.app import create_app
from floatscope_server.database import Database
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from tests.diagnostics.cases.bad_batch import FAULT, garbled, very_hard
from tests.diagnostics.cases.stall import throttled
from tests.diagnostics.synthetic import Run
from tests.server.live import Client
from tests.server.samples import body, ingest, send

SPIKE = "FS411"
STALL = "FS502"
ONSET = FAULT
KINDS: dict[str, Callable[..., None] | None] = {
    "garbled": garbled,
    "hard": very_hard,
    "throttled": throttled,
    "clean": None,
}
"""An alarm of FS411 that is over, a note of it, an alarm of FS502 that goes on, and nothing."""


def services_on(database: Database, settings: Settings) -> Services:
    found: Services = create_app(settings, database=database).state.services
    return found


def rows_of(kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    run = Run(steps=44, after=KINDS[kind])
    return run.info(), run.rows()


def trained(services: Services, run_id: str, kind: str, *, project: str = "p", ended: bool = False) -> None:
    """A run whose steps have arrived."""
    described, rows = rows_of(kind)
    info = RunInfo.from_json({**described, "name": run_id, "project": project})
    services.lifecycle.open(run_id, info)
    for seq, at in enumerate(range(0, len(rows), 16)):
        ingest(services, run_id, seq, body(rows[at : at + 16]))
    if ended:
        services.lifecycle.finish(run_id, status="finished", reason=None)


def trained_over_http(client: Client, run_id: str, kind: str, *, project: str = "p") -> None:
    described, rows = rows_of(kind)
    assert client.open_run(run_id, **{**described, "name": run_id, "project": project}).status == 201
    send(client, run_id, rows, size=16)
