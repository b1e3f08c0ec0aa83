"""Runs made up for the dashboard's tests: curves, heat map cells, verdicts, and the views made of them.

The numbers are invented but fit together: an FP8 run whose layer 8 clips from step 300 on, and what a server
would answer about it. Everything is seeded, so a picture of it is the same every time.
"""

from __future__ import annotations

import base64
import math
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

from floatscope_dashboards.overview import group, is_live
from floatscope_dashboards.run_facts import RunFacts
from floatscope_dashboards.runs_query import RunsQuery
from floatscope_dashboards.views import Kpi, RunRow, RunsView, RunView

NOW = datetime(2026, 11, 24, 11, 36, 4, tzinfo=timezone.utc)
ONSET = 300
LAST = 419
LAYERS = 12
PARTS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
ORIGIN = "blocks.8.mlp.fc2/input"
HOSTILE = "<script>window.stolen=1</script><img src=x onerror=window.stolen=2>\"'&{{7*7}}"
HEAT_STATS = ("headroom_log2", "overflow_pct", "underflow_pct", "amax", "scale", "rms")
ROLES = ("input", "weight", "grad_output")


def tensor_names() -> list[str]:
    """144 names, sorted by code point as the server sends them."""
    return sorted(
        f"blocks.{layer}.{part}/{role}" for layer in range(LAYERS) for part in PARTS for role in ROLES
    )


def info(**more: Any) -> dict[str, Any]:
    """The run object."""
    tensors = {}
    for name in tensor_names():
        layer, _, role = name.rpartition("/")
        number, part = layer.removeprefix("blocks.").split(".", 1)
        tensors[name] = {
            "format": "e5m2" if role == "grad_output" else "e4m3",
            "call_order": int(number) * len(PARTS) + PARTS.index(part),
        }
    recipe = {
        "name": "fp8_delayed_scaling",
        "amax_history_len": 1024,
        "amax_compute_algo": "max",
        "margin": 0,
    }
    return {"name": "llama-7b-e4m3-r3", "recipe": recipe, "tensors": tensors, "ranks": 8, **more}


def finding(**more: Any) -> dict[str, Any]:
    """A sure, critical finding with everything a rule can say."""
    return {
        "id": "f1",
        "state": "confirmed",
        "family": "scale_calibration_blowup",
        "cause": "stale_scale_saturation",
        "kind": None,
        "symptom": "overflow",
        "severity": "critical",
        "confidence": 0.93,
        "onset_step": ONSET,
        "onset_window": [ONSET, ONSET],
        "detected_step": ONSET + 1,
        "resolved_step": None,
        "rank": 0,
        "layer": "blocks.8.mlp.fc2",
        "tensor": ORIGIN,
        "order": "forward",
        "affected_tensors": 14,
        "summary": "Activations of blocks.8.mlp.fc2 clip at the E4M3 maximum: the scale comes from older, "
        "smaller values.",
        "evidence": [
            {
                "signal": "overflow_pct",
                "tensor": ORIGIN,
                "step": 301,
                "value": 4.1,
                "expected": "below 0.5 %",
            },
            {"signal": "headroom_log2", "tensor": ORIGIN, "step": 301, "value": -1.38, "expected": "above 0"},
            {"signal": "grad_norm", "tensor": None, "step": 341, "value": 6.83, "expected": 0.6},
            {"signal": "loss", "tensor": None, "step": 352, "value": "NaN", "expected": "finite"},
        ],
        "alternatives": [
            {"cause": "activation_outlier_growth", "confidence": 0.04, "against": "growth within one step"},
            {"cause": "lr_divergence", "confidence": 0.02, "against": "the update ratio did not move first"},
        ],
        "remedy": {
            "text": "Roll back to a checkpoint at or before step 299. "
            "Use current scaling for the inputs of *.mlp.fc2.",
            "settings": {
                "transformer_engine": "Float8CurrentScaling()",
                "torchao": 'Float8LinearConfig.from_recipe_name("tensorwise")',
                "megatron": "--fp8-recipe tensorwise",
            },
        },
        "decisive_test": "Replay from step 299 with current scaling for this layer: the clipping disappears.",
        "rule": "FS201",
        **more,
    }


def verdict(*findings: dict[str, Any], status: str | None = None, steps: int = LAST + 1) -> dict[str, Any]:
    """The verdict JSON with these findings."""
    order = ["critical", "warning", "info"]
    worst = min((item["severity"] for item in findings), key=order.index, default="healthy")
    return {
        "schema": "floatscope.verdict/1",
        "source": {"path": None, "format": "floatscope", "steps": steps, "tensors": len(tensor_names())},
        "status": status or {"info": "watch"}.get(worst, worst),
        "summary": findings[0]["summary"] if findings else f"No fault found in steps 0 to {steps - 1}.",
        "last_clean_step": min((item["onset_step"] - 1 for item in findings), default=steps - 1),
        "findings": list(findings),
        "not_checked": [
            {"rule": "FS301", "needs": ["underflow_pct of */grad_output", "ref_loss"], "why": "not logged"},
            {"rule": "FS303", "needs": ["baseline"], "why": "no baseline run was named"},
        ],
    }


@dataclass(frozen=True)
class Curves:
    """What the REST interface would answer: values per step, and per tensor, statistic and step."""

    steps: tuple[int, ...]
    loss: tuple[float, ...]
    grad_norm: tuple[float, ...]
    stat: Callable[[str, str, int], float | None]

    def until(self, step: int) -> Curves:
        """The same run as it was after `step`."""
        kept = sum(at <= step for at in self.steps)
        return replace(self, steps=self.steps[:kept], loss=self.loss[:kept], grad_norm=self.grad_norm[:kept])

    def scalars(self, names: Sequence[str], low: int, high: int, points: int) -> dict[str, Any]:
        """The answer of /scalars."""
        known = {"loss": self.loss, "grad_norm": self.grad_norm}
        series = {name: self._columns(known[name], low, high, points) for name in names if name in known}
        step = next(iter(series.values()))["step"] if series else []
        return {"step": step, "series": series}

    def series(self, tensor: str, stat: str, low: int, high: int, points: int) -> dict[str, Any]:
        """The answer of /series."""
        values = [self.stat(tensor, stat, step) for step in self.steps]
        return {"tensor": tensor, "stat": stat, **self._columns(values, low, high, points)}

    def _columns(self, values: Sequence[float | None], low: int, high: int, points: int) -> dict[str, Any]:
        pairs = [
            (s, v) for s, v in zip(self.steps, values, strict=True) if low <= s <= high and v is not None
        ]
        size = max(1, -(-len(pairs) // points))
        out: dict[str, list[Any]] = {
            name: [] for name in ("step", "min", "max", "mean", "last", "count", "nan", "inf")
        }
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            good = [v for _, v in part if math.isfinite(v)]
            out["step"].append(part[0][0])
            for name, value in (
                ("min", min(good, default=None)),
                ("max", max(good, default=None)),
                ("mean", sum(good) / len(good) if good else None),
                ("last", good[-1] if good else None),
            ):
                out[name].append(value)
            out["count"].append(len(part))
            out["nan"].append(sum(math.isnan(v) for _, v in part))
            out["inf"].append(sum(math.isinf(v) for _, v in part))
        return out

    def heatmap(self, stat: str, low: int, high: int, columns: int) -> dict[str, Any]:
        """The answer of /heatmap: bytes 0 to 253 between lo and hi, 254 missing, 255 not finite."""
        last = self.steps[-1] if self.steps else -1
        return _heatmap(self.stat, stat, max(low, 0), min(high, last), columns)


@cache
def _heatmap(
    value: Callable[[str, str, int], float | None], stat: str, low: int, high: int, columns: int
) -> dict[str, Any]:
    steps = list(range(low, high + 1))
    width = max(1, -(-(steps[-1] - steps[0] + 1) // columns)) if steps else 1
    starts = list(range(steps[0], steps[-1] + 1, width)) if steps else []
    names = tensor_names()
    worst = min if stat in ("headroom_log2", "sqnr_db") else max
    cells: list[float | None] = []
    nan: list[list[int]] = []
    inf: list[list[int]] = []
    codes = bytearray()
    for row, name in enumerate(names):
        for column, start in enumerate(starts):
            found = [value(name, stat, step) for step in steps if start <= step < start + width]
            values = [value for value in found if value is not None]
            bad_nan, bad_inf = sum(map(math.isnan, values)), sum(map(math.isinf, values))
            if bad_nan:
                nan.append([row, column, bad_nan])
            if bad_inf:
                inf.append([row, column, bad_inf])
            if bad_nan or bad_inf:
                cells.append(math.nan)
            else:
                cells.append(worst(values) if values else None)
    finite = [cell for cell in cells if cell is not None and math.isfinite(cell)]
    lo, hi = min(finite, default=0.0), max(finite, default=1.0)
    for cell in cells:
        if cell is None:
            codes.append(254)
        else:
            codes.append(255 if math.isnan(cell) else round((cell - lo) / ((hi - lo) or 1) * 253))
    ends = [min(start + width - 1, steps[-1]) for start in starts]
    data = base64.b64encode(bytes(codes)).decode()
    answer: dict[str, Any] = {"stat": stat, "tensors": names, "from": starts, "to": ends, "encoding": "u1"}
    return answer | {"lo": lo, "hi": hi, "data": data, "nan": nan, "inf": inf}


@cache
def healthy_curves() -> Curves:
    """A run without a fault."""
    return _curves(onset=None)


@cache
def faulty_curves() -> Curves:
    """Clipping from ONSET on, a loss that leaves its path 20 steps later, three steps of NaN, one of Inf."""
    return _curves(onset=ONSET)


def _curves(onset: int | None) -> Curves:
    noise = random.Random(7)
    loss, grad = [], []
    for step in range(LAST + 1):
        value = 2.12 + 1.9 * math.exp(-step / 60) + noise.gauss(0, 0.012)
        norm = 0.6 + 0.8 * math.exp(-step / 40) + abs(noise.gauss(0, 0.05))
        if onset is not None and step > onset + 20:
            value += 0.8 * (1 - math.exp(-(step - onset - 20) / 45)) + noise.gauss(0, 0.03)
            norm += (step - onset - 20) / 14 + noise.gauss(0, 0.3)
        if onset is not None and step in (352, 353, 354):
            value = norm = math.nan
        if onset is not None and step == 380:
            norm = math.inf
        loss.append(value)
        grad.append(norm)

    def stat(tensor: str, name: str, step: int) -> float | None:
        layer, _, role = tensor.rpartition("/")
        number = int(layer.split(".")[1])
        jitter = (zlib.crc32(f"{tensor} {step}".encode()) / 2**32 - 0.5) * 0.3
        base = {"input": 0.55, "weight": 0.3, "grad_output": 1.7}[role]
        headroom = base + 0.2 * math.sin(number) + jitter
        clips = onset is not None and role == "input" and "mlp.fc2" in layer and number >= 8
        if clips and onset is not None and step >= onset + 6 * (number - 8):
            headroom = max(-1.6, -0.2 - (step - onset) / 25)
        if onset is not None and step in (352, 353, 354) and (role == "grad_output" or number > 8):
            # As Transformer Engine's amax does, headroom leaves NaN out; RMS does not.
            return None if name != "rms" else math.nan if number != 11 else math.inf
        if name == "rms":
            return 1.0 + jitter
        if name == "headroom_log2":
            return headroom
        if name == "overflow_pct":
            return max(0.0, -headroom * 2.6)
        if name == "underflow_pct":
            return max(0.0, 2.0 + jitter * 4 + (6.0 if role == "grad_output" and number < 2 else 0.0))
        return None

    return Curves(tuple(range(LAST + 1)), tuple(loss), tuple(grad), stat)


def row(curves: Curves | None = None, **more: Any) -> RunRow:
    """A run's row, by default of the faulty run."""
    found = curves or faulty_curves()
    step = max(1, len(found.loss) // 60)
    values = {
        "run_id": "k3f9q2",
        "name": "llama-7b-e4m3-r3",
        "project": "pretrain-7b",
        "recipe": "FP8 delayed scaling, history 1024",
        "status": "running",
        "health": "critical",
        "headline": finding()["summary"],
        "cause": "stale_scale_saturation",
        "first_step": found.steps[0] if found.steps else None,
        "last_step": found.steps[-1] if found.steps else None,
        "last_loss": found.loss[-1] if found.loss else None,
        "created": NOW - timedelta(hours=7, minutes=14),
        "last_seen": NOW - timedelta(seconds=2),
        "onset_step": ONSET,
        "sparkline": found.loss[::step][:60],
        "baseline": None,
        "confidence": 0.93,
        "remedy": "Roll back to a checkpoint at or before step 299.",
    }
    return RunRow(**{**values, **more})


def kpis() -> tuple[Kpi, ...]:
    """The strip of the faulty run."""
    curves = faulty_curves()
    loss = curves.loss[::7][:60]
    grad = curves.grad_norm[::7][:60]
    low = tuple(curves.stat(ORIGIN, "headroom_log2", step) for step in range(0, LAST + 1, 7))
    clipped = tuple(curves.stat(ORIGIN, "overflow_pct", step) for step in range(0, LAST + 1, 7))
    flat = tuple(0.42 + random.Random(step).gauss(0, 0.004) for step in range(60))
    return (
        Kpi("Loss", "2.90", "", "+0.78 since onset", loss),
        Kpi("Grad norm", "7.4", "", "11 x median", grad),
        Kpi("Lowest headroom", "-1.6", "binades", "blocks.8.mlp.fc2/input", low),
        Kpi("Values clipped", "4.1", "%", "14 of 144 tensors", clipped),
        Kpi("Non-finite steps", "3", "", "first at 352", ()),
        Kpi("Step time", "0.42", "s", "steady", flat),
    )


def run_view(found: dict[str, Any] | None = None, **more: Any) -> RunView:
    """The page of the faulty run; `row` values can be given as keywords."""
    own = {key: more.pop(key) for key in ("info", "kpis", "heat_stats", "at", "facts") if key in more}
    return RunView(
        row=row(**more),
        info=own.get("info", info()),
        verdict=found if found is not None else verdict(finding()),
        kpis=own.get("kpis", kpis()),
        heat_stats=own.get(
            "heat_stats", ("headroom_log2", "overflow_pct", "underflow_pct", "amax", "scale", "rms")
        ),
        at=own.get("at"),
        now=NOW,
        version="0.1.0",
        facts=own.get("facts", RunFacts()),
    )


def healthy_row(**more: Any) -> RunRow:
    """A run without a finding."""
    values = {
        "run_id": "c0ffee",
        "name": "llama-7b-e4m3-current",
        "recipe": "FP8 current scaling",
        "health": "healthy",
        "headline": "No fault found in steps 0 to 419.",
        "cause": None,
        "onset_step": None,
        "confidence": None,
        "remedy": None,
    }
    return row(healthy_curves(), **{**values, **more})


def runs_view(*rows: RunRow, **more: Any) -> RunsView:
    """The overview of these rows, in this order, as the server answers when all are wanted."""
    counts: dict[tuple[str, str], int] = {}
    for item in rows:
        place = "live" if is_live(item) else "lately" if item.status in ("failed", "crashed") else "ended"
        counts[(group(item), place)] = counts.get((group(item), place), 0) + 1
    values = {
        "query": RunsQuery(everything=True),
        "rows": rows,
        "cards": tuple(item for item in rows if item.health in ("critical", "warning"))[:3],
        "counts": counts,
        "matched": len(rows),
        "projects": (),
        "total": len(rows),
        "now": NOW,
        "version": "0.1.0",
    }
    return RunsView(**{**values, **more})
