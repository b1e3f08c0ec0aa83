"""30 % more throughput and 25 % less cost are the same rule.

What people say
    Switch to FP8 if throughput rises by 30 % or cost falls by 25 %: two ways to say it.
What is true
    At an equal price per hour 30 % more throughput is 23.1 % less cost, and 25 % less cost needs 33.3 % more
    throughput. A loss gap costs too: at a slope of 0.1 nats per e-fold of tokens, a gap of 0.01 nats needs
    10.5 % more tokens and turns 1.30 into 1.18. Most published 8B runs miss both rules.
How it is measured
    Arithmetic: saving = 1 - 1 / speed-up. The tokens that make up a gap come from inverting a loss that falls
    with the logarithm of tokens, by bisection, and are compared with exp(gap / slope).
What to do
    floatscope compare RUN BASELINE --preset throughput-30 (or cost-25) applies a rule to measured runs, with
    intervals and the correction for the loss gap. Fit the slope on your own BF16 curve.
Source
    Arithmetic. Published gains: torchao, torchtitan (4 to 29 % at 8B).
"""

from __future__ import annotations

import math

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement

SLOPE, GAP, SPEEDUP = 0.1, 0.01, 1.30  # nats per e-fold of tokens, nats, ratio


def saving_pct(speedup: float) -> float:
    """Cost saved per token at an equal price per hour, in percent."""
    return 100.0 * (1.0 - 1.0 / speedup)


def _tokens_by_inversion(gap: float, slope: float) -> float:
    """Factor of tokens after which loss = L0 - slope * ln(tokens) is lower by `gap`, found by bisection."""
    low, high = 1.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        if slope * math.log(middle) < gap:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def measure() -> Measured:
    """The two rules and the correction."""
    saved = saving_pct(SPEEDUP)
    needed = 1.0 / (1.0 - 0.25)
    tokens = _tokens_by_inversion(GAP, SLOPE)
    net = SPEEDUP / tokens
    return Measured(
        figures=(
            Figure("cost saved by 1.30 times the throughput", saved, "%", (23.0, 23.2)),
            Figure("throughput needed to save 25 %", needed, "times", (1.333, 1.334)),
            Figure("tokens to make up 0.01 nats", tokens, "times", (1.104, 1.106)),
            Figure("speed-up of 1.30 left at equal loss", net, "times", (1.17, 1.18)),
        ),
        claimed=(Statement("30 % more throughput saves 25 % of the cost", saved >= 25),),
        true=(
            Statement(
                "the correction equals speed-up x exp(-gap / slope)",
                math.isclose(net, SPEEDUP * math.exp(-GAP / SLOPE), rel_tol=1e-9),
            ),
            Statement(
                "a gap of 0.01 nats eats more than a third of the gain",
                (SPEEDUP - net) / (SPEEDUP - 1) > 1 / 3,
            ),
        ),
    )


FACT = Fact("cost-rule", "false", measure)
