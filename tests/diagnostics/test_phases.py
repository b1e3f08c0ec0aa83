"""Phases of a run in which levels move by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from floatscope_diagnostics.detectors.phases import Phases
from floatscope_diagnostics.detectors.row import StatRow
from floatscope_diagnostics.episodes import EpisodeLog
from floatscope_diagnostics.frame import SIGNAL_COUNT, UPDATE, bare_frame
from tests.diagnostics.tensor_rows import batch_of, info_of, names_of, signals, stream_of, symptoms

NAMES = names_of(5)
WEIGHTS = np.array([n.endswith("/weight") for n in NAMES])


def rising(updates_log2: np.ndarray, *, scalars: dict[str, float] | None = None) -> list[bool]:
    """Phases.rising row by row, from the size of the updates."""
    from floatscope_diagnostics.columns import Columns

    columns = Columns(info_of(NAMES))
    columns.add(NAMES)
    phases, out = Phases(), []
    for k, value in enumerate(updates_log2.tolist()):
        frame = bare_frame(k, {}, len(NAMES))
        frame.signals[0] = np.full((SIGNAL_COUNT, len(NAMES)), np.nan)
        frame.signals[0, UPDATE, WEIGHTS] = value
        row = StatRow(k, k, 0, frame, 0, scalars or {}, columns, EpisodeLog())
        out.append(phases.rising(row))
    return out


def test_updates_that_grow_row_by_row_are_a_warm_up() -> None:
    rows = np.arange(1, 400)
    rate = np.log2(np.minimum(rows, 150) / 150)
    got = rising(rate + np.random.default_rng(0).normal(0, 0.03, len(rows)))
    assert all(got[15:120])
    assert not any(got[210:])


def test_steady_decaying_or_noisy_updates_are_none() -> None:
    rng = np.random.default_rng(1)
    assert not any(rising(rng.normal(0, 0.1, 600)))
    assert not any(rising(np.linspace(0, -4, 600) + rng.normal(0, 0.1, 600)))


def test_updates_that_leap_are_a_fault_and_no_warm_up() -> None:
    updates = np.zeros(200)
    updates[100:] = np.linspace(6, 0, 100)
    assert not any(rising(updates))


def test_a_rate_that_is_logged_speaks_for_itself() -> None:
    assert not any(rising(np.log2(np.arange(1, 100)), scalars={"lr": 1e-3}))


@pytest.mark.parametrize("factor", [0.1, 2.0])
def test_a_step_of_the_learning_rate_moves_updates_and_is_no_change_of_tensors(factor: float) -> None:
    rows = 160
    rng = np.random.default_rng(2)
    lr = np.where(np.arange(rows) < 80, 1e-3, 1e-3 * factor)
    update = np.where(WEIGHTS, np.exp2(rng.normal(0, 0.05, (rows, len(NAMES)))) * lr[:, None], np.nan)
    stats = {"amax": np.exp2(rng.normal(0, 0.03, update.shape)), "update_ratio": update}
    batch = batch_of(NAMES, stats, scalars={"lr": lr.tolist(), "loss": [2.0] * 10 + [1.9] * (rows - 10)})
    assert not signals(symptoms(stream_of(NAMES), batch)) & {"update_jump", "update_fall", "amax_jump"}


def data_change(scalars: dict[str, list[float]], *, broken: bool = False) -> set[str]:
    """Activations settle three octaves higher at row 60."""
    rows = 120
    x = np.random.default_rng(4).normal(0, 0.1, (rows, len(NAMES)))
    x[60:, [n.endswith("/input") for n in NAMES]] += 3.0
    if broken:
        x[58:, 0] += 3.0
    stream = stream_of(NAMES)
    return signals(symptoms(stream, batch_of(NAMES, {"amax": np.exp2(x)}, scalars=scalars)))


def test_another_source_of_data_begins_a_new_phase() -> None:
    source = [0.0] * 60 + [1.0] * 60
    assert "amax_jump" in data_change({"data_source": [0.0] * 120})
    assert "amax_jump" not in data_change({"data_source": source})
    assert "amax_jump" not in data_change({"domain": source})


def test_levels_are_kept_over_a_change_of_data_while_something_is_wrong() -> None:
    assert "amax_jump" in data_change({"domain": [0.0] * 60 + [1.0] * 60}, broken=True)


def test_another_recipe_begins_a_new_phase() -> None:
    x = np.random.default_rng(5).normal(0, 0.1, (120, len(NAMES)))
    x[60:] += 3.0
    batch = batch_of(NAMES, {"amax": np.exp2(x)})
    stream = stream_of(NAMES)
    stream.feed(batch.rows(0, 60), segment=None)
    stream.recipe_changed()
    stream.feed(batch.rows(60, 120), segment=None)
    assert "amax_jump" not in signals(stream.symptoms())


def test_a_run_that_goes_back_begins_a_new_segment() -> None:
    x = np.random.default_rng(6).normal(0, 0.1, (120, len(NAMES)))
    x[60:] += 3.0
    steps = [*range(1000, 1060), *range(1000, 1060)]
    batch = batch_of(NAMES, {"amax": np.exp2(x)}, steps=steps)
    assert "amax_jump" not in signals(symptoms(stream_of(NAMES), batch))


def test_what_is_remembered_of_phases_survives_a_restart() -> None:
    rate = np.log2(np.arange(1, 60) / 60)
    stream, again = stream_of(NAMES), None
    update = np.where(WEIGHTS, np.exp2(rate)[:, None] * 1e-3, np.nan)
    batch = batch_of(NAMES, {"update_ratio": update}, scalars={"domain": [1.0] * 59})
    stream.feed(batch.rows(0, 30), segment=None)
    again = Phases.load(stream.phases.state())
    assert again.state() == stream.phases.state()
    assert again.source == 1.0
