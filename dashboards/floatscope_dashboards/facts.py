"""Parts of the verdict banner: since when, where it began, what to do, candidates, what was looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.findings import Evidence, Finding, Setting
from floatscope_dashboards.views import RunView
from floatscope_dashboards.wording import as_int, as_text, count_text, health_sign, step_text

FP8_FORMATS = frozenset({"e4m3", "e5m2", "e4m3fnuz", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4"})
PLAIN_RECIPES = frozenset({"bf16", "fp32", "fp16_amp", "none", ""})
MAX_CANDIDATE_POINTS = 4


@dataclass(frozen=True)
class Candidate:
    """One of two explanations that fit, with what speaks for (True) and against (False) it."""

    title: str
    confidence_pct: int
    points: tuple[tuple[bool, str], ...]


@dataclass(frozen=True)
class Facts:
    """Since when, where, what to do."""

    since: str
    since_notes: tuple[str, ...]
    where: str
    where_is_name: bool
    where_notes: tuple[str, ...]
    actions: tuple[str, ...]
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Folded:
    """A further finding, one line that opens."""

    key: str
    kind: str
    word: str
    title: str
    note: str
    facts: Facts
    body: str


def steps_judged(view: RunView) -> int:
    return as_int(source(view).get("steps")) or 0


def source(view: RunView) -> Mapping[str, Any]:
    source = view.verdict.get("source")
    return source if isinstance(source, Mapping) else {}


def candidates(lead: Finding) -> tuple[Candidate, ...]:
    """The lead's own cause against the best alternative; two alternatives when no cause was determined."""
    supports = tuple((True, _evidence_line(item)) for item in lead.evidence[:MAX_CANDIDATE_POINTS])
    ranked = [
        Candidate(item.label, percent(item.confidence), ((False, item.against),) if item.against else ())
        for item in lead.alternatives
    ]
    if lead.cause == "undetermined":
        return tuple(ranked[:2])
    own = Candidate(lead.label, percent(lead.confidence or 0.0), supports)
    return (own, *ranked[:1])


def _evidence_line(item: Evidence) -> str:
    place = f" in {item.tensor}" if item.tensor else ""
    expected = f", expected {item.expected}" if item.expected else ""
    at = f" at step {step_text(item.step)}" if item.step is not None else ""
    return f"{item.label}{place}: {item.value}{at}{expected}"


def facts(finding: Finding, view: RunView, *, with_remedy: bool) -> Facts:
    since: list[str] = []
    window = finding.onset_window
    if window is not None and window[1] > window[0]:
        since.append(f"Onset between {step_text(window[0])} and {step_text(window[1])}.")
    if finding.detected_step is not None and finding.onset_step is not None:
        delay = finding.detected_step - finding.onset_step
        since.append("Seen on the same step." if delay <= 0 else f"Seen {count_text(delay, 'step')} later.")
    if view.row.last_step is not None and finding.onset_step is not None:
        behind = view.row.last_step - finding.onset_step
        if behind > 0:
            since.append(f"{count_text(behind, 'step')} trained since.")
    clean = as_int(view.verdict.get("last_clean_step"))
    if clean is not None and finding.onset_step is not None and clean < finding.onset_step:
        since.append(f"Last clean step {step_text(clean)}.")
    where = finding.tensor or finding.layer
    notes: list[str] = []
    total = as_int(source(view).get("tensors"))
    if finding.affected_tensors:
        of = f" of {total:,}" if total and total >= finding.affected_tensors else ""
        notes.append(f"{finding.affected_tensors:,}{of} tensors affected.")
    if finding.order in ("forward", "backward"):
        notes.append(f"First seen in the {finding.order} pass.")
    if finding.rank is not None and (as_int(view.info.get("ranks")) or 1) > 1:
        notes.append(f"Rank {finding.rank}.")
    if not where:
        notes.append("Not tied to one tensor.")
    return Facts(
        since="Step " + step_text(finding.onset_step) if finding.onset_step is not None else "Unknown",
        since_notes=tuple(since),
        where=where or "Whole run",
        where_is_name=bool(where),
        where_notes=tuple(notes),
        actions=finding.remedy if with_remedy else (),
        settings=_preferred_first(finding.settings, view) if with_remedy else (),
    )


def _preferred_first(settings: tuple[Setting, ...], view: RunView) -> tuple[Setting, ...]:
    """torchao first for a torchao recipe; the order of the finding otherwise."""
    recipe = view.info.get("recipe")
    name = as_text(recipe.get("name")) if isinstance(recipe, Mapping) else ""
    if name.startswith("ao_"):
        return tuple(sorted(settings, key=lambda item: item.framework != "torchao"))
    return settings


def fold(finding: Finding, view: RunView) -> Folded:
    sign = health_sign(finding.severity)
    note = f"from step {step_text(finding.onset_step)}" if finding.onset_step is not None else ""
    if finding.recovered:
        note += (
            ", recovered"
            if finding.resolved_step is None
            else f", recovered at {step_text(finding.resolved_step)}"
        )
    word = "Recovered" if finding.recovered else "Note" if finding.severity == "info" else sign.word
    return Folded(
        key=finding.key,
        kind="back" if finding.recovered else sign.kind,
        word=word,
        title=finding.title,
        note=note.lstrip(", "),
        facts=facts(finding, view, with_remedy=not finding.uncertain),
        body=finding.decisive_test,
    )


def coverage(view: RunView) -> list[str]:
    """What the quiet verdict rests on, and what it cannot say."""
    tensors = view.info.get("tensors")
    formats = [
        as_text(item.get("format"))
        for item in (tensors.values() if isinstance(tensors, Mapping) else ())
        if isinstance(item, Mapping)
    ]
    in_fp8 = sum(name in FP8_FORMATS for name in formats)
    recipe = view.info.get("recipe")
    recipe_name = as_text(recipe.get("name")) if isinstance(recipe, Mapping) else ""
    if in_fp8:
        said = [f"{count_text(in_fp8, 'FP8 tensor')} in range."]
    elif formats:
        said = [f"This run has no FP8 tensors; {count_text(len(formats), 'tensor')} and the loss are judged."]
    else:
        said = ["No tensor statistics were sent, so only the loss and the other scalars are judged."]
    if not in_fp8 and recipe_name not in PLAIN_RECIPES:
        said.append(f"The recipe {recipe_name} was announced, but no module reported an FP8 tensor.")
    if in_fp8 and view.row.baseline is None:
        said.append("There is no baseline to compare with, so slow drift cannot be told from noise.")
    unchecked = view.verdict.get("not_checked")
    if isinstance(unchecked, (list, tuple)) and unchecked:
        said.append(f"{count_text(len(unchecked), 'check')} could not look, see below.")
    return said


def percent(confidence: float) -> int:
    """0 to 1 as whole percent; never 100, because no diagnosis is certain."""
    return min(99, max(0, round(100 * confidence)))
