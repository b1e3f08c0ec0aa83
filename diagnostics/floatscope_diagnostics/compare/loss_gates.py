"""The gates of the loss: the difference now, and whether it grows."""

from __future__ import annotations

from dataclasses import replace

from floatscope_diagnostics.compare.drift import TIMES_AHEAD, Drift
from floatscope_diagnostics.compare.equivalence import LossAnswer
from floatscope_diagnostics.compare.gate import Gate, State
from floatscope_diagnostics.compare.judge import Comparison
from floatscope_diagnostics.compare.seeds import MIN_SEEDS, Seeds
from floatscope_diagnostics.compare.settled import Settled
from floatscope_diagnostics.compare.words import nats, signed

MORE_SEEDS = "Two more pairs of runs from other seeds (--pair), judged together."


def loss_gate(c: Comparison, part: Settled, found: LossAnswer, seeds: Seeds | None) -> Gate:
    """The equivalence test as a gate; several seeds, where given, decide instead of the one pair."""
    bad = c.nonfinite
    if bad is not None and bad.lasting and bad.side == "run":
        return Gate(
            "loss", "fail", f"The loss of RUN is not finite since step {bad.step:,}; the baseline's is.",
            limit=found.margin, unit="nats", more_steps=0,
        )  # fmt: skip
    if found.band is None:
        return Gate("loss", "undecided", _sentence(found.why), limit=found.margin, unit="nats",
                    next_step="Runs that share more steps.")  # fmt: skip
    band = found.band
    percent = f"{100 * found.confidence:g} %"
    steps = f"steps {part.step[0]:,} to {part.step[-1]:,}"
    head = (
        f"{signed(band.mean)} nats [{signed(band.low)}, {signed(band.high)}], {percent} interval of {steps}"
    )
    margin = nats(found.margin)
    state: State = {"worse": "fail", "undecided": "undecided"}.get(found.answer, "pass")  # type: ignore[assignment]
    said = {
        "equivalent": f"equivalent, inside the margin of {margin}",
        "non_inferior": f"not worse by the margin of {margin} (it may be better)",
        "worse": f"worse by more than the margin of {margin}",
    }.get(found.answer, f"margin {margin}: {found.why}")
    gate = Gate(
        "loss", state, f"{head}: {said}.", band.mean, band.low, band.high, found.margin, "nats",
        more_steps=found.more_steps, next_step=_next(part, found),
    )  # fmt: skip
    return gate if seeds is None else _with_seeds(gate, found, seeds)


def _next(part: Settled, found: LossAnswer) -> str:
    if found.answer != "undecided":
        return ""
    if part.warming:
        return "Train both past the learning rate's warm-up."
    if found.more_steps is not None:
        return f"About {found.more_steps:,} more steps of both runs, on the same batches."
    return MORE_SEEDS


def _with_seeds(gate: Gate, found: LossAnswer, seeds: Seeds) -> Gate:
    text, state = gate.sentence, gate.state
    if seeds.mean is not None and seeds.low is not None and seeds.high is not None:
        state = "pass" if seeds.high < found.margin else "fail" if seeds.low > found.margin else "undecided"
        word = {"pass": "inside", "fail": "beyond"}.get(state, "cannot be told from")
        text = (
            f"{len(seeds.means)} pairs from different seeds: {signed(seeds.mean)} nats [{signed(seeds.low)}, "
            f"{signed(seeds.high)}] by a t interval over their means, {word} the margin of "
            f"{nats(found.margin)}. The first alone: {text}"
        )
        gate = replace(
            gate, value=seeds.mean, low=seeds.low, high=seeds.high,
            more_steps=0 if state != "undecided" else None,
            next_step="" if state != "undecided" else "More seeds: --pair with further runs.",
        )  # fmt: skip
    elif len(seeds.means) > 1:
        means = ", ".join(signed(v) for v in seeds.means)
        text += f" {len(seeds.means)} pairs have {means}; {MIN_SEEDS} are needed to judge over seeds."
    if seeds.spread is not None and gate.value is not None:
        inside = abs(gate.value) <= seeds.spread
        text += (
            f" Null pairs differ by up to {nats(seeds.spread)} nats: "
            f"{'inside' if inside else 'outside'} the run-to-run spread."
        )
        if state == "fail" and inside:
            state = "undecided"
            gate = replace(gate, next_step=MORE_SEEDS, more_steps=None)
    return replace(gate, state=state, sentence=text)


def drift_gate(
    found: Drift | None, margin: float, planned_last: int | None, seeds: Seeds | None = None
) -> Gate:
    """Fails where the gap grows steadily and its line is beyond the margin at the planned end; undecided
    where it only rose, which over several seeds is told by their halves. Where no growth is shown, but one
    past the margin is not excluded either, it is undecided and keeps no decision open: no short pair can
    exclude it.
    """
    if found is None:
        return Gate(
            "drift", "not_checked", "Too few pairs to tell whether the gap grows.", limit=margin, unit="nats"
        )
    rate = f"{signed(found.per_1000)} nats in 1,000 steps [{signed(found.low)}, {signed(found.high)}]"
    if planned_last is not None:
        end = f"at the planned end, step {found.to_step:,}"
    else:
        end = f"at {TIMES_AHEAD:g} times this length, step {found.to_step:,}"
    ahead = f"{signed(found.ahead)} {end}"
    state: State = "pass"
    next_step = ""
    blocks = True
    if not found.grows and not found.may_grow:
        text = f"No growth is shown over these steps ({rate})"
        if found.high <= 0.0 or found.ahead_high <= margin:
            text += f", nor one past the margin {end}."
        else:
            state, blocks = "undecided", False
            text += (
                f", but a slow one is not excluded: carried on in a straight line the gap is "
                f"{signed(found.ahead)} [{signed(found.ahead_low)}, {signed(found.ahead_high)}] {end}."
            )
    elif found.ahead <= margin:
        text = f"The gap grows slowly: {rate}; carried on in a straight line it is {ahead}, below the margin."
    else:
        crossing = "" if found.reaches_at is None else f", past the margin at about step {found.reaches_at:,}"
        line = f"{rate}, {signed(found.now)} at the last step; carried on in a straight line it is {ahead}"
        if seeds is not None and seeds.risen_low is not None:
            fell = sum(v <= 0.0 for v in seeds.risen)
            state = "fail" if seeds.risen_low > 0.0 else "pass" if fell else "undecided"
            said = {"fail": "it grows in the mean of them", "pass": f"in {fell} it does not rise"}.get(
                state, "it rises in each, by how much cannot be told"
            )
            text = f"Of {len(seeds.risen)} pairs from different seeds: {said}. The first: {line}."
            next_step = "More seeds: --pair with further runs." if state == "undecided" else ""
        elif found.grows and found.steady:
            state = "fail"
            text = f"The gap grows: {line}{crossing}."
        else:
            state = "undecided"
            next_step = "As many steps again of both runs, or two more pairs from other seeds (--pair)."
            head = (
                "The gap rose" if found.grows else "The line of the gap rises, its halves do not for certain"
            )
            text = f"{head}: {line}. Two trainings that part by chance do the same for a while."
    return Gate(
        "drift", state, text, found.ahead, found.ahead_low, found.ahead_high, margin, "nats",
        next_step=next_step, blocks=blocks,
    )  # fmt: skip


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
