"""Logs of a million steps, always the same: a loss that falls, and the same with a NaN that stays."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SEED = 0


def write_log(path: Path, form: str, *, steps: int, nan_from: int | None = None) -> None:
    """Writes one log.

    form: csv, jsonl or megatron.  nan_from: first step whose loss and gradient norm are NaN.
    """
    rng = np.random.default_rng(SEED)
    at = np.arange(steps)
    loss = 2.5 + 7 * np.exp(-at / 20_000) + rng.normal(0, 0.05, steps)
    norm = np.exp(rng.normal(0, 0.15, steps))
    rate = 3e-4 * np.cos(at / steps * 1.5)
    milliseconds = 500 * np.exp(rng.normal(0, 0.03, steps))
    if nan_from is not None:
        loss[nan_from:] = norm[nan_from:] = np.nan
    rows = zip(at.tolist(), loss.tolist(), norm.tolist(), rate.tolist(), milliseconds.tolist(), strict=True)
    with path.open("w") as file:
        file.writelines(_lines(form, rows, steps))


def _lines(form: str, rows: Iterator[tuple[int, float, float, float, float]], steps: int) -> Iterator[str]:
    if form == "csv":
        yield "step,loss,grad_norm,lr\n"
        for step, loss, norm, rate, _ in rows:
            yield f"{step},{loss:.6f},{norm:.6f},{rate:.6e}\n"
    elif form == "jsonl":
        for step, loss, norm, rate, _ in rows:
            row = {"step": step, "loss": round(loss, 6), "grad_norm": round(norm, 6), "lr": rate}
            yield json.dumps(row) + "\n"
    else:
        for step, loss, norm, rate, milliseconds in rows:
            second = step // 2
            clock = f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
            yield (
                f" [2024-05-{1 + second // 86400:02d} {clock}] iteration {step + 1:8d}/{steps:8d} | "
                f"consumed samples: {(step + 1) * 256:12d} | elapsed time per iteration (ms): "
                f"{milliseconds:.1f} | learning rate: {rate:.6E} | global batch size:   256 | "
                f"lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | "
                "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
            )


if __name__ == "__main__":
    name, kind, *numbers = sys.argv[1:]
    write_log(Path(name), kind, steps=int(numbers[0]), nan_from=int(numbers[1]) if numbers[1:] else None)
