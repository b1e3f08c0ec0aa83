"""How fast a GPU multiplies in BF16 and FP8, at large squares and at the model's own sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu
from floatscope.model_shapes.shape import ModelConfigError
from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.gpu_groups import number
from floatscope.preflight.gpu_visible import used_gpus
from floatscope.preflight.shape_layers import gemms_of, tokens_known
from floatscope.preflight.smoke_timing import GemmTimer, time_gemm
from floatscope.preflight.table_reading import read_table, worst

MOST_OWN = 6
_PAIRS = (("bf16", "bf16"), ("e4m3_tensor", "fp8"))


@dataclass(frozen=True)
class Speed:
    """A GEMM (m, k, n) in both formats, seconds for one; None where it could not run, ``error`` says why."""

    name: str
    shape: tuple[int, int, int]
    bf16_s: float | None
    fp8_s: float | None
    error: str = ""

    def tflops(self, seconds: float | None) -> float | None:
        m, k, n = self.shape
        return 2e-12 * m * k * n / seconds if seconds else None

    @property
    def ratio(self) -> float | None:
        """FP8 over BF16."""
        return self.bf16_s / self.fp8_s if self.bf16_s and self.fp8_s else None


def speed(
    facts: Facts, wanted: Wanted, *, timer: GemmTimer = time_gemm, devices: int | None = None
) -> tuple[list[dict[str, Any]], list[Check]]:
    """Rows of the document and checks. timer: seconds of one GEMM of (format, m, k, n, device)."""
    found = [_measure(name, shape, timer) for name, shape in (*_squares(), *_own(wanted))]
    first = next(iter(used_gpus(facts)), None)
    gpu = "" if first is None else first.name
    peaks = _peaks(gpu, None if first is None else number(first, "power_default_limit_w"))
    rows = [row for one in found for row in _rows(one, peaks)]
    squares = [one for one in found if one.name == "square"]
    own = [one for one in found if one.name != "square"]
    checks = [_of_squares(squares, gpu, peaks), *_of_own(own), *_of_node(facts, timer, devices)]
    return rows, checks


def _squares() -> list[tuple[str, tuple[int, int, int]]]:
    return [("square", (size, size, size)) for size in read_table("smoke_speed")["square"]]


def _own(wanted: Wanted) -> list[tuple[str, tuple[int, int, int]]]:
    """The model's GEMMs with the most work, one of each size."""
    if wanted.model is None or not tokens_known(wanted):
        return []
    try:
        gemms = sorted(gemms_of(wanted.model, wanted), key=lambda one: -one.flops)
    except ModelConfigError:
        return []  # shape_checks says what is wrong
    sizes = {(one.tokens, one.k, one.n): one.name for one in reversed(gemms) if one.kind != "head"}
    return [(name, shape) for shape, name in reversed(list(sizes.items()))][:MOST_OWN]


def _measure(name: str, shape: tuple[int, int, int], timer: GemmTimer) -> Speed:
    seconds: dict[str, float | None] = {}
    errors = []
    for _, kind in _PAIRS:
        try:
            seconds[kind] = timer(kind, *shape, "cuda:0")
        except (
            Exception
        ) as error:  # a GPU without FP8, too little memory: the finding is that it does not run
            seconds[kind] = None
            errors.append(" ".join(f"{kind}: {type(error).__name__}: {error}".split())[:200])
    return Speed(name, shape, seconds["bf16"], seconds["fp8"], "; ".join(errors))


def _peaks(gpu: str, power_limit_w: float | None) -> tuple[float | None, float | None]:
    """Dense TFLOP/s in BF16 and FP8, None where the table does not know the GPU."""
    try:
        found = find_gpu(gpu, power_limit_w)
    except UnknownGpuError:
        return None, None
    return found.bf16_tflops, found.fp8_tflops


def _rows(one: Speed, peaks: tuple[float | None, float | None]) -> list[dict[str, Any]]:
    rows = []
    for (name, _), seconds, peak in zip(_PAIRS, (one.bf16_s, one.fp8_s), peaks, strict=True):
        tflops = one.tflops(seconds)
        rows.append(
            {
                "format": name,
                "layer": "" if one.name == "square" else one.name,
                "shape": list(one.shape),
                "device": "cuda",
                "emulated": False,
                "relative_error": None,
                "expected": None,
                "status": "unknown" if seconds is None else "pass",
                "seconds": seconds,
                "tflops": None if tflops is None else round(tflops, 1),
                "share_of_peak_pct": round(100 * tflops / peak, 1) if tflops and peak else None,
            }
        )
    return rows


def _of_squares(squares: Sequence[Speed], gpu: str, peaks: tuple[float | None, float | None]) -> Check:
    best = max(squares, key=lambda one: one.tflops(one.fp8_s) or 0.0)
    ratio, tflops = best.ratio, best.tflops(best.fp8_s)
    if ratio is None or tflops is None:
        read = f"{best.shape[0]:,} squared: {best.error or 'not timed'}"
        return _check("gemm.speed", "unknown", read, "without a timed GEMM nothing is known of the gain")
    table = read_table("smoke_speed")
    statuses: list[Status] = [_at_least(ratio, table["ratio"]["pass"], table["ratio"]["warn"])]
    read = f"{best.shape[0]:,} squared: FP8 {tflops:,.0f} TFLOP/s, {ratio:.2f} times BF16"
    if peaks[1]:
        share, limits = 100 * tflops / peaks[1], table["share_of_peak"]
        statuses.append(_at_least(share, limits["pass_pct"], limits["warn_pct"]))
        read += f", {share:.0f} % of the dense peak of {gpu}"
    else:
        read += f"; the peak of {gpu or 'this GPU'} is not known, so there is no share of it"
    why = "published GEMMs reach 59 to 82 % of the dense peak; far less is a power limit, heat or a slow path"
    return _check("gemm.speed", worst(statuses), read, why)


def _of_own(own: Sequence[Speed]) -> list[Check]:
    """The model's own sizes: where FP8 is hardly faster, it does not pay after its casts."""
    timed = [(one, one.ratio) for one in own if one.ratio is not None]
    if not timed:
        return []
    limit = read_table("smoke_speed")["ratio"]["warn"]
    slow = [one for one, ratio in timed if ratio is not None and ratio < limit]
    shown = ", ".join(f"{one.name} {one.shape}: {ratio:.2f}" for one, ratio in timed)
    why = "these are GEMMs without their casts; below 1.2 nothing is left when operands have been cast"
    return [_check("gemm.speed.model", "warn" if slow else "pass", f"FP8 over BF16: {shown}", why)]


def _of_node(facts: Facts, timer: GemmTimer, devices: int | None) -> list[Check]:
    """GPUs of a node against each other: the slowest one sets the pace."""
    count = len(used_gpus(facts)) if devices is None else devices
    if count < 2:
        return []
    size = read_table("smoke_speed")["square"][-1]
    seconds = []
    for index in range(count):
        try:
            seconds.append(timer("bf16", size, size, size, f"cuda:{index}"))
        except Exception as error:  # one GPU that does not run is the finding
            text = " ".join(f"GPU {index}: {type(error).__name__}: {error}".split())[:200]
            return [_check("gemm.speed.node", "fail", text, "a job stops at the first GPU that fails")]
    spread = 100 * (max(seconds) / min(seconds) - 1)
    slowest = seconds.index(max(seconds))
    status: Status = "pass" if spread <= read_table("smoke_speed")["spread_pct"] else "warn"
    read = f"{count} GPUs, {size:,} squared in BF16: they differ by {spread:.1f} %, GPU {slowest} is slowest"
    return [_check("gemm.speed.node", status, read, "the slowest GPU of a job sets its pace")]


def _at_least(value: float, good: float, fair: float) -> Status:
    return "pass" if value >= good else "warn" if value >= fair else "fail"


def _check(name: str, status: Status, read: str, why: str) -> Check:
    do = (
        ""
        if status == "pass"
        else "look at power limit, clocks and temperature, and at other jobs on the GPU"
    )
    return Check(name, "gemm", status, read, why, do, read_table("smoke_speed")["source"])
