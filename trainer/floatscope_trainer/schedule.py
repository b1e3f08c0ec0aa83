"""The learning rate of a step."""

from __future__ import annotations

import math

from floatscope_trainer.config import OptimConfig


def learning_rate(step: int, config: OptimConfig, *, steps: int) -> float:
    """Linear warm-up to `config.lr`, then half a cosine down to `config.min_lr` of it, then flat. step counts
    from 0.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    end = config.decay_steps or steps
    done = min(1.0, (step - config.warmup) / max(1, end - config.warmup))
    return config.lr * (config.min_lr + (1 - config.min_lr) * 0.5 * (1 + math.cos(math.pi * done)))
