"""The engine's promises: one answer under any chunking, and after a restart."""

from __future__ import annotations

from typing import Any

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine

RUN = RunInfo.from_json(
    {
        "name": "small",
        "recipe": {"name": "fp8_delayed_scaling", "amax_history_len": 4, "amax_compute_algo": "max"},
        "tensors": {"a/input": {"format": "e4m3", "call_order": 0}},
    }
)


def rows(count: int, *, frozen_at: int) -> list[dict[str, Any]]:
    """A run whose only tensor has amax 1, 2, 3, ...; its scale follows the recipe until ``frozen_at``."""
    out = []
    scale = 1.0
    for step in range(count):
        amax = float(step + 1)
        tensors = {"a/input": {"amax": amax, "scale": scale, "nan_count": 0.0}}
        out.append({"step": step, "loss": 2.0, "tensors": tensors})
        if step + 1 < frozen_at:
            scale = 448.0 / amax
    return out


def test_a_healthy_run_has_no_finding() -> None:
    engine = Engine(RUN)
    engine.feed(batch_from_rows(rows(20, frozen_at=99)))
    assert engine.verdict().status == "healthy"
    assert engine.verdict().last_clean_step == 19


def test_a_frozen_scale_is_found_and_the_last_clean_step_named() -> None:
    engine = Engine(RUN)
    engine.feed(batch_from_rows(rows(20, frozen_at=12)))
    verdict = engine.verdict().to_json()
    assert verdict["status"] in ("warning", "critical")
    assert verdict["findings"][0]["cause"] == "scale_state_fault"
    assert verdict["findings"][0]["onset_step"] == 12
    assert verdict["last_clean_step"] == 11


def test_save_and_restore_between_any_two_steps_changes_nothing() -> None:
    whole = Engine(RUN)
    whole.feed(batch_from_rows(rows(20, frozen_at=12)))
    engine = Engine(RUN)
    for row in rows(20, frozen_at=12):
        engine.feed(batch_from_rows([row]))
        engine = Engine.restore(RUN, engine.state())
    assert engine.verdict().to_json() == whole.verdict().to_json()
