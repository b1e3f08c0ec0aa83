"""The terminal report of a comparison, in the manner of ``floatscope diagnose``."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

import numpy as np

from floatscope_diagnostics.compare.gate import Go
from floatscope_diagnostics.compare.go_report import go_lines
from floatscope_diagnostics.compare.judge import Comparison, Window
from floatscope_diagnostics.compare.settled import settled
from floatscope_diagnostics.compare.tensor_limits import UNITS
from floatscope_diagnostics.compare.tensor_log import NONFINITE_GRAD
from floatscope_diagnostics.compare.tensors import Parted, TensorParting
from floatscope_diagnostics.compare.words import nats, sentence, signed
from floatscope_diagnostics.reports.terminal import Style, plain

WIDTH = 78
LEAD = 14
SIGNS = {
    "same": ("✓ SAME", "info"),
    "worse": ("▲ WORSE", "critical"),
    "better": ("▼ BETTER", "info"),
    "undecided": ("● CANNOT TELL", "warning"),
}
DRAWN = 48
LEVELS = "▁▂▃▄▅▆▇█"


def report(c: Comparison, style: Style, go: Go | None = None) -> str:
    """The whole report; the decision first, where there is one."""
    lines = [*_head(c), ""]
    if go is not None:
        lines += [*go_lines(go, style), ""]
    if go is not None and not go.decidable:
        return "\n".join([*lines, *_refused(c)]).rstrip() + "\n"
    sign, severity = SIGNS[c.decision]
    lines.append(style.paint(sign, severity))
    lines += _wrapped("  ", sentence(c))
    if go is not None:
        lines += _wrapped("  ", _beside_decision(c, go))
    lines.append("")
    lines += _entry("Paired" if c.pairs.paired else "Not paired", _pairing(c))
    lines += list(_differences(c, c.judged))
    lines += list(_curve(c))
    lines += _entry("Separation", _separation(c))
    if c.loud is not None:
        count = "one step stands" if c.loud.steps == 1 else f"{c.loud.steps:,} steps stand"
        lines += _entry(
            "Loud steps", f"{count} out: {signed(c.loud.largest)} nats at step {c.loud.largest_step:,}"
        )
    lines += _entry("Shape", _shape(c))
    lines += list(_tensors(c.tensors))
    lines += _entry("To decide", _needed(c))
    if c.lr_differs is not None:
        d = c.lr_differs
        lines += _entry(
            "Careful",
            f"the learning rates differ on {d.steps:,} steps, first at {d.step:,} ({d.run:.3g} against "
            f"{d.base:.3g}): this compares more than the precision",
        )
    lines += _entry("Method", _method(c))
    lines += _notes(c)
    return "\n".join(lines).rstrip() + "\n"


def _refused(c: Comparison) -> Iterator[str]:
    """What was measured all the same, without a word on which run is the better one."""
    yield from _wrapped("", "Measured all the same; it is not what the precision does:")
    yield from _entry("Paired" if c.pairs.paired else "Not paired", _pairing(c))
    yield from _differences(c, None)
    yield from _tensors(c.tensors)
    yield from _notes(c)


def _notes(c: Comparison) -> Iterator[str]:
    for side in (c.run, c.base):
        for note in side.notes:
            yield from _entry("Note", f"{side.label}: {note}")


def _beside_decision(c: Comparison, go: Go) -> str:
    """Why this part has other numbers than the decision above it."""
    margin, other = c.settings.margin, float(go.shown_limits["margin_nats"])
    counted = settled(c).step
    from_step = f" and counts from step {counted[0]:,} on" if len(counted) else ""
    if margin == other:
        return f"This is over all steps or the last part; the decision above has the same margin{from_step}."
    return (
        f"This asks whether the runs differ by more than two healthy ones do by chance ({margin:g} nats), "
        f"over all steps or the last part; the decision above is held against {nats(other)} nats{from_step}."
    )


def _head(c: Comparison) -> Iterator[str]:
    for word, side in (("RUN", c.run), ("BASELINE", c.base)):
        recipe = side.run.recipe.get("name")
        shown = f", {plain(str(recipe))}" if recipe else ""
        span = f"{len(side.step):,} steps ({side.step[0]:,} to {side.step[-1]:,})"
        yield f"{word:<10}{plain(side.name)}   {span}{shown}"


def _pairing(c: Comparison) -> str:
    p = c.pairs
    left = []
    if p.mismatched and p.paired:
        left.append(f"{p.mismatched:,} steps left out: other data_id")
    if p.only_run or p.only_base:
        left.append(f"{p.only_run:,} steps only in RUN, {p.only_base:,} only in BASELINE")
    for side in (c.run, c.base):
        if side.repeated:
            left.append(f"{side.repeated:,} steps logged again in {plain(side.label)}, the last counts")
    text = f"{len(p.step):,} pairs ({p.why})" if p.paired else f"{len(p.step):,} steps compared: {p.why}"
    if left:
        text += ". " + "; ".join(left)
    if not p.paired:
        text += (
            ". The noise of the data does not cancel: only differences well above the loss's own ups and "
            "downs show, and a difference of the data looks like one of the runs."
        )
    return text


def _differences(c: Comparison, judged: Window | None) -> Iterator[str]:
    percent = f"{100 * c.settings.confidence:g} %"
    for name, window in (("Whole", c.whole), ("Last part", c.last)):
        if window is None:
            continue
        band, noise = window.band, window.band.noise
        yield (
            f"{name:<{LEAD}}{signed(band.mean)} nats, {percent} band {signed(band.low)} to "
            f"{signed(band.high)}{'   <- judged' if _same(window, judged) else ''}"
        )
        yield (
            f"{'':<{LEAD}}steps {window.first_step:,} to {window.last_step:,}: {window.pairs:,} pairs worth "
            f"{noise.n_eff:,.0f} independent ones, sd {nats(noise.sd)}, autocorrelation {noise.phi:.2f}"
        )


def _same(a: Window, b: Window | None) -> bool:
    return b is not None and (a.first_step, a.pairs) == (b.first_step, b.pairs)


def _curve(c: Comparison) -> Iterator[str]:
    good = np.isfinite(c.pairs.gap)
    if good.sum() < 8:
        return
    step, gap = c.pairs.step[good], c.pairs.gap[good]
    parts = np.array_split(gap, min(DRAWN, len(gap)))
    means = [float(np.mean(p / 2.0)) * 2.0 for p in parts]
    low, high = min(*means, 0.0), max(*means, 0.0)
    span = high - low
    if not 0.0 < span < math.inf:
        return
    cells = "".join(LEVELS[min(int((m - low) / span * len(LEVELS)), len(LEVELS) - 1)] for m in means)
    yield f"{'Gap':<{LEAD}}{cells}"
    ends = f"{step[0]:,}".ljust(max(len(cells) - len(f"{step[-1]:,}"), 1)) + f"{step[-1]:,}"
    yield f"{'':<{LEAD}}{ends}   {signed(low)} to {signed(high)}"


def _separation(c: Comparison) -> str:
    said = []
    if c.nonfinite is not None:
        n = c.nonfinite
        name = "RUN" if n.side == "run" else "BASELINE"
        lasting = "to the end" if n.lasting else f"on {n.steps:,} steps, and then again finite"
        said.append(f"{name}'s loss is not finite from step {n.step:,} {lasting}; the other's is")
    if c.both_nonfinite is not None:
        said.append(f"both losses are not finite from step {c.both_nonfinite:,}")
    if c.parting is not None:
        p = c.parting
        side = "above" if p.sign > 0 else "below"
        said.append(
            f"the losses part at about step {p.onset_step:,}, RUN {side} BASELINE, proven at step "
            f"{p.proven_step:,}"
        )
        if c.beyond_margin is None:
            said.append(f"never proven to be by more than {c.settings.margin:g}")
        else:
            b = c.beyond_margin
            said.append(f"by more than {b.beyond:g} since {b.onset_step:,}, proven at {b.proven_step:,}")
        turned = _turned(c, p.sign)
        if turned:
            said.append(turned)
        elif c.since is None:
            said.append("in the last part they cannot be told apart")
        elif c.since > p.proven_step:
            said.append(f"as they are now since about step {c.since:,}")
    elif c.nonfinite is None:
        said.append(
            "no step can be named yet: the test over all steps needs more pairs than one window's band"
            if c.decision in ("worse", "better")
            else "none: at no step can the losses be told apart"
        )
    if c.first_difference is None:
        said.append("every loss is equal to the last digit")
    elif c.pairs.paired and c.pairs.step[0] < c.first_difference:
        said.append(f"equal to the last digit before step {c.first_difference:,}")
    return "; ".join(said)


def _turned(c: Comparison, sign: int) -> str:
    """The side on which RUN is in the end, where it is not the one on which it was first; "" else."""
    side = "below" if sign > 0 else "above"
    for window, where in ((c.judged, "on the judged steps"), (c.whole, "on the whole")):
        if window is not None and window.band.excludes(0.0) and window.band.mean * sign < 0.0:
            return f"it has turned since: {where} RUN is {side} BASELINE"
    return ""


def _shape(c: Comparison) -> str:
    s = c.shape
    if s is None or s.kind == "none":
        if c.decision in ("worse", "better"):
            return "cannot tell an offset from a slope before the step of the separation is known"
        return "no gap, so neither offset nor slope"
    if s.change is None or s.low is None or s.high is None or s.start is None or s.end is None:
        return "too few pairs to tell an offset from a slope"
    numbers = (
        f"{signed(s.start)} at step {s.first_step:,}, {signed(s.end)} at {s.last_step:,}: change "
        f"{signed(s.change)} [{signed(s.low)}, {signed(s.high)}]"
    )
    meant = c.decision in ("worse", "better")
    why = {
        "constant": "A constant gap points to a biased forward pass",
        "widening": "A widening gap points to an error that builds up in the state (weights, moments, "
        "gradients)",
    }
    kind = {
        "constant": "offset",
        "widening": "slope, widening",
        "closing": "slope, closing",
        "cannot_tell_yet": "cannot tell an offset from a slope yet",
    }[s.kind]
    if s.kind in why and meant:
        return f"{kind}: {numbers}. {why[s.kind]}"
    return f"{kind}: {numbers}" + ("" if meant else ". Inside the margin: two healthy runs do as much")


def _tensors(t: TensorParting) -> Iterator[str]:
    if t.why_not is not None:
        yield from _entry("First tensor", t.why_not)
        return
    seen = f"{t.common:,} tensors in both logs, {t.rows:,} common rows"
    if t.only_run or t.only_base:
        seen += f"; {t.only_run:,} tensors only in RUN, {t.only_base:,} only in BASELINE"
    if not t.first:
        near = ""
        if t.nearest is not None:
            near = f" (nearest: {t.nearest[1]} of {t.nearest[0]}, {100 * t.nearest[2]:.0f} % of its limit)"
        yield from _entry(
            "First tensor", f"none: no tensor differs by more than those of two healthy runs do{near}. {seen}"
        )
    else:
        lead = t.first[0]
        more = f", then {t.parted - 1:,} more" if t.parted > 1 else ""
        yield from _entry("First tensor", f"{lead.tensor} at step {lead.step:,} ({lead.order}){more}. {seen}")
        for p in t.first:
            yield from _entry("", f"{p.step:>8,}  {p.tensor}  {_how(p)}")
        yield from _entry("", "order: by step, then activations as they run and gradients backward")
    for why in t.skipped:
        yield from _entry("", f"not compared: {why}")


def _how(p: Parted) -> str:
    if p.deviation is None or p.limit is None:
        what = "its gradient holds " if p.stat == NONFINITE_GRAD else ""
        return f"{what}NaN or Inf in one run only"
    unit = UNITS[p.stat]
    word = "a jump; healthy ones" if p.jumped else "healthy"
    return f"{p.stat} {p.run:.3g} against {p.base:.3g} ({p.deviation:+.2g} {unit}, {word} below {p.limit:g})"


def _needed(c: Comparison) -> str:
    n = c.needed
    said = []
    if n.for_margin is not None:
        said.append(
            f"{n.for_margin:,} pairs like these show a difference of {c.settings.margin:g} nats (power 0.8)"
        )
    if c.decision == "undecided" and n.more_steps is not None:
        said.append(f"{n.more_steps:,} more steps if the difference stays as it is")
    elif c.decision == "undecided" and c.judged is not None and math.isfinite(c.judged.band.half):
        said.append("the difference is about the margin: choose another margin rather than wait")
    elif c.decision != "undecided":
        said.append("decided, no more steps needed")
    return "; ".join(said) or "more pairs"


def _method(c: Comparison) -> str:
    block = c.judged.band.noise.block if c.judged is not None else 1
    return (
        f"circular block bootstrap (blocks of {block} from the data), separation by a betting test that may "
        f"be looked at after every block, confidence {100 * c.settings.confidence:g} %, margin "
        f"{c.settings.margin:g} nats. These two runs only: another seed may differ by as much as the margin"
    )


def _entry(lead: str, text: str) -> list[str]:
    return _wrapped(f"{lead:<{LEAD}}", text)


def _wrapped(lead: str, text: str) -> list[str]:
    rows = textwrap.wrap(plain(text), max(WIDTH + 10 - len(lead), 20), break_on_hyphens=False) or [""]
    return [lead + rows[0], *(" " * len(lead) + row for row in rows[1:])]
