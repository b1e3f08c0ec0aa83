"""Made-up times, the same on every machine: a corpus must not depend on what else its machine was doing."""

from __future__ import annotations

import numpy as np

START_S = 1_764_400_000.0  # Unix time of every run's step 0
STEP_S, STEP_SPREAD = 0.25, 0.02  # a steady step and its relative standard deviation
DATA_S = 0.004
HICCUP_SHARE, HICCUP_TIMES = 0.004, (1.3, 2.0)  # garbage collection and the like: one step in 250
SAVE_EVERY, SAVE_AT, SAVE_S = 250, 125, 0.6  # writing a checkpoint holds one step up; not where faults begin


def step_times(seed: int, step: int) -> tuple[float, float]:
    """(step_time_s, data_time_s) of one step of a healthy run."""
    draw = np.random.default_rng([seed, step, 4])
    seconds = STEP_S * float(np.exp(STEP_SPREAD * draw.standard_normal()))
    if draw.random() < HICCUP_SHARE:
        seconds *= float(draw.uniform(*HICCUP_TIMES))
    if step % SAVE_EVERY == SAVE_AT:
        seconds += SAVE_S
    return seconds, DATA_S * float(np.exp(0.3 * draw.standard_normal()))


def time_of(step: int) -> float:
    """Unix time at which a step ends, near enough."""
    return START_S + STEP_S * (step + 1)
