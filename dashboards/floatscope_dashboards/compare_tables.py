"""The tables beside the comparison: speed, the tensors that part first, settings that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.compare_view import CompareView
from floatscope_dashboards.compare_words import part
from floatscope_dashboards.say import NO_VALUE, Say, later
from floatscope_dashboards.tensor_links import tensor_href
from floatscope_dashboards.wording import as_float, as_int, as_text, number_text, with_unit
from floatscope_diagnostics.compare.tensor_limits import OCTAVES, POINTS


@dataclass(frozen=True)
class Measure:
    """key: in ``ComparedRun.speeds``.  ratio: whether a share of change means something."""

    key: str
    label: str
    unit: str
    ratio: bool = True


MEASURES = (
    Measure("tokens_per_s", later("Tokens a second, one rank"), ""),
    Measure("step_time_s", later("Time of a step, median"), "s"),
    Measure("gpu_mem_gib", later("Peak memory of a GPU"), "GiB"),
    Measure("gpu_util_pct", later("GPU utilisation"), "%"),
    Measure("gpu_power_w", later("Power of a GPU, mean"), "W"),
    Measure("joule_per_token", later("Energy a token"), "mJ"),
    Measure("skipped_steps", later("Skipped steps"), "", ratio=False),
)


@dataclass(frozen=True)
class SpeedRow:
    label: str
    base: str
    run: str
    change: str


def speed_rows(view: CompareView, say: Say) -> tuple[SpeedRow, ...]:
    """What at least one run logs, over the steps both have. No change where a run emulates its casts."""
    found = []
    emulates = emulated(view)
    for measure in MEASURES:
        own, other = view.run.speeds.get(measure.key), view.base.speeds.get(measure.key)
        if own is None and other is None:
            continue
        change = NO_VALUE
        if own is not None and other is not None and not (emulates and measure.ratio):
            change = _change(own, other, measure)
        shown = [_number(value, measure.unit) for value in (other, own)]
        found.append(SpeedRow(say(measure.label), shown[0], shown[1], change))
    return tuple(found)


def emulated(view: CompareView) -> bool:
    """Whether a run emulates its FP8 casts, so that its times are not those of FP8 hardware."""
    found = part(view.document, "go", "refused")
    items = found if isinstance(found, list) else []
    return any(isinstance(item, Mapping) and item.get("code") == "emulated" for item in items)


def speed_note(view: CompareView, say: Say) -> str:
    """What the numbers of the speed are of."""
    text = say("Over the steps that both runs have; as each run logged it.")
    if not emulated(view):
        return text
    return (
        text
        + " "
        + say(
            "A run emulates its FP8 casts: its times are those of the emulation, not of FP8 hardware, so no "
            "change is given."
        )
    )


def _number(value: float | None, unit: str) -> str:
    return NO_VALUE if value is None else with_unit(number_text(value), unit)


def _change(own: float, other: float, measure: Measure) -> str:
    if not measure.ratio or other == 0:
        return f"{own - other:+,.0f}".replace("-", "\u2212")
    share = 100 * (own / other - 1)
    digits = 1 if abs(share) < 10 else 0
    return f"{share:+,.{digits}f}\u202f%".replace("-", "\u2212")


@dataclass(frozen=True)
class PartedRow:
    """tensor: its whole name.  href: its page of the run, at that step."""

    tensor: str
    href: str
    step: int
    what: str
    order: str


def parted_rows(view: CompareView, say: Say) -> tuple[PartedRow, ...]:
    first = part(view.document, "tensors", "first")
    return tuple(_parted(view, item, say) for item in (first or ()) if isinstance(item, Mapping))


def _parted(view: CompareView, item: Mapping[str, Any], say: Say) -> PartedRow:
    tensor, step = as_text(item.get("tensor")), as_int(item.get("step")) or 0
    stat = as_text(item.get("stat"))
    own, other = number_text(as_float(item.get("run"))), number_text(as_float(item.get("baseline")))
    apart, limit = as_float(item.get("deviation")), as_float(item.get("limit"))
    if apart is None or limit is None:
        what = say("NaN or Inf in one run only")
    else:
        values = {
            "stat": stat,
            "run": own,
            "baseline": other,
            "apart": f"{apart:+.2g}".replace("-", "\u2212"),
            "unit": _unit(as_text(item.get("unit")), say),
            "limit": number_text(limit),
        }
        what = (
            say("{stat} {run} against {baseline} ({apart} {unit}, a jump; healthy below {limit})", **values)
            if item.get("jumped")
            else say("{stat} {run} against {baseline} ({apart} {unit}, healthy below {limit})", **values)
        )
    order = say("forward") if item.get("order") == "forward" else say("backward")
    return PartedRow(tensor, tensor_href(view.run.run_id, tensor, at=step), step, what, order)


def _unit(unit: str, say: Say) -> str:
    return {OCTAVES: say("octaves"), POINTS: say("percentage points")}.get(unit, unit)


def parted_note(view: CompareView, say: Say) -> str:
    """What was looked at, or why nothing could be."""
    found = part(view.document, "tensors")
    if not isinstance(found, Mapping):
        return ""
    if view.rows is None:
        return say("The tensors of runs this large take longer; they are looked at now.")
    why = as_text(found.get("why_not"))
    if why:
        return say.engine(why[:1].upper() + why[1:] + ".")
    seen = say.plural(
        "{n} tensor in both runs, on {rows} common steps.",
        "{n} tensors in both runs, on {rows} common steps.",
        as_int(found.get("common")) or 0,
        rows=say.step(as_int(found.get("rows"))),
    )
    read, logged = view.rows
    if read < logged:
        seen += " " + say(
            "Of {logged} steps with statistics {read} were read, spread over the run.",
            logged=say.step(logged),
            read=say.step(read),
        )
    return seen


def parted_none(view: CompareView, say: Say) -> str:
    """The sentence when no tensor parts; "" where something parts or nothing could be looked at."""
    found = part(view.document, "tensors")
    if view.rows is None or not isinstance(found, Mapping) or found.get("why_not") or found.get("first"):
        return ""
    near = found.get("nearest")
    if isinstance(near, Mapping):
        return say(
            "No tensor differs by more than those of two healthy runs do. Nearest to its limit is {stat} of "
            "{tensor}, at {share}.",
            stat=as_text(near.get("stat")),
            tensor=as_text(near.get("tensor")),
            share=f"{100 * (as_float(near.get('share_of_limit')) or 0.0):.0f}\u202f%",
        )
    return say("No tensor differs by more than those of two healthy runs do.")


@dataclass(frozen=True)
class SettingRow:
    name: str
    base: str
    run: str


@dataclass(frozen=True)
class SettingRows:
    """Settings that differ, and those that are equal. left_out: further settings that are not listed."""

    differ: tuple[SettingRow, ...]
    equal: tuple[SettingRow, ...]
    left_out: int

    @property
    def total(self) -> int:
        return len(self.differ) + len(self.equal)


def setting_rows(view: CompareView) -> SettingRows:
    own, other = view.run.config, view.base.config
    names = sorted({*own, *other})
    rows = [SettingRow(name, other.get(name, NO_VALUE), own.get(name, NO_VALUE)) for name in names]
    return SettingRows(
        tuple(row for row in rows if own.get(row.name) != other.get(row.name)),
        tuple(row for row in rows if own.get(row.name) == other.get(row.name)),
        max(view.run.config_left_out, view.base.config_left_out),
    )
