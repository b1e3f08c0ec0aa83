"""Batches and engines for the tests."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from floatscope.protocol import strict_json
from floatscope.protocol.batch import Batch, Float64, Int64
from floatscope.protocol.json_rows import batch_from_rows, rows_from_batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.rule_settings import RuleSettings
from floatscope_server.body import unpack
from floatscope_server.ingest import Receipt
from floatscope_server.services import Services
from tests.server.live import Client

TENSORS = ("blocks.0.attn.qkv/input", "blocks.0.attn.qkv/weight", "blocks.0.attn.qkv/grad_output")
TABLE: dict[str, dict[str, Any]] = {
    name: {"format": "e5m2" if "grad" in name else "e4m3", "call_order": 0} for name in TENSORS
}


def rows(first: int, count: int, *, seed: int = 0, every: int = 1) -> list[dict[str, Any]]:
    """Log objects with every kind of value (NaN, infinities, missing, 0) in scalars and statistics."""
    rng = np.random.default_rng(seed + first)
    odd = [math.nan, math.inf, -math.inf, 0.0]
    out = []
    for step in range(first, first + count * every, every):
        loss = float(rng.normal(3, 0.1))
        row: dict[str, Any] = {"step": step, "time": 1.7e9 + step, "loss": loss, "lr": 3e-4}
        if rng.random() < 0.2:
            row["loss"] = odd[int(rng.integers(4))]
        if rng.random() < 0.5:
            row["grad_norm"] = float(rng.random())
        if rng.random() < 0.9:
            row["tensors"] = {
                name: {"amax": float(np.float32(rng.random())), "scale": 128.0} for name in TENSORS
            }
            if rng.random() < 0.3:
                row["tensors"][TENSORS[1]] = {"amax": odd[int(rng.integers(4))]}
            if rng.random() < 0.3:
                del row["tensors"][TENSORS[0]]
        out.append(row)
    return out


def batch(first: int, count: int, *, seed: int = 0) -> Batch:
    return batch_from_rows(rows(first, count, seed=seed))


def body(steps: Sequence[Mapping[str, Any]]) -> bytes:
    """The JSON body of a batch."""
    return strict_json.dumps({"steps": list(steps)}).encode()


def lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as text that is equal exactly when the rows are, NaN included, whatever the order of keys."""
    return [json.dumps(strict_json.plain(dict(row)), sort_keys=True) for row in found]


def as_stored(steps: Sequence[Mapping[str, Any]], *, rank: int = 0, segment: int = 0) -> list[str]:
    """What an export must give back for rows that were sent (numbers of tensors are float32)."""
    return lines(list(rows_from_batch(batch_from_rows(list(steps)), rank=rank, segment=segment)))


def send(
    client: Client, run_id: str, steps: Sequence[Mapping[str, Any]], *, size: int = 8, seq: int = 0
) -> int:
    """Sends steps in batches; returns the next seq."""
    for at in range(0, len(steps), size):
        answer = client.put(run_id, seq, body(steps[at : at + size]))
        assert answer.status == 200, answer.text
        seq += 1
    return seq


def ingest(services: Services, run_id: str, seq: int, content: bytes, *, rank: int = 0) -> Receipt:
    """Stores a JSON body without HTTP."""
    return services.ingest.put(
        run_id, rank=rank, seq=seq, content_type="application/json", body=unpack(content, None)
    )


def finding(**changes: Any) -> dict[str, Any]:
    """A finding as the engine makes them."""
    return {
        "id": "f1",
        "state": "raised",
        "replaced_by": None,
        "family": "scale_calibration_blowup",
        "cause": "stale_scale_saturation",
        "kind": None,
        "symptom": "overflow",
        "severity": "critical",
        "confidence": 0.93,
        "onset_step": 4,
        "onset_window": [4, 5],
        "detected_step": 6,
        "resolved_step": None,
        "rank": 0,
        "layer": "blocks.0.attn.qkv",
        "tensor": "blocks.0.attn.qkv/input",
        "order": "forward",
        "affected_tensors": 14,
        "summary": "The scale stands still while amax grows; 4.1 % of the values clip.",
        "evidence": [
            {
                "signal": "overflow_pct",
                "tensor": "blocks.0.attn.qkv/input",
                "step": 6,
                "value": 4.1,
                "expected": "< 0.5",
            }
        ],
        "alternatives": [
            {"cause": "activation_outlier_growth", "confidence": 0.04, "against": "growth within 3 steps"}
        ],
        "remedy": {
            "text": "Roll back to step 4. Use current scaling.",
            "settings": {"transformer_engine": "Float8CurrentScaling()"},
        },
        "decisive_test": "Run one step with current scaling.",
        "rule": "FS201",
        **changes,
    }


def verdict(findings: Sequence[Mapping[str, Any]], *, last_step: int | None = None) -> dict[str, Any]:
    standing = [f.get("severity") for f in findings if f.get("state") not in ("recovered", "replaced")]
    status = next((s for s in ("critical", "warning") if s in standing), "watch" if standing else "healthy")
    return {
        "schema": "floatscope.verdict/1",
        "source": {"path": None, "format": "floatscope", "runs": 1, "last_step": last_step, "notes": []},
        "status": status,
        "summary": str(findings[0].get("summary")) if findings else "No fault found.",
        "last_clean_step": None,
        "findings": [dict(f) for f in findings],
        "not_checked": [],
    }


@dataclass
class _Said:
    body: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return self.body


class ScriptedEngine:
    """Says what a script says after the last step fed; fails where the script raises."""

    def __init__(self, script: Callable[[int | None], Sequence[Mapping[str, Any]]], fed: list[int]) -> None:
        self._script = script
        self._fed = fed

    def feed(self, batch: Batch, rank: int = 0, segment: int | None = None) -> None:
        self._script(int(batch.step[-1]) if len(batch) else None)
        self._fed.extend(batch.step.tolist())

    def feed_baseline(
        self, step: Int64, loss: Float64, data_id: Float64 | None = None, lr: Float64 | None = None
    ) -> None:
        pass

    def update_run(self, run: RunInfo) -> None:
        pass

    def finish(self, status: str | None = None, reason: str | None = None) -> None:
        pass

    def use(self, settings: RuleSettings) -> None:
        pass

    def verdict(self, *, live: bool = False) -> _Said:
        last = self._fed[-1] if self._fed else None
        return _Said(verdict(self._script(last), last_step=last))

    def state(self) -> bytes:
        return json.dumps(self._fed).encode()


@dataclass(frozen=True)
class Scripted:
    """Makes scripted engines, in place of the class ``Engine``."""

    script: Callable[[int | None], Sequence[Mapping[str, Any]]]

    def __call__(self, run: RunInfo, *, run_key: str | None = None) -> ScriptedEngine:
        return ScriptedEngine(self.script, [])

    def restore(self, run: RunInfo, state: bytes) -> ScriptedEngine:
        return ScriptedEngine(self.script, json.loads(state))


NETWORK = tuple(f"blocks.{i}.mlp.fc1/{role}" for i in range(3) for role in ("input", "weight", "grad_output"))


def faulty_run(count: int, *, fault_at: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Description and rows of an FP8 run in which the scale of one input stops following its amax."""
    rng = np.random.default_rng(0)
    table = {
        n: {"format": "e5m2" if "grad" in n else "e4m3", "call_order": int(n.split(".")[1])} for n in NETWORK
    }
    recipe = {
        "name": "fp8_delayed_scaling",
        "amax_history_len": 16,
        "amax_compute_algo": "max",
        "margin": 0,
    }
    steps = []
    for step in range(count):
        late = max(step - fault_at + 1, 0)
        tensors: dict[str, Any] = {}
        for name in NETWORK:
            amax = 2.0 + float(rng.normal(0, 0.1))
            grown = late if name == NETWORK[3] else 0
            tensors[name] = {
                "amax": amax * 1.3 ** min(grown, 60),
                "scale": 128.0,
                "overflow_pct": min(60.0, 0.5 * grown),
                "nan_count": 0.0,
            }
        loss = float(4 - 0.001 * step + rng.normal(0, 0.02))
        steps.append({"step": step, "loss": loss, "grad_norm": 1.0, "lr": 1e-3, "tensors": tensors})
    return {"name": "faulty", "recipe": recipe, "tensors": table}, steps
