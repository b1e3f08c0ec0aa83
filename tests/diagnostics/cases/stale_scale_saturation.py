from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors, all_of

FAULT = 130
TARGET = "blocks.1.mlp.fc2/input"


def sixteen_times(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        tensors[TARGET]["amax"] *= 16.0


def growing(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        tensors[TARGET]["amax"] *= 4.0 ** min(step - FAULT + 1, 12)


def wobble(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Now and then amax passes the old maximum by half: a few thousandths of a percent clip."""
    if step % 7 == 0:
        for stats in all_of(tensors, "/input"):
            stats["amax"] *= 1.5


def nan_behind(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A cast that does not saturate: NaN in everything behind the tensor that clips."""
    if step >= FAULT:
        scalars["loss"] = float("nan")
        for name, stats in tensors.items():
            if name.endswith("grad_output") or step > FAULT:
                stats["nan_count"] = 9.0


JUMP = Run(before=sixteen_times)
RECENT = Run(before=sixteen_times, algo="most_recent", history=1)
CHRONIC = Run(before=growing, algo="most_recent", history=1)
BROKEN = Run(before=sixteen_times, after=nan_behind)
MARGIN = Run(before=sixteen_times, margin=5.0)
HEALTHY = Run(before=wobble, steps=120)
CURRENT = Run(before=sixteen_times, recipe="fp8_current_scaling")

WANT = (Want("stale_scale_saturation", (FAULT, FAULT), None, TARGET),)


def nan_in_itself(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Clipping behind a NaN further back in the same step, and in the tensor itself."""
    nan_behind(step, tensors, scalars)
    if step >= FAULT:
        tensors[TARGET]["nan_count"] = 5.0


def few_elements(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """most_recent: now and then a few outliers pass four times the old maximum."""
    if step >= FAULT and step % 9 < 2:
        tensors[TARGET]["rms"] = 1.0
        tensors[TARGET]["amax"] *= 4.5 if step % 9 == 1 else 1.0


ITSELF = Run(before=sixteen_times, after=nan_in_itself)
FEW = Run(before=few_elements, algo="most_recent", history=1, steps=120)


CASES = [
    Case("amax x16 in one step, the scale follows", JUMP.info(), JUMP.rows(), WANT),
    Case("the same with most_recent", RECENT.info(), RECENT.rows(), WANT),
    Case("x4 at every step never catches up", CHRONIC.info(), CHRONIC.rows(), WANT),
    Case("casts that do not saturate give NaN at once", BROKEN.info(), BROKEN.rows(), WANT),
    Case("five bits of margin take it", MARGIN.info(), MARGIN.rows()),
    Case("a healthy run clips a little on many steps", HEALTHY.info(), HEALTHY.rows()),
    Case("current scaling has no stale scale", CURRENT.info(), CURRENT.rows()[:32]),
    Case("the clipping tensor itself holds NaN", ITSELF.info(), ITSELF.rows(), WANT),
    Case("a few outliers clip under most_recent", FEW.info(), FEW.rows()),
]
