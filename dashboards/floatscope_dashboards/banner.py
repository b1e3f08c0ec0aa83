"""The verdict banner: which of its states a run is in, and the words of that state.

One component, one reading order: what is wrong, since when, where it began, what to do. The sentence alone is
enough; colour, shape and word repeat it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from floatscope_dashboards.facts import (
    Candidate,
    Facts,
    Folded,
    candidates,
    coverage,
    facts,
    fold,
    percent,
    steps_judged,
)
from floatscope_dashboards.findings import Finding, open_findings, read_findings
from floatscope_dashboards.views import RunView
from floatscope_dashboards.wording import (
    NO_VALUE,
    as_text,
    count_text,
    duration_text,
    health_sign,
    status_sign,
    step_text,
)

WARM_UP_STEPS = 64
"""Steps before change detection and drift have enough history to judge. Hard limits, such as a NaN or a scale
that is not finite, are checked from the first step."""
RECOVERED_FOR_STEPS = 2000
"""A recovered finding is shown as such for this many clean steps; then the run just reads healthy."""


@dataclass(frozen=True)
class Banner:
    """Everything the banner's template prints. `tone` is its CSS class, `icon` the name of its shape."""

    state: str
    word: str
    tone: str
    icon: str
    title: str
    why: str
    slim: bool = False
    big: str = ""
    big_note: str = ""
    notes: tuple[str, ...] = ()
    progress_pct: int | None = None
    facts: Facts | None = None
    candidates: tuple[Candidate, ...] = ()
    decisive: str = ""
    log_next: tuple[str, ...] = ()
    folded: tuple[Folded, ...] = ()
    rule: str = ""


def banner(view: RunView) -> Banner:
    """The state of `view`, in the order that matters: finding, silence, bad end, then the quiet ones."""
    findings = read_findings(view.verdict)
    current = open_findings(findings)
    if not current and _loss_is_broken(view):
        current = tuple(item for item in findings if item.severity in ("critical", "warning"))
    if current:
        return _finding_banner(view, current, findings)
    if view.row.status == "stalled":
        return _stalled(view, findings)
    if view.row.status in ("crashed", "failed"):
        return _ended_badly(view, findings)
    if view.row.last_step is None:
        return Banner(
            "waiting",
            "Waiting",
            "v-info",
            "dots",
            "Waiting for the first step",
            "The run is known, but no step has arrived yet. It appears here within seconds of the first one.",
        )
    last = _latest_recovered(findings)
    if last is not None and _clean_steps(view, last) < RECOVERED_FOR_STEPS:
        return _recovered(view, last, findings)
    notes = tuple(item for item in findings if not item.recovered)
    steps = steps_judged(view)
    if not notes and view.row.status == "running" and steps < WARM_UP_STEPS:
        return _warming_up(view, steps)
    return _quiet(view, notes, steps)


def _finding_banner(view: RunView, current: tuple[Finding, ...], findings: tuple[Finding, ...]) -> Banner:
    lead = current[0]
    sign = health_sign(lead.severity)
    others = tuple(item for item in findings if item is not lead)
    why = as_text(view.verdict.get("summary"))
    more = len(current) - 1
    title = lead.title + (f", and {count_text(more, 'other finding')}" if more else "")
    common = Banner(
        state=lead.severity,
        word=sign.word,
        tone=f"v-{sign.kind}",
        icon=sign.kind,
        title=title,
        why="" if why.startswith(lead.title) else why,
        big=NO_VALUE if lead.confidence is None else f"{percent(lead.confidence)}\u202f%",
        big_note=_basis("confidence", lead),
        notes=_notes(view),
        decisive=lead.decisive_test,
        log_next=lead.log_next,
        folded=tuple(fold(item, view) for item in others),
        rule=lead.rule,
        facts=facts(lead, view, with_remedy=not lead.uncertain),
    )
    if not lead.uncertain:
        return common
    two = candidates(lead)
    return replace(
        common,
        state="uncertain",
        big=f"{max(item.confidence_pct for item in two)}\u202f%" if two else common.big,
        big_note=_basis("best of two" if len(two) > 1 else "confidence", lead),
        candidates=two,
    )


def _basis(what: str, lead: Finding) -> str:
    """What the number is and what it rests on."""
    return f"{what}, {lead.confidence_basis}" if lead.confidence_basis else what


def _stalled(view: RunView, findings: tuple[Finding, ...]) -> Banner:
    silent = _silent_for(view)
    sign = health_sign(view.row.health)
    when = f" at {view.row.last_seen:%H:%M} UTC" if view.row.last_seen else ""
    return Banner(
        "stale",
        "Stalled",
        "v-idle",
        "stall",
        f"No data for {silent}, so this verdict may be out of date",
        f"Last step {step_text(view.row.last_step)}{when}. The last verdict was {sign.word.lower()}. "
        "Either the job has ended or the network to it is gone; steps still in the trainer's spool arrive by "
        "themselves when it returns.",
        folded=tuple(fold(item, view) for item in findings),
    )


def _ended_badly(view: RunView, findings: tuple[Finding, ...]) -> Banner:
    sign = status_sign(view.row.status)
    at = f" at step {step_text(view.row.last_step)}" if view.row.last_step is not None else ""
    reason = _reason(view)
    return Banner(
        "ended",
        sign.word,
        "v-idle",
        "no",
        f"The run {view.row.status}{at}, and no numerical cause was found",
        (f"Reason given: {reason}. " if reason else "No reason was given. ")
        + f"No rule had a finding in its {count_text(steps_judged(view), 'step')}.",
        folded=tuple(fold(item, view) for item in findings),
    )


def _recovered(view: RunView, last: Finding, findings: tuple[Finding, ...]) -> Banner:
    clean = _clean_steps(view, last)
    start, end = step_text(last.onset_step), step_text(last.resolved_step)
    return Banner(
        "recovered",
        "Recovered",
        "v-ok",
        "back",
        f"Recovered: back in range for {count_text(clean, 'step')}",
        f"{last.title}, from step {start} to {end}.",
        big=f"{clean:,}",
        big_note=f"clean steps, {RECOVERED_FOR_STEPS:,} close it",
        folded=tuple(fold(item, view) for item in findings),
    )


def _warming_up(view: RunView, steps: int) -> Banner:
    return Banner(
        "warming_up",
        "Warming up",
        "v-info",
        "dots",
        f"Too early to judge drift: {steps} of {WARM_UP_STEPS} steps",
        "Hard limits are checked from the first step and are clean so far: no NaN, no broken scale. "
        "Change and drift checks start when there is enough history.",
        progress_pct=min(100, round(100 * steps / WARM_UP_STEPS)),
    )


def _quiet(view: RunView, notes: tuple[Finding, ...], steps: int) -> Banner:
    """No warning and nothing critical: healthy, healthy with remarks, or nothing in FP8 to look at."""
    ended = view.row.status == "finished"
    span = f"in {count_text(steps, 'step')}"
    title = f"Finished clean: no finding {span}" if ended else f"No finding {span}"
    word, tone, icon, state = "Healthy", "v-ok", "ok", "healthy"
    if notes:
        title = f"Nothing to act on, {count_text(len(notes), 'remark')} {span}"
        word, tone, icon, state = "Watch", "v-info", "info", "watch"
    return Banner(
        state,
        word,
        tone,
        icon,
        title,
        " ".join(coverage(view)),
        slim=True,
        folded=tuple(fold(item, view) for item in notes),
    )


def _notes(view: RunView) -> tuple[str, ...]:
    """Strips above the facts: what makes this verdict old or final."""
    if view.row.status == "stalled":
        return (f"No data for {_silent_for(view)}, so this verdict may be out of date.",)
    if view.row.status in ("crashed", "failed"):
        reason = _reason(view)
        at = f" at step {step_text(view.row.last_step)}" if view.row.last_step is not None else ""
        return (f"The run {view.row.status}{at}." + (f" Reason given: {reason}" if reason else ""),)
    return ()


def _silent_for(view: RunView) -> str:
    if view.row.last_seen is None:
        return duration_text((view.now - view.row.created).total_seconds())
    return duration_text((view.now - view.row.last_seen).total_seconds())


def _latest_recovered(findings: tuple[Finding, ...]) -> Finding | None:
    found = [item for item in findings if item.recovered and item.severity in ("critical", "warning")]
    return max(found, key=lambda item: item.resolved_step or item.onset_step or 0, default=None)


def _clean_steps(view: RunView, finding: Finding) -> int:
    since = finding.resolved_step if finding.resolved_step is not None else finding.onset_step
    return max(0, (view.row.last_step or 0) - (since or 0))


def _loss_is_broken(view: RunView) -> bool:
    """Whatever the tensors say: a run whose last loss is NaN or Inf has not recovered."""
    loss = view.row.last_loss
    return loss is not None and not math.isfinite(loss)


def _reason(view: RunView) -> str:
    return as_text(view.info.get("reason")).strip().rstrip(".")
