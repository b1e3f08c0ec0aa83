"""Column names people use, and what they mean here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# First match wins; names are compared lower case, with everything but letters and digits as "_".
ALIASES: dict[str, tuple[str, ...]] = {
    "step": (
        "step", "global_step", "steps", "iteration", "iterations", "iter", "it", "current_steps",
        "current_step", "train_step", "train_steps", "trainer_global_step", "train_global_step",
        "num_updates", "update", "updates", "n_iter", "iter_num", "total_timesteps",
        "time_total_timesteps", "train_iter", "batch", "total_steps",
    ),
    "loss": (
        "loss", "train_loss", "training_loss", "loss_train", "lm_loss", "train_lm_loss",
        "train_loss_step", "loss_step", "total_loss", "train_total_loss", "loss_total",
        "train_loss_total", "ce_loss", "nll_loss", "train_nll_loss", "train_ce_loss",
        "train_loss_total_loss", "train_loss_epoch", "loss_epoch", "train_loss_avg", "avg_loss",
        "mean_loss", "train_avg_loss", "train_mean_loss", "loss_metrics_global_avg_loss",
        "main_loss", "epoch_loss", "train_epoch_loss",
    ),
    "eval_loss": (
        "eval_loss", "val_loss", "valid_loss", "validation_loss", "eval_loss_step", "test_loss",
        "loss_val", "loss_eval", "loss_valid", "loss_validation", "val_loss_epoch", "dev_loss",
        "valid_loss_epoch", "val_total_loss", "loss_test", "eval_nll_loss", "val_lm_loss",
        "lm_loss_validation", "validation_main_loss", "val_epoch_loss", "epoch_val_loss",
    ),
    "ref_loss": ("ref_loss", "baseline_loss"),
    "grad_norm": (
        "grad_norm", "gradnorm", "gnorm", "train_grad_norm", "gradient_norm", "total_grad_norm",
        "global_grad_norm", "train_gnorm", "grad_norm_total", "grad_2_0_norm_total", "grads_norm",
        "l2_norm_grad_global",
    ),
    "lr": (
        "lr", "learning_rate", "train_lr", "train_learning_rate", "lr_adamw", "lr_adamw_pg1", "lr_adam",
        "lr_sgd", "lr_sgd_pg1", "lr_adam_pg1", "lr_pg0", "lr_0", "optim_lr", "optimizer_lr",
        "lr_scheduler",
    ),
    "loss_scale": ("loss_scale", "train_loss_scale", "grad_scale", "amp_scale", "scaler_scale"),
    "skipped_steps": ("skipped_steps", "number_of_skipped_iterations", "skipped"),
    "update_norm": ("update_norm", "train_update_norm"),
    "param_norm": ("param_norm", "params_norm", "weight_norm", "train_param_norm"),
    "step_time_s": (
        "step_time_s", "step_time", "time_per_step", "train_step_time", "iteration_time", "sec_per_step",
        "seconds_per_step",
    ),
    "tokens": ("tokens", "num_tokens", "train_tokens", "num_input_tokens_seen", "tokens_seen"),
    "label_tokens": ("label_tokens",),
    "rank": ("rank", "global_rank"),
    "time": ("time", "timestamp", "wall_time", "_timestamp"),
}  # fmt: skip
_OTHER = re.compile(r"[^a-z0-9]+")
# Folders and groups that trackers put in front of a name without saying anything by it.
_GROUPS = re.compile(
    r"^(?:metrics?|logs?|stats|scalars|charts|perf|optim|optimizer|trainer|training)_(?=[a-z])"
)
_CANDIDATES = 3  # further columns named for a guess that was not the only one possible
_EXPORTED = re.compile(r"^(?P<run>.{1,300}) - (?P<name>[^ ].{0,300})$")  # "run - train/loss": exported charts
_BOUNDS = ("__MIN", "__MAX")  # of the charts' shaded area
# Losses that do not fall in a run that goes well: two networks against each other, an actor and its critic.
_GAN = re.compile(
    r"discriminator|generator|(?:^|_)(?:d|g)_loss|loss_(?:d|g)(?:_|$)|(?:^|_)(?:errd|errg|d_real|d_fake|g_gan)(?:_|$)"
)
_RL = re.compile(
    r"actor|critic|policy_loss|value_loss|policy_gradient_loss|ep_?rew|eprew|ep_len_mean|episode_reward"
    r"|(?:^|_)rollout_|explained_variance|reward_mean|mean_reward|episode_return|reference_q"
)
# Parts of a detector's loss: with no total in the log their sum is it.
_PARTS = re.compile(r"^(train|val)_((?:box|obj|cls|dfl|seg|pose|kobj|giou|iou|l1|rle)(?:_om|_oo)?)_loss$")


def normal(name: str) -> str:
    """Lower case, everything but letters and digits as one underscore."""
    return _OTHER.sub("_", name.strip().lower()).strip("_")


def guess(columns: Iterable[str]) -> dict[str, str]:
    """Column -> our name. Each of our names is given once, to the column whose alias comes first in the
    list."""
    by_normal = _by_normal(columns)
    out: dict[str, str] = {}
    for ours, aliases in ALIASES.items():
        for alias in aliases:
            found = by_normal.get(alias)
            if found is not None and found not in out:
                out[found] = ours
                break
    return out


def also_possible(columns: Iterable[str], mapping: Mapping[str, str]) -> list[str]:
    """For each guess among several, a sentence that names the others."""
    by_normal = _by_normal(columns)
    notes = []
    for theirs, ours in mapping.items():
        others = [by_normal[a] for a in ALIASES.get(ours, ()) if a in by_normal]
        others = [o for o in dict.fromkeys(others) if o not in mapping][:_CANDIDATES]
        if others:
            notes.append(f"{ours} is read from {theirs}; {', '.join(others)} could be it too (--map)")
    return notes


def rivals(columns: Iterable[str]) -> str | None:
    """Why no column is a loss that should fall, or None: a GAN's and reinforcement learning's do not."""
    names = [normal(c) for c in columns]
    if any(_GAN.search(n) for n in names):
        return "two losses that play against each other: not judged as a falling loss"
    if any(_RL.search(n) for n in names):
        return "reinforcement learning: its losses are kept by their names, not judged as a falling loss"
    return None


def parts_of_loss(columns: Iterable[str]) -> dict[str, list[str]]:
    """``loss`` and ``eval_loss`` as sums of a detector's columns (``train/box_loss`` and others)."""
    out: dict[str, list[str]] = {}
    for column in columns:
        match = _PARTS.match(normal(column))
        if match is not None:
            out.setdefault("loss" if match[1] == "train" else "eval_loss", []).append(column)
    return {ours: parts for ours, parts in out.items() if len(parts) > 1}


def exported(columns: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Columns of a tracker's exported chart, ``run - name``: column -> name, those of the first run alone,
    and the names of all runs in order. Empty if the columns are not so."""
    names: dict[str, tuple[str, str]] = {}
    for column in columns:
        match = _EXPORTED.match(column)
        if match is not None:
            names[column] = (match["run"], match["name"])
    runs = list(dict.fromkeys(run for run, _ in names.values()))
    chosen = {c: name for c, (run, name) in names.items() if run == runs[0] and not name.endswith(_BOUNDS)}
    return chosen, runs


def _by_normal(columns: Iterable[str]) -> dict[str, str]:
    """Normal form -> column; a form that only some group in front hides comes after the plain ones."""
    plain: dict[str, str] = {}
    grouped: dict[str, str] = {}
    for column in columns:
        name = normal(column)
        plain.setdefault(name, column)
        bare = _GROUPS.sub("", name)
        if bare != name:
            grouped.setdefault(bare, column)
    return {**grouped, **plain}
