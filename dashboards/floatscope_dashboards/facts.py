"""Parts of the verdict banner: since when, where it began, what to do, candidates, what was looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from floatscope_dashboards.findings import Evidence, Finding, Setting
from floatscope_dashboards.say import Say
from floatscope_dashboards.tensor_links import tensor_href
from floatscope_dashboards.views import RunView
from floatscope_dashboards.wording import as_int, as_text, health_sign, number_text, signed_text

FP8_FORMATS = frozenset({"e4m3", "e5m2", "e4m3fnuz", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4"})
PLAIN_RECIPES = frozenset({"bf16", "fp32", "fp16_amp", "none", ""})
MAX_CANDIDATE_POINTS = 4
THOUSAND, MILLION, BILLION, TRILLION = 1e3, 1e6, 1e9, 1e12


@dataclass(frozen=True)
class Candidate:
    """One of two explanations that fit, with what speaks for (True) and against (False) it."""

    title: str
    confidence_pct: int
    points: tuple[tuple[bool, str], ...]


@dataclass(frozen=True)
class Facts:
    """Since when, where, what to do. since_time: when the onset's step was trained. where_href: the page
    of the tensor, "" without one.
    """

    since: str
    since_notes: tuple[str, ...]
    where: str
    where_is_name: bool
    where_notes: tuple[str, ...]
    actions: tuple[str, ...]
    settings: tuple[Setting, ...]
    since_time: datetime | None = None
    since_ago: str = ""
    where_href: str = ""


@dataclass(frozen=True)
class Folded:
    """A further finding, one line that opens. state_words: what people did about it, "" for nothing."""

    key: str
    kind: str
    word: str
    title: str
    note: str
    facts: Facts
    body: str
    state_words: str = ""


@dataclass(frozen=True)
class Coverage:
    """What the quiet verdict rests on: tensors in FP8, all tensors, the recipe's name."""

    in_fp8: int
    tensors: int
    recipe: str


def steps_judged(view: RunView) -> int:
    return as_int(source(view).get("steps")) or 0


def source(view: RunView) -> Mapping[str, Any]:
    source = view.verdict.get("source")
    return source if isinstance(source, Mapping) else {}


def candidates(lead: Finding, say: Say) -> tuple[Candidate, ...]:
    """The lead's own cause against the best alternative; two alternatives when no cause was determined."""
    supports = tuple((True, _evidence_line(item, say)) for item in lead.evidence[:MAX_CANDIDATE_POINTS])
    ranked = [
        Candidate(item.label, percent(item.confidence), ((False, item.against),) if item.against else ())
        for item in lead.alternatives
    ]
    if lead.cause == "undetermined":
        return tuple(ranked[:2])
    own = Candidate(lead.label, percent(lead.confidence or 0.0), supports)
    return (own, *ranked[:1])


def _evidence_line(item: Evidence, say: Say) -> str:
    what = say("{signal} in {tensor}", signal=item.label, tensor=item.tensor) if item.tensor else item.label
    if item.step is None:
        found = say("{what}: {value}", what=what, value=item.value)
    else:
        found = say("{what}: {value} at step {step}", what=what, value=item.value, step=say.step(item.step))
    return (
        say("{found}, expected {expected}", found=found, expected=item.expected) if item.expected else found
    )


def facts(finding: Finding, view: RunView, say: Say, *, with_remedy: bool, lead: bool = False) -> Facts:
    """Of one finding. lead: it is the one whose onset the run's own facts are about."""
    where = finding.tensor or finding.layer
    known = view.facts
    at = known.onset_time if lead else None
    return Facts(
        since=say("Step {step}", step=say.step(finding.onset_step))
        if finding.onset_step is not None
        else say("Unknown"),
        since_notes=tuple(_since_notes(finding, view, say, lead=lead)),
        where=where or say("Whole run"),
        where_is_name=bool(where),
        where_notes=tuple(_where_notes(finding, view, say)),
        actions=finding.remedy if with_remedy else (),
        settings=_preferred_first(finding.settings, view) if with_remedy else (),
        since_time=at,
        since_ago="" if at is None else say.duration((view.now - at).total_seconds()),
        where_href=tensor_href(view.row.run_id, finding.tensor, at=finding.onset_step)
        if finding.tensor
        else "",
    )


def _since_notes(finding: Finding, view: RunView, say: Say, *, lead: bool) -> list[str]:
    notes: list[str] = []
    onset, window = finding.onset_step, finding.onset_window
    if window is not None and window[1] > window[0]:
        notes.append(
            say("Onset between {first} and {last}.", first=say.step(window[0]), last=say.step(window[1]))
        )
    if finding.detected_step is not None and onset is not None:
        delay = finding.detected_step - onset
        if delay <= 0:
            notes.append(say("Seen on the same step."))
        else:
            notes.append(say.plural("Seen {n} step later.", "Seen {n} steps later.", delay))
    if view.row.last_step is not None and onset is not None and view.row.last_step > onset:
        behind = view.row.last_step - onset
        tokens = view.facts.tokens_since_onset if lead else None
        if tokens:
            notes.append(
                say.plural(
                    "{n} step, {tokens} tokens trained since.",
                    "{n} steps, {tokens} tokens trained since.",
                    behind,
                    tokens=amount(tokens),
                )
            )
        else:
            notes.append(say.plural("{n} step trained since.", "{n} steps trained since.", behind))
    change = view.facts.loss_since_onset if lead else None
    if change is not None:
        notes.append(say("Loss {change} nats since the onset.", change=signed_text(change, 3)))
    clean = as_int(view.verdict.get("last_clean_step"))
    if clean is not None and onset is not None and clean < onset:
        notes.append(
            say("Last clean step {step}: use a checkpoint from there or before.", step=say.step(clean))
        )
    return notes


def _where_notes(finding: Finding, view: RunView, say: Say) -> list[str]:
    notes: list[str] = []
    total = as_int(source(view).get("tensors"))
    affected = finding.affected_tensors
    if affected:
        if total and total >= affected:
            notes.append(say("{n} of {total} tensors affected.", n=f"{affected:,}", total=f"{total:,}"))
        else:
            notes.append(say.plural("{n} tensor affected.", "{n} tensors affected.", affected))
    if finding.order == "forward":
        notes.append(say("First seen in the forward pass."))
    elif finding.order == "backward":
        notes.append(say("First seen in the backward pass."))
    if finding.rank is not None and (as_int(view.info.get("ranks")) or 1) > 1:
        notes.append(say("Rank {rank}.", rank=finding.rank))
    if not (finding.tensor or finding.layer):
        notes.append(say("Not tied to one tensor."))
    return notes


def _preferred_first(settings: tuple[Setting, ...], view: RunView) -> tuple[Setting, ...]:
    """torchao first for a torchao recipe; the order of the finding otherwise."""
    recipe = view.info.get("recipe")
    name = as_text(recipe.get("name")) if isinstance(recipe, Mapping) else ""
    if name.startswith("ao_"):
        return tuple(sorted(settings, key=lambda item: item.framework != "torchao"))
    return settings


def fold(
    finding: Finding, view: RunView, say: Say, *, lead: Finding | None = None, state: str = ""
) -> Folded:
    """One line. lead: the finding it is put in relation to."""
    sign = health_sign(finding.severity)
    if finding.recovered:
        word = say("Recovered")
    else:
        word = say("Note") if finding.severity == "info" else say(sign.word)
    return Folded(
        key=finding.key,
        kind="back" if finding.recovered else sign.kind,
        word=word,
        title=finding.title,
        note=", ".join(_fold_notes(finding, lead, say)),
        facts=facts(finding, view, say, with_remedy=not finding.uncertain),
        body=finding.decisive_test,
        state_words=state,
    )


def _fold_notes(finding: Finding, lead: Finding | None, say: Say) -> list[str]:
    notes = []
    onset = finding.onset_step
    if onset is not None:
        notes.append(say("from step {step}", step=say.step(onset)))
    if lead is not None and lead.onset_step is not None and onset is not None:
        later = onset - lead.onset_step
        if later == 0:
            notes.append(say("same step as the first"))
        elif later > 0:
            notes.append(say.plural("{n} step after the first", "{n} steps after the first", later))
        else:
            notes.append(say.plural("{n} step before the first", "{n} steps before the first", -later))
    if finding.recovered and finding.resolved_step is None:
        notes.append(say("recovered"))
    elif finding.recovered:
        notes.append(say("recovered at {step}", step=say.step(finding.resolved_step)))
    return notes


def coverage(view: RunView) -> Coverage:
    """How many tensors there are, and how many of them are cast to FP8."""
    tensors = view.info.get("tensors")
    formats = [
        as_text(item.get("format"))
        for item in (tensors.values() if isinstance(tensors, Mapping) else ())
        if isinstance(item, Mapping)
    ]
    recipe = view.info.get("recipe")
    name = as_text(recipe.get("name")) if isinstance(recipe, Mapping) else ""
    return Coverage(sum(item in FP8_FORMATS for item in formats), len(formats), name)


def amount(value: float) -> str:
    """A large number in short: 960, 12.3 k, 24.1 M, 1.71 T."""
    for size, unit in ((TRILLION, "T"), (BILLION, "B"), (MILLION, "M"), (THOUSAND, "k")):
        if abs(value) >= size:
            return number_text(float(f"{value / size:.3g}")) + f"\u202f{unit}"
    return number_text(value)


def percent(confidence: float) -> int:
    """0 to 1 as whole percent; never 100, because no diagnosis is certain."""
    return min(99, max(0, round(100 * confidence)))
