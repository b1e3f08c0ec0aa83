"""What makes two runs unfit for a decision, and what a decision has to do without.

Blocking: the loss difference would not be that of the precision. Not blocking: a part cannot be judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from floatscope_diagnostics.compare.gate import Refusal
from floatscope_diagnostics.compare.health import Health
from floatscope_diagnostics.compare.judge import Comparison
from floatscope_diagnostics.compare.throughput import NoThroughput, Throughput
from floatscope_diagnostics.compare.traces import tokens_a_step

SAME_SHARE = 0.005  # tokens of a step that differ by less are rounding
MIN_OVERLAP = 0.5  # of the shorter run's steps
LR_SHARE = 0.01  # of common steps on which the learning rate may differ (a rounded log)
BATCH = ("global_batch_size", "batch_size", "batch", "micro_batch_size_total", "train_batch_size")
LENGTH = ("seq_len", "sequence_length", "seq_length", "context", "max_seq_len", "block_size")
TOKENIZER = ("tokenizer", "tokenizer_name", "tokenizer_path", "tokenizer_model", "tokenizer_name_or_path")
OPTIMIZER = ("optimizer", "weight_decay", "betas", "beta1", "beta2", "clip", "grad_clip", "max_grad_norm")
MODEL = ("layers", "num_layers", "n_layers", "width", "hidden_size", "d_model", "heads", "num_heads")
DEPTH = 4
MAX_TEXT = 60


_SAME = {
    "other_data": "batches in the same order", "other_vocabulary": "vocabulary",
    "other_tokenizer": "tokenizer", "other_tokens_per_step": "tokens per step", "other_batch": "batch size",
    "other_length": "sequence length", "other_model": "model", "other_optimizer": "optimizer",
    "other_learning_rate": "learning rate", "little_overlap": "steps",
}  # fmt: skip
"""What a baseline must have in common with the run, by what is refused."""


def next_pair(codes: Sequence[str]) -> str:
    """What to compare instead of a pair that is refused for these reasons."""
    if "same_run" in codes:
        return "Name another run as the baseline."
    same = [_SAME[code] for code in codes if code in _SAME]
    if not same:
        return "A healthy baseline."
    what = " and the same ".join([", the same ".join(same[:-1]), same[-1]] if len(same) > 1 else same)
    healthy = " healthy" if "baseline_ill" in codes else ""
    return f"A{healthy} baseline with the same {what}, so that only the precision differs."


def refusals(
    c: Comparison, speed: Throughput | NoThroughput, health: tuple[Health | None, Health | None]
) -> tuple[Refusal, ...]:
    """In the order in which they matter."""
    found = [*_data(c), *_settings(c), *_rates(c), *_length(c)]
    if health[1] is not None and health[1].critical:
        found.append(
            Refusal(
                "baseline_ill",
                f"BASELINE has an open critical finding itself ({health[1].critical[0]}): it is no baseline. "
                "Repair or replace it.",
            )
        )
    if isinstance(speed, NoThroughput):
        found.append(
            Refusal(speed.code, f"{_sentence(speed.why)}: speed and cost cannot be judged.", blocks=False)
        )
    if c.tensors.why_not is not None or not c.tensors.common:
        why = c.tensors.why_not or "no tensor has the same name in both"
        found.append(
            Refusal(
                "no_tensors",
                f"The first layer where the runs part cannot be named: {why}.",
                blocks=False,
            )
        )
    return tuple(found)


def _data(c: Comparison) -> Iterator[Refusal]:
    p = c.pairs
    if c.run.label == c.base.label and c.run.run.name == c.base.run.name:
        yield Refusal("same_run", "RUN and BASELINE are the same: a run cannot be held against itself.")
    if not p.paired:
        yield Refusal(
            "other_data",
            f"The two runs did not see the same batches in the same order: {p.why}. Train both with one data "
            "seed, or fork both from one checkpoint.",
        )


def _settings(c: Comparison) -> Iterator[Refusal]:
    run, base = c.run.run, c.base.run
    if run.vocab_size is not None and base.vocab_size is not None and run.vocab_size != base.vocab_size:
        yield Refusal(
            "other_vocabulary",
            f"The vocabularies differ ({run.vocab_size:,} against {base.vocab_size:,} tokens): losses per "
            "token of other tokens cannot be compared.",
        )
    tokens = tokens_a_step(c.run.traces), tokens_a_step(c.base.traces)
    if tokens[0] and tokens[1] and abs(tokens[0] / tokens[1] - 1.0) > SAME_SHARE:
        yield Refusal(
            "other_tokens_per_step",
            f"A step has {tokens[0]:,.0f} tokens in RUN and {tokens[1]:,.0f} in BASELINE: the same "
            "step is not the same amount of training.",
        )
    ours, theirs = _flat(run.config), _flat(base.config)
    for code, names, why in (
        ("other_batch", BATCH, "the same step is not the same amount of training"),
        ("other_length", LENGTH, "the same step is not the same amount of training"),
        ("other_tokenizer", TOKENIZER, "losses per token of other tokens cannot be compared"),
        ("other_model", MODEL, "the models are not the same"),
        ("other_optimizer", OPTIMIZER, "the difference would not be that of the precision alone"),
    ):
        for name in names:
            a, b = ours.get(name), theirs.get(name)
            if a is not None and b is not None and a != b:
                yield Refusal(
                    code, f"{name} is {str(a)[:MAX_TEXT]} in RUN and {str(b)[:MAX_TEXT]} in BASELINE: {why}."
                )
                break


def _rates(c: Comparison) -> Iterator[Refusal]:
    d = c.lr_differs
    if d is not None and d.steps > LR_SHARE * max(c.pairs.common, 1):
        yield Refusal(
            "other_learning_rate",
            f"The learning rates differ on {d.steps:,} common steps, first at {d.step:,} ({d.run:.3g} "
            f"against {d.base:.3g}): the difference would be that of the learning rate.",
        )


def _length(c: Comparison) -> Iterator[Refusal]:
    p = c.pairs
    shorter = min(len(c.run.step), len(c.base.step))
    share = p.common / shorter if shorter else math.nan
    if p.common and share < MIN_OVERLAP:
        yield Refusal(
            "little_overlap",
            f"Only {p.common:,} of the {shorter:,} steps of the shorter run are in both logs: compare runs "
            "that cover the same steps.",
        )
    elif c.run.step[-1] != c.base.step[-1]:
        yield Refusal(
            "other_last_step",
            f"RUN ends at step {c.run.step[-1]:,}, BASELINE at {c.base.step[-1]:,}: judged up to step "
            f"{int(p.step[-1]):,} only. A learning rate that decays over another length differs as well.",
            blocks=False,
        )


def _flat(config: Mapping[str, Any], depth: int = DEPTH) -> dict[str, Any]:
    """Settings by their last name; the outermost wins."""
    out: dict[str, Any] = {}
    inner: list[Mapping[str, Any]] = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            inner.append(value)
        elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
            out[name] = value
        elif isinstance(value, list):
            out[name] = json_text(value)
    if depth:
        for part in inner:
            for name, value in _flat(part, depth - 1).items():
                out.setdefault(name, value)
    return out


def json_text(value: list[Any]) -> str:
    return ", ".join(str(v) for v in value[:16])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
