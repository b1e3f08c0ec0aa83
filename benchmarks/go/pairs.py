"""Small real runs of the bundled trainer: BF16, healthy FP8 and broken FP8 of the same seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from floatscope.cli import main as floatscope
from floatscope_diagnostics.compare.go import decide
from floatscope_diagnostics.compare.judge import Settings, compare
from floatscope_diagnostics.compare.judging import health_by_name
from floatscope_diagnostics.compare.limits import Limits
from floatscope_diagnostics.compare.sources import Reading, read_side

SEEDS = (1, 11, 12)  # texts of the gates were written while looking at the first only
TUNED, KEPT = range(21, 28), range(41, 48)
"""Seeds of healthy pairs, for the growth of the gap: looked at, and kept back until the end."""
SHAPE = ("--layers", "2", "--width", "64", "--heads", "2", "--hidden", "128", "--context", "32")
LENGTH = ("--steps", "500", "--warmup", "30", "--eval-every", "20")
KINDS = {
    "bf16": ("--precision", "bf16"),
    "current": ("--precision", "fp8", "--recipe", "current"),
    "rtz": ("--precision", "fp8", "--recipe", "current", "--cast", "rtz"),
    "stale": ("--precision", "fp8", "--inject", "stale_scale@150:blocks.1.mlp.fc1/input*16"),
}


def train(folder: Path) -> None:
    """Trains the runs that are missing in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(seed, kind) for seed in SEEDS for kind in KINDS]
    wanted += [(seed, kind) for seed in (*TUNED, *KEPT) for kind in ("bf16", "current")]
    for seed, kind in wanted:
        log = folder / f"{kind}-{seed}.jsonl"
        if not log.exists():
            arguments = ["train", "--quiet", "--run", log.stem, "--log", str(log), "--seed", str(seed)]
            floatscope([*arguments, *LENGTH, *SHAPE, *KINDS[kind]])


def verdicts(folder: Path) -> Iterator[str]:
    """A line a pair: loss, growth, held-out loss, findings."""
    head = (
        ("pair", 14),
        ("loss", 11),
        ("nats [90 or 95 %]", 28),
        ("drift", 11),
        ("held-out", 11),
        ("findings", 10),
    )
    yield "  " + "".join(f"{name:<{width}}" for name, width in head) + "first tensor  => verdict"
    reading = Reading()
    for log in sorted(folder.glob("*-*.jsonl"), key=lambda p: (p.stem.rpartition("-")[2], p.stem)):
        kind, _dash, seed = log.stem.rpartition("-")
        base = folder / f"bf16-{seed}.jsonl"
        if kind == "bf16" or not base.exists():
            continue
        sides = [read_side(str(path), reading) for path in (log, base)]
        found = compare(sides[0], sides[1], Settings())
        health = health_by_name(str(log), reading), health_by_name(str(base), reading)
        go = decide(found, Limits(), health=health)
        loss = go.gate("loss")
        band = f"{loss.value:+.4f} [{loss.low:+.4f}, {loss.high:+.4f}]"
        first = found.tensors.first[0].tensor if found.tensors.first else "none parts"
        drift = go.gate("drift")
        growth = drift.state if drift.blocks else "not shown"
        yield (
            f"  {log.stem:<14}{loss.state:<11}{band:<28}{growth:<11}"
            f"{go.gate('held_out').state:<11}{go.gate('fp8_health').state:<10}{first}  => {go.verdict}"
        )
