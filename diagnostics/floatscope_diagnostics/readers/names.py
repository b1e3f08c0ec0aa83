"""Column names people use, and what they mean here."""

from __future__ import annotations

import re
from collections.abc import Iterable

# First match wins; names are compared lower case, with everything but letters and digits as "_".
ALIASES: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "steps", "iteration", "iterations", "iter", "it", "train_step",
             "train_steps",
             "trainer_global_step", "train_global_step", "num_updates", "update", "batch"),
    "loss": ("loss", "train_loss", "training_loss", "loss_train", "lm_loss", "train_lm_loss",
             "train_loss_step",
             "loss_step", "total_loss", "train_total_loss", "ce_loss", "nll_loss"),
    "eval_loss": ("eval_loss", "val_loss", "valid_loss", "validation_loss", "eval_loss_step", "test_loss",
                  "loss_val", "loss_eval", "val_loss_epoch"),
    "ref_loss": ("ref_loss", "baseline_loss"),
    "grad_norm": ("grad_norm", "gradnorm", "gnorm", "train_grad_norm", "gradient_norm", "total_grad_norm",
                  "global_grad_norm", "train_gnorm"),
    "lr": ("lr", "learning_rate", "train_lr", "train_learning_rate", "lr_adamw", "lr_adamw_pg1"),
    "loss_scale": ("loss_scale", "train_loss_scale", "grad_scale", "amp_scale"),
    "skipped_steps": ("skipped_steps", "number_of_skipped_iterations", "skipped"),
    "update_norm": ("update_norm", "train_update_norm"),
    "param_norm": ("param_norm", "params_norm", "weight_norm", "train_param_norm"),
    "step_time_s": ("step_time_s", "step_time", "time_per_step", "train_step_time", "iteration_time"),
    "tokens": ("tokens", "num_tokens", "train_tokens", "num_input_tokens_seen"),
    "label_tokens": ("label_tokens",),
    "rank": ("rank", "global_rank"),
    "time": ("time", "timestamp", "wall_time", "_timestamp"),
}  # fmt: skip
_OTHER = re.compile(r"[^a-z0-9]+")


def normal(name: str) -> str:
    return _OTHER.sub("_", name.strip().lower()).strip("_")


def guess(columns: Iterable[str]) -> dict[str, str]:
    """Column -> our name. Each of our names is given once, to the column whose alias comes first in the
    list."""
    by_normal: dict[str, str] = {}
    for column in columns:
        by_normal.setdefault(normal(column), column)
    out: dict[str, str] = {}
    for ours, aliases in ALIASES.items():
        for alias in aliases:
            found = by_normal.get(alias)
            if found is not None and found not in out:
                out[found] = ours
                break
    return out


def mapping_note(mapping: dict[str, str]) -> str | None:
    """The guessed names in one line, without those that were right already."""
    changed = [f"{theirs} as {ours}" for theirs, ours in mapping.items() if theirs != ours]
    return "column names guessed: " + ", ".join(changed) if changed else None
