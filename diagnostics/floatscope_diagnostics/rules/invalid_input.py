"""FS101 invalid input.

What it checks
    Non-finite values that enter with the batch, token ids outside the vocabulary, and batches without a
    single label.
Why it matters
    The fault is in the data, not in FP8: no recipe helps, and with NaN the weights are lost one step later.
How it decides
    Non-finite values: the first tensor in forward order of the first bad step is the first tensor of the
    network, its scale was fine, and nothing went before. Ids: counted by the agent, above the vocabulary
    size, or an index error that ended the run. Empty targets: label_tokens (or the smallest micro-batch) is
    0. All are invariants without thresholds.
What excludes it
    A scale that was wrong or clipped by more than half at the first bad tensor; weights, updates or
    gradients that were bad in an earlier step; a loss that was lost before tensors were logged.
Known false positives
    Padding that is NaN by design and masked later; a micro-batch of padding only has no labels and does
    no harm if the loss divides by all tokens.
What to do
    Check ids, labels and floats in the data loader; drop the batch and skip the step; if NaN reached the
    weights, restore the last clean checkpoint.
Source
    Measured on emulated FP8: NaN at the embedding shows in the first input with its usual amax, in every
    gradient in the same step and in all weights one step later. isnan(input_ids) is always false: ids are
    integers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from floatscope.protocol.names import split_tensor
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.placing import bad_values
from floatscope_diagnostics.rule import (
    Alternative,
    Evidence,
    Finding,
    Need,
    Remedy,
    Rule,
    RunFacts,
    Symptoms,
    Window,
    about,
)

ALL_GRADIENTS = 0.8  # share of the grad_output tensors that must be 0 at once
ABSURD_LOG2 = 4.0  # sixteen times the usual; an embedding's output moves by 0.2 octaves a step
UNSCALED = ("bf16", "fp16", "fp32")
GRADIENTS = ("/grad_output", "/grad_input", "/grad_weight")
# Above it the first bad tensor was clipping: then the scale is suspect, not the data.
SAT_OF_A_SCALE_FAULT = 1.5
ENTRY_ORDER = 1  # call orders begin at 0, with the embedding
_NUMBERED = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
UNSEEN = Alternative("op_kernel_fault", 0.45, "the tensors in front of it are not logged")
_INDEX_ERROR = re.compile(
    r"\b(index|indices|target|label|id)s?\b.{0,40}\bout of (range|bounds|vocab)"
    r"|Assertion.{0,80}(srcIndex|n_classes|num_classes|idx)|srcSelectDimSize|out of vocabulary",
    re.IGNORECASE,
)
_DEVICE_ASSERT = re.compile(r"device-side assert", re.IGNORECASE)
ANY_ASSERT = Alternative(
    "op_kernel_fault",
    0.3,
    "most device-side asserts are indices, but gather, sampling and losses have others",
)
_LOADER = Remedy(
    "Check the batch in the data loader (finite floats, ids below the vocabulary size, at least one label), "
    "drop a bad one and skip its step. Restore the last clean checkpoint if NaN reached the weights.",
    {
        "transformer_engine": "not a scale problem: no recipe setting helps",
        "torchao": "not a scale problem: no recipe setting helps",
        "megatron": "--check-for-nan-in-loss-and-grad (default on) stops at the step; --rerun-mode "
        "validate_results tells data from hardware",
        "deepspeed": "engine skips nothing in bf16: test the loss before engine.backward(loss)",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """Findings of all four kinds."""
    yield from _empty_targets(symptoms)
    yield from _zero_gradients(symptoms, run)
    yield from _bad_ids(symptoms, run)
    yield from _out_of_range(symptoms, run)
    yield from _nonfinite_values(symptoms, run)


def _empty_targets(symptoms: Symptoms) -> Iterator[Finding]:
    for s in symptoms.of("no_labels"):
        nan_loss = symptoms.near("loss_nonfinite", s.onset)
        grads = symptoms.near("nonfinite_grad", s.onset)
        head = _last_layer(grads[0]) if grads else ()
        yield Finding(
            cause="invalid_input",
            kind="empty_targets",
            symptom="nonfinite",
            severity="critical" if symptoms.near("nonfinite_weight_grad", s.onset, after=1) else "warning",
            confidence=0.98 if nan_loss else 0.9,
            onset=s.onset,
            detected=s.onset,
            resolved=None if s.open else s.last + 1,
            last=None if grads else s.last,
            rank=s.rank,
            segment=s.segment,
            tensors=head,
            affected=len(grads[0].tensors) if grads else 0,
            order="backward" if grads else None,
            summary=f"A batch without a single label at step {s.onset:,}: the mean over zero targets is NaN.",
            evidence=(
                Evidence("label_tokens", s.onset, 0.0, "above 0"),
                *(Evidence("loss", n.onset, n.value, "finite") for n in nan_loss),
            ),
            remedy=_LOADER,
            decisive_test="Count the labels that are not ignored in the batch of this step: zero proves it.",
        )


def _zero_gradients(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """label_tokens is not logged, but a loss of NaN over finite activations with all gradients 0 has one
    reason."""
    if "label_tokens" in run.scalars:
        return
    gradients = sum(1 for t in run.formats if t.endswith("/grad_output"))
    for s in symptoms.of("loss_nonfinite"):
        zero = [z for z in symptoms.near("amax_zero", s.onset) if z.rank == s.rank]
        dead = sum(1 for z in zero for t in z.tensors if t.endswith("/grad_output"))
        if not zero or dead < ALL_GRADIENTS * gradients or symptoms.near("nonfinite_forward", s.onset):
            continue
        yield about(
            s,
            cause="invalid_input",
            kind="empty_targets",
            symptom="nonfinite",
            severity="warning",
            confidence=0.82,
            tensors=(),
            order="backward",
            summary=f"The loss is NaN at step {s.onset:,} over finite activations while every gradient is "
            "exactly 0: a batch without a single label.",
            evidence=(
                Evidence("loss", s.onset, s.value, "finite"),
                Evidence("amax of all gradients", zero[0].onset, 0.0, "above 0", zero[0].tensor),
            ),
            remedy=_LOADER,
            decisive_test="Count the labels that are not ignored in the batch of this step: zero proves it.",
        )


def _bad_ids(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    seen = symptoms.of("id_out_of_range")
    for s in seen:
        largest = s.extra.get("largest")
        what = f"id {largest:g}" if largest is not None else f"{s.extra.get('count', 1):g} ids"
        limit = f"0 to {run.vocab_size - 1:,}" if run.vocab_size else "inside the vocabulary"
        yield _ids(
            s.onset, s.rank, s.segment, 0.98, f"{what} outside the vocabulary", ("input_id", largest, limit)
        )
    if run.status not in ("crashed", "failed") or run.reason is None or run.last_step is None or seen:
        return
    is_index, is_assert = _INDEX_ERROR.search(run.reason), _DEVICE_ASSERT.search(run.reason)
    if is_index or is_assert:
        text = run.reason.strip().splitlines()[-1][:120] if run.reason.strip() else run.reason
        shown = ("reason", text, "no index error")
        finding = _ids(run.last_step + 1, None, 0, 0.9, f"the run died with '{text}'", shown)
        if not is_index:
            finding = replace(
                finding,
                confidence=0.66,
                alternatives=(ANY_ASSERT,),
                summary=f"Most likely a token id or label outside the vocabulary at step {finding.onset:,}: "
                f"the run died with '{text}'.",
            )
        yield finding


def _out_of_range(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """Finite values of absurd size come in: the network's first tensor, which no scale can touch, leaps."""
    entry = _entry_layers(run)
    for s in symptoms.of("amax_jump"):
        first = tuple(t for t in s.first if split_tensor(t)[0] in entry and not t.endswith(GRADIENTS))
        unscaled = [t for t in first if run.formats.get(t) in UNSCALED and not t.endswith("/weight")]
        if not unscaled or s.value < ABSURD_LOG2:
            continue
        movers = ("norm_jump", "update_jump", "weights_jump", "lr_jump", "resumed")
        if any(symptoms.near(name, s.onset, before=4) for name in movers):
            continue
        loss = [n for name in ("loss_jump", "loss_nonfinite") for n in symptoms.near(name, s.onset)]
        yield about(
            s,
            cause="invalid_input",
            kind="out_of_range_values",
            symptom="spike_recovered" if not s.open else "overflow",
            severity="warning",
            confidence=0.85 if loss else 0.75,
            tensors=tuple(unscaled),
            order="forward",
            summary=f"Values of absurd size come in with the batch at step {s.onset:,}: {unscaled[0]} is "
            f"{2**s.peak:,.3g} times its usual largest value.",
            evidence=(
                Evidence("log2 amax above its level", s.peak_step, s.peak, "below 1.8", unscaled[0]),
                *(Evidence("loss", n.onset, n.peak, "as before") for n in loss[:1]),
            ),
            remedy=_LOADER,
            decisive_test="Print the largest value of this batch's features: it is out of the "
            "range of all others.",
        )


def _ids(
    onset: int,
    rank: int | None,
    segment: int,
    confidence: float,
    what: str,
    shown: tuple[str, float | str | None, str],
) -> Finding:
    signal, value, expected = shown
    return Finding(
        cause="invalid_input",
        kind="id_out_of_range",
        symptom="nonfinite",
        severity="critical",
        confidence=confidence,
        onset=onset,
        detected=onset,
        rank=rank,
        segment=segment,
        summary=f"A token id or label outside the vocabulary at step {onset:,}: {what}.",
        evidence=(Evidence(signal, onset, value, expected),),
        remedy=_LOADER,
        decisive_test="Run the same batch on the CPU: an IndexError in the embedding or the loss proves it.",
    )


def _nonfinite_values(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    for s in symptoms.of("nonfinite_forward"):
        if not s.first or not run.forward_order:
            continue
        entry = _entry_layers(run)
        if split_tensor(s.first[0])[0] not in entry or _explained_before(s, symptoms):
            continue
        clipped = s.extra.get("sat", 0.0) > SAT_OF_A_SCALE_FAULT
        scale_fault = symptoms.near("scale_nonfinite", s.onset, before=1)
        lost = symptoms.near("scale_reset", s.onset, before=2)
        if scale_fault or lost:
            continue
        loss = symptoms.near("loss_nonfinite", s.onset)
        confidence = 0.95 if loss else 0.8
        if any(n.onset < s.onset for n in symptoms.active("loss_nonfinite", s.onset)):
            confidence = (
                0.5  # the loss was lost before the tensors were logged again: the first tensor is not known
            )
        if clipped:
            confidence = 0.55
        begins = _begins_network(s.first[0], run)
        if not begins:
            confidence = 0.5  # what lies in front of it is not logged
        yield Finding(
            cause="invalid_input",
            kind="nonfinite_values",
            symptom="nonfinite",
            severity="critical",
            confidence=confidence,
            onset=s.onset,
            detected=s.onset,
            last=None,
            rank=s.rank,
            segment=s.segment,
            tensors=s.first,
            affected=len(s.tensors),
            order="forward",
            summary=_comes_in(s, begins=begins),
            alternatives=() if begins else (UNSEEN,),
            evidence=(
                bad_values(s),
                *(Evidence("loss", n.onset, n.value, "finite") for n in loss),
            ),
            remedy=_LOADER,
            decisive_test="Replay this batch from the last clean checkpoint in bf16: NaN again "
            "proves the data.",
        )


def _explained_before(s: Symptom, symptoms: Symptoms) -> bool:
    """NaN weights or updates of an earlier step: then the forward values are a consequence."""
    earlier = symptoms.of("nonfinite_weight_grad", "nonfinite_weight", "grad_norm_nonfinite")
    same_step_weight = [w for w in symptoms.of("nonfinite_weight") if w.onset == s.onset and w.rank == s.rank]
    earlier = [e for e in earlier if not symptoms.near("loss_scale_cut", e.onset, after=1)]
    return any(e.onset < s.onset and e.rank == s.rank and e.segment == s.segment for e in earlier) or bool(
        same_step_weight
    )


def _entry_layers(run: RunFacts) -> frozenset[str]:
    """Layers that the batch reaches first: the lowest call order, and the one after an embedding."""
    orders = sorted({run.call_order[t] for t in run.forward_order})
    first = {split_tensor(t)[0] for t in run.forward_order if run.call_order[t] == orders[0]}
    return frozenset(first)


def _comes_in(s: Symptom, *, begins: bool) -> str:
    what = "Inf" if s.extra.get("inf") else "NaN"
    if not begins:
        where = f"{s.first[0]}, the first tensor that is logged, not the first of the network"
        return f"{what} is first seen at step {s.onset:,} in {where}."
    where = f"{s.first[0]} is the first tensor of the network and its scale was fine"
    return f"{what} comes in with the batch at step {s.onset:,}: {where}."


def _begins_network(tensor: str, run: RunFacts) -> bool:
    """Whether nothing of the network lies in front of it, by its block's number and its declared order."""
    block = _NUMBERED.search(split_tensor(tensor)[0])
    return (block is None or int(block[1]) <= 1) and run.call_order.get(tensor, 0) <= ENTRY_ORDER


def _last_layer(grads: Symptom) -> tuple[str, ...]:
    return grads.first


RULE = Rule(
    "FS101",
    "invalid_input",
    ("invalid_input",),
    (Need("nan_count", ("input", "output")), Need("label_tokens"), Need("amax", ("input", "output"))),
    check,
)
