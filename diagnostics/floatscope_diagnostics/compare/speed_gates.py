"""The gates of speed and cost."""

from __future__ import annotations

import math

from floatscope_diagnostics.compare.gate import Gate, Quality, State
from floatscope_diagnostics.compare.limits import Limits
from floatscope_diagnostics.compare.throughput import NoThroughput, Throughput


def speed_gate(speed: Throughput | NoThroughput, limits: Limits) -> Gate:
    """Throughput over the baseline's against ``min_speedup``; only shown where no limit of it is set."""
    limit = limits.min_speedup
    if isinstance(speed, NoThroughput):
        return Gate(
            "speed", "not_checked", _sentence(speed.why), limit=limit, unit="times",
            next_step=_measure(speed) if limit is not None else "",
        )  # fmt: skip
    what = "tokens a second" if speed.by_tokens else "steps a second"
    text = (
        f"{speed.speedup:.3f} times the baseline's {what} [{speed.low:.3f}, {speed.high:.3f}] "
        f"(median step {_seconds(speed.run_s)} against {_seconds(speed.base_s)})"
    )
    if limit is None:
        state: State = "not_checked"
        text += "; no limit is set for it, the cost decides"
    else:
        state = _state(speed.low, speed.high, limit)
        text += f": {_against(state, f'{limit:g} times')}"
    return Gate(
        "speed", state, text + ".", speed.speedup, speed.low, speed.high, limit, "times",
        next_step="More steps of both runs on the same nodes." if state == "undecided" else "",
    )  # fmt: skip


def cost_gate(
    speed: Throughput | NoThroughput, quality: Quality | None, limits: Limits, why_no_quality: str
) -> Gate:
    """Saving of cost: 1 - price ratio / speed-up; with ``min_net_saving_pct`` that of the net speed-up.

    Where both limits are set both must hold; the numbers shown are those of the net saving.
    """
    raw, net = limits.min_saving_pct, limits.min_net_saving_pct
    limit = net if net is not None else raw
    price = "" if limits.price_ratio == 1.0 else f" at {limits.price_ratio:g} times the price of an hour"
    if isinstance(speed, NoThroughput):
        return Gate(
            "cost", "not_checked", "Not known without the speed.", limit=limit, unit="%",
            next_step=_measure(speed) if limits.needs_cost else "",
        )  # fmt: skip
    saving = [_saving(s, limits.price_ratio) for s in (speed.speedup, speed.low, speed.high)]
    text = f"{_less(saving)} per token{price}"
    states: list[State] = []
    if raw is not None:
        states.append(_state(saving[1], saving[2], raw))
        text += f" ({_against(states[-1], f'{raw:g} %')})"
    shown = saving
    if quality is not None and quality.net_speedup is not None and quality.net_low and quality.net_high:
        nets = (quality.net_speedup, quality.net_low, quality.net_high)
        at_equal = [_saving(s, limits.price_ratio) for s in nets]
        text += (
            f"; at equal loss {_less(at_equal)}, as the difference "
            f"costs {quality.extra_tokens_pct:.1f} % more tokens"
        )
        if net is not None:
            shown = at_equal
            states.append(_state(at_equal[1], at_equal[2], net))
            text += f": {_against(states[-1], f'{net:g} %')}"
    elif net is not None:
        states.append("fail" if saving[2] < net else "undecided")
        text += f"; what the loss difference costs cannot be told, {why_no_quality}"
    if not states:
        return Gate(
            "cost",
            "not_checked",
            text + "; no limit is set for it.",
            saving[0],
            saving[1],
            saving[2],
            unit="%",
        )
    state: State = "fail" if "fail" in states else "undecided" if "undecided" in states else "pass"
    next_step = ""
    if state == "undecided":
        next_step = "More steps of both runs on the same nodes: speed and loss difference both become surer."
        if net is not None and quality is None:
            next_step = (
                "A longer pair, so that the fall of the loss can be fitted, or a limit without the "
                "correction (--min-saving, --min-speedup)."
            )
    return Gate("cost", state, text + ".", shown[0], shown[1], shown[2], limit, "%", next_step=next_step)


def _measure(speed: NoThroughput) -> str:
    if speed.code == "emulated":
        return "Some hundred steps of both on the GPUs that are meant: emulated casts say nothing of speed."
    return "Log step_time_s in both runs, on the same GPUs."


def _less(saving: list[float]) -> str:
    """A saving with its interval in words; a negative one is more."""
    if saving[0] < 0.0:
        return f"{-saving[0]:.1f} % more cost [{-saving[2]:.1f}, {-saving[1]:.1f}]"
    return f"{saving[0]:.1f} % less cost [{saving[1]:.1f}, {saving[2]:.1f}]"


def _saving(speedup: float, price_ratio: float) -> float:
    return 100.0 * (1.0 - price_ratio / speedup) if speedup > 0.0 else -math.inf


def _state(low: float, high: float, limit: float) -> State:
    return "pass" if low >= limit else "fail" if high < limit else "undecided"


def _against(state: State, limit: str) -> str:
    return {"pass": f"at least the {limit} asked for", "fail": f"less than the {limit} asked for"}.get(
        state, f"cannot be told from the {limit} asked for"
    )


def _seconds(value: float) -> str:
    return f"{1000.0 * value:.3g} ms" if value < 1.0 else f"{value:.4g} s"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
