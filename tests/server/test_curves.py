"""The short curve of the loss: every step of a short run, some of a long one; gaps and NaN are kept."""

from __future__ import annotations

import math
from typing import Any

import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import curves
from floatscope_server.app import create_app
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import runs
from tests.server.samples import Scripted, body, ingest


def curve(
    settings: Settings, losses: list[tuple[int, Any]], *, points: int
) -> list[tuple[int, float | None]]:
    services: Services = create_app(settings, engines=Scripted(lambda _last: [])).state.services
    services.lifecycle.open("r", RunInfo())
    for seq, at in enumerate(range(0, len(losses), 4)):
        part = [
            {"step": step} | ({} if loss is None else {"loss": loss}) for step, loss in losses[at : at + 4]
        ]
        ingest(services, "r", seq, body(part))
    with services.database.read() as c:
        return curves.loss_curve(c, runs.get(c, "r").id, 0, points=points)


def test_a_short_run_shows_every_step(settings: Settings) -> None:
    assert curve(settings, [(0, 3.0), (1, None), (2, 1.0)], points=60) == [(0, 3.0), (2, 1.0)]


def test_stretches_with_a_gap_or_a_nan_show_it(settings: Settings) -> None:
    losses = [(step, float(step)) for step in range(40) if not 10 <= step < 20]
    losses[25] = (35, math.nan)
    found = curve(settings, losses, points=8)
    assert [step for step, _ in found] == [0, 5, 10, 15, 20, 25, 30, 35]
    assert [value for _, value in found[:7]] == [4, 9, None, None, 24, 29, 34]
    assert math.isnan(found[7][1] or 0.0)


def test_a_long_run_shows_evenly_spaced_batches(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "READ_WHOLE_BATCHES", 4)
    found = curve(settings, [(step, float(step)) for step in range(80)], points=5)
    assert len(found) <= 5 + 1
    assert found[-1] == (76, 79.0)


def test_nothing_yet(settings: Settings) -> None:
    assert curve(settings, [], points=5) == []
