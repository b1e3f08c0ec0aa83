"""The advice as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from floatscope_diagnostics.advisor.advice import Advice, Framework, Gain, LayerAdvice, NotDecided
from floatscope_diagnostics.advisor.problems import WINDOW_STEPS
from floatscope_diagnostics.advisor.words import counted, is_cause, is_stated, problem_sentence, targets
from floatscope_diagnostics.reports.terminal import Style, plain

SHOWN = 12
TITLES: dict[Framework, tuple[str, str]] = {
    "te": ("Transformer Engine", "transformer_engine"),
    "torchao": ("torchao", "torchao"),
    "megatron": ("Megatron-LM", "megatron"),
    "floatscope": ("floatscope train", "floatscope_train"),
}

_HINTS = {
    "no_baseline": "--baseline B names one.",
    "too_recent": "--level NAME=NUMBER sets a limit.",
    "hardware": "--gpu NAME names it.",
}
"""The option of the command line that helps, by the code of a note."""


def report(advice: Advice, style: Style, *, every_framework: bool = False) -> str:
    """The text, with a newline at its end."""
    lines = [*_head(advice, style), *_layers(advice, style), *_gain(advice.predicted, style, advice)]
    if advice.layers or any(advice.settings.to_json().values()):
        lines += _settings(advice, style, every_framework)
    if advice.experiment:
        lines += ["", style.paint("Check it", "strong"), *_wrapped(advice.experiment, style, "  ")]
    notes = [note for note in advice.not_decided if note.sentence != advice.sentence]
    notes.sort(key=lambda note: not is_cause(note.code))
    lines += _notes("Seen besides", [note for note in notes if is_stated(note.code)], style)
    lines += _notes("What could not be decided", [note for note in notes if not is_stated(note.code)], style)
    if advice.always:
        lines += ["", *(style.paint(line, "faint") for line in _wrapped(advice.always, style, ""))]
    return style.fit("\n".join(lines)) + "\n"


def _head(advice: Advice, style: Style) -> Iterator[str]:
    role = {"keep_fp8": "ok", "move_layers": "warning", "not_layers": "warning", "cannot_say": "faint"}
    span = "" if advice.steps is None else f", steps {advice.steps[0]:,} to {advice.steps[1]:,}"
    yield style.paint(f"{plain(advice.run)}{span}", "faint")
    for line in _wrapped(advice.sentence, style, ""):
        yield style.paint(line, role[advice.decision])


def _layers(advice: Advice, style: Style) -> Iterator[str]:
    if advice.layers:
        yield ""
        yield style.paint(f"{targets(advice)} (most harm per FLOP first)", "strong")
        for one in advice.layers[:SHOWN]:
            yield _row(one, style)
            for why in one.why:
                yield from _wrapped(why, style, "", first="      ", rest="        ")
        more = len(advice.layers) - SHOWN
        if more > 0:
            yield f"  and {counted(more, 'more layer')}; all of them: --json"
    elif advice.problems:
        yield ""
        yield style.paint("Problems", "strong")
        for problem in advice.problems[:SHOWN]:
            yield from _wrapped(
                f"{problem.layer} {problem_sentence(problem)}", style, "", first="  ", rest="    "
            )
        more = len(advice.problems) - SHOWN
        if more > 0:
            yield f"  and {counted(more, 'more problem')}; all of them: --json"
    if advice.problems:
        told = (
            f"(each figure is the mean over the worst {WINDOW_STEPS} steps of its tensor, without their "
            "highest fifth; single steps lie above and below it)"
        )
        yield from _wrapped(told, style, "  ")


def _row(one: LayerAdvice, style: Style) -> str:
    share = "" if one.flops_share_pct is None else f", {one.flops_share_pct:.1f} % of the FLOPs"
    to = "BF16" if one.to == "bf16" else one.to
    return f"  {style.paint(plain(one.layer), 'name')}  {one.from_} -> {to}  (harm {one.harm:.2f}{share})"


def _gain(gain: Gain, style: Style, advice: Advice) -> Iterator[str]:
    if not advice.layers:
        return
    yield ""
    yield style.paint("What it should bring and cost", "strong")
    if gain.gap_closed_pct is not None and gain.gap_nats is not None:
        over = (
            ""
            if gain.gap_steps is None
            else f" (mean of steps {gain.gap_steps[0]:,} to {gain.gap_steps[1]:,})"
        )
        if gain.gap_chance_nats is not None:
            over += f", more than the {gain.gap_chance_nats:.2g} nats that chance explains"
        yield from _wrapped(
            f"gap to the reference {gain.gap_nats:.3f} nats{over}, of which {gain.gap_closed_pct:.0f} % "
            f"should close ({gain.gap_closed_low_pct or 0:.0f} to {gain.gap_closed_high_pct or 0:.0f} %)",
            style,
            "  ",
        )
    elif gain.harm_removed_pct is not None:
        yield f"  {gain.harm_removed_pct:.0f} % of the harm of all casts goes"
    if gain.flops_leaving_pct == 0:
        yield "  no layer leaves FP8"
    elif gain.flops_leaving_pct is not None:
        yield f"  {gain.flops_leaving_pct:.1f} % of the FP8 layers' FLOPs would run in BF16"
    if gain.speed_cost_pct is not None:
        effect = f"{abs(gain.speed_cost_pct):.1f} % {'longer' if gain.speed_cost_pct >= 0 else 'shorter'}"
        yield f"  GEMMs of the linear layers {effect}"
    if gain.speed_from:
        hint = "" if gain.gpu_named else "; --gpu NAME prices it for yours"
        yield from _wrapped(f"({gain.speed_from}{hint})", style, "  ")


def _settings(advice: Advice, style: Style, every: bool) -> Iterator[str]:
    texts = advice.settings.to_json()
    chosen = list(TITLES) if every else [advice.framework]
    for name in chosen:
        title, key = TITLES[name]
        if not texts[key]:
            continue
        yield ""
        yield style.paint(f"Settings for {title}", "strong")
        yield from (f"  {line}".rstrip() for line in texts[key].rstrip().splitlines())
    if not every:
        yield ""
        yield style.paint("  other frameworks: --framework te|torchao|megatron|floatscope|all", "faint")


def _notes(title: str, notes: Sequence[NotDecided], style: Style) -> Iterator[str]:
    if notes:
        yield ""
        yield style.paint(title, "strong")
    for note in notes:
        text = f"{note.sentence} {_HINTS.get(note.code, '')}".rstrip()
        yield from _wrapped(text, style, "  ", first="  - ", rest="    ")


def _wrapped(
    text: str, style: Style, indent: str, *, first: str | None = None, rest: str | None = None
) -> list[str]:
    return textwrap.wrap(
        plain(text),
        style.width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
