"""The verdict banner: which of its states a run is in, and the words of that state.

One component, one reading order: what is wrong, since when, where it began, what to do. The sentence alone is
enough; colour, shape and word repeat it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from floatscope_dashboards.checks import CheckCounts, check_counts
from floatscope_dashboards.facts import (
    Candidate,
    Facts,
    Folded,
    candidates,
    facts,
    fold,
    percent,
    steps_judged,
)
from floatscope_dashboards.findings import Finding, open_findings, read_findings
from floatscope_dashboards.quiet_words import baseline_is_missing, baseline_why, no_fp8, quiet_why
from floatscope_dashboards.run_facts import BaselineMatch
from floatscope_dashboards.say import NO_VALUE, Say
from floatscope_dashboards.verdict_actions import Act, acts_of, state_words
from floatscope_dashboards.views import RunView
from floatscope_dashboards.warm_up import WARM_UP_STEPS
from floatscope_dashboards.wording import as_text, health_sign, status_sign

"""Steps before change detection and drift have enough history to judge. Hard limits, such as a NaN or a scale
that is not finite, are checked from the first step."""
RECOVERED_FOR_STEPS = 2000
"""A recovered finding is shown as such for this many clean steps; then the run just reads healthy."""


@dataclass(frozen=True)
class Banner:
    """Everything the banner's template prints. `tone` is its CSS class, `icon` the name of its shape.

    note: beside the title, small. acts: what the reader may do. acted: what somebody did about it. match: the
    run offered as a baseline.
    """

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
    cause: str = ""
    """Its code, as the API and settings of rules have it."""
    acts: tuple[Act, ...] = ()
    acted: str = ""
    likely: str = ""
    cost: str = ""
    match: BaselineMatch | None = None
    offers_baseline: bool = False


def banner(view: RunView, say: Say) -> Banner:
    """The state of `view`, and whether what it rests on could be read."""
    found = _of_state(view, say)
    if not view.row.damaged:
        return found
    broken = say("Stored data of this run is damaged: {part} cannot be read.", part=view.row.damaged)
    return replace(found, notes=(broken, *found.notes))


def _of_state(view: RunView, say: Say) -> Banner:
    """In the order that matters: finding, silence, bad end, then the quiet ones."""
    findings = read_findings(view.verdict, say)
    current = open_findings(findings)
    if not current and _loss_is_broken(view):
        current = tuple(item for item in findings if item.severity in ("critical", "warning"))
    if current:
        return _finding_banner(view, current, findings, say)
    if view.row.status == "stalled":
        return _stalled(view, findings, say)
    if view.row.status in ("crashed", "failed"):
        return _ended_badly(view, findings, say)
    if view.row.last_step is None:
        return Banner(
            "waiting",
            say("Waiting"),
            "v-info",
            "dots",
            say("Waiting for the first step"),
            say(
                "The run is known, but no step has arrived yet. It appears here within seconds of the first "
                "one."
            ),
        )
    last = _latest_recovered(findings)
    if last is not None and _clean_steps(view, last) < RECOVERED_FOR_STEPS:
        return _recovered(view, last, findings, say)
    notes = tuple(item for item in findings if not item.recovered)
    steps = steps_judged(view)
    if not notes and view.row.status == "running" and steps < WARM_UP_STEPS:
        return _warming_up(view, steps, say)
    return _quiet(view, notes, steps, say)


def _finding_banner(
    view: RunView, current: tuple[Finding, ...], findings: tuple[Finding, ...], say: Say
) -> Banner:
    lead = current[0]
    sign = health_sign(lead.severity)
    others = tuple(item for item in findings if item is not lead)
    why = say.engine(as_text(view.verdict.get("summary")))
    more = len(current) - 1
    title = lead.title
    if more:
        title = say.plural(
            "{title}, and {n} other finding", "{title}, and {n} other findings", more, title=lead.title
        )
    common = Banner(
        state=lead.severity,
        word=say(sign.word),
        tone=f"v-{sign.kind}",
        icon=sign.kind,
        title=title,
        why=_of_several(others, say) if why.startswith(lead.title) else why,
        big=NO_VALUE if lead.confidence is None else f"{percent(lead.confidence)}\u202f%",
        big_note=_confidence_note(lead, say),
        notes=_notes(view, say),
        decisive=lead.decisive_test,
        log_next=lead.log_next,
        folded=tuple(_fold(item, view, say, lead) for item in others),
        rule=lead.rule,
        cause=lead.cause,
        facts=facts(lead, view, say, with_remedy=not lead.uncertain, lead=True),
        acts=acts_of(view, lead, current, say),
        acted=state_words(view, lead, say),
    )
    if not lead.uncertain:
        return common
    two = candidates(lead, say)
    return replace(
        common,
        state="uncertain",
        big=f"{max(item.confidence_pct for item in two)}\u202f%" if two else common.big,
        big_note=say("best of two") if len(two) > 1 else common.big_note,
        candidates=two,
    )


def _of_several(others: tuple[Finding, ...], say: Say) -> str:
    return say("Treat this one first; what follows says how the others relate to it.") if others else ""


def _fold(item: Finding, view: RunView, say: Say, lead: Finding | None = None) -> Folded:
    return fold(item, view, say, lead=lead, state=state_words(view, item, say))


def _confidence_note(lead: Finding, say: Say) -> str:
    """What the number is and what it rests on."""
    if lead.confidence is None:
        return say("no confidence was given")
    count = len(lead.evidence)
    if not count:
        return (
            say("confidence, {basis}", basis=lead.confidence_basis)
            if lead.confidence_basis
            else say("confidence")
        )
    agree = say.plural("confidence, {n} observation agrees", "confidence, {n} observations agree", count)
    if not lead.confidence_basis:
        return agree
    return say("{agree}; {basis}", agree=agree, basis=lead.confidence_basis)


def _stalled(view: RunView, findings: tuple[Finding, ...], say: Say) -> Banner:
    sign = health_sign(view.row.health)
    seen, pace = view.row.last_seen, view.facts.pace_s
    last = say("Last step {step}.", step=say.step(view.row.last_step))
    if seen is not None:
        last = say("Last step {step} at {time} UTC.", step=say.step(view.row.last_step), time=f"{seen:%H:%M}")
    if pace is not None and pace >= 1:
        last += " " + say("This run usually reports every {pace}.", pace=say.duration(pace))
    verdict = say("The last verdict was: {word}.", word=say(sign.word))
    return Banner(
        "stale",
        say("Stalled"),
        "v-idle",
        "stall",
        say("No data for {age}, so this verdict may be out of date", age=_silent_for(view, say)),
        f"{last} {verdict}",
        big_note="" if seen is None else say("verdict from {time} UTC", time=f"{seen:%H:%M}"),
        likely=say(
            "either the job has ended or the network to it is gone. Steps still in the trainer's spool "
            "arrive by themselves when it returns."
        ),
        folded=tuple(_fold(item, view, say) for item in findings),
        acts=acts_of(view, None, (), say),
    )


def _ended_badly(view: RunView, findings: tuple[Finding, ...], say: Say) -> Banner:
    reason = _reason(view)
    given = say("Reason given: {reason}.", reason=reason) if reason else say("No reason was given.")
    looked = say.plural(
        "No rule had a finding in its {n} step.",
        "No rule had a finding in its {n} steps.",
        steps_judged(view),
    )
    return Banner(
        "ended",
        say(status_sign(view.row.status).word),
        "v-idle",
        "no",
        _bad_end(view, say, cause=False),
        f"{given} {looked}",
        folded=tuple(_fold(item, view, say) for item in findings),
    )


def _bad_end(view: RunView, say: Say, *, cause: bool) -> str:
    """How the run ended. cause: whether what made it end has been told elsewhere."""
    step, crashed = view.row.last_step, view.row.status == "crashed"
    if cause:
        if step is None:
            return say("The run crashed.") if crashed else say("The run failed.")
        at = say.step(step)
        return (
            say("The run crashed at step {step}.", step=at)
            if crashed
            else say("The run failed at step {step}.", step=at)
        )
    if step is None:
        return (
            say("The run crashed, and no numerical cause was found")
            if crashed
            else say("The run failed, and no numerical cause was found")
        )
    at = say.step(step)
    if crashed:
        return say("The run crashed at step {step}, and no numerical cause was found", step=at)
    return say("The run failed at step {step}, and no numerical cause was found", step=at)


def _recovered(view: RunView, last: Finding, findings: tuple[Finding, ...], say: Say) -> Banner:
    clean = _clean_steps(view, last)
    onset, end = last.onset_step, last.resolved_step
    cost = (
        ""
        if onset is None or end is None or end <= onset
        else say.plural("It lasted {n} step.", "It lasted {n} steps.", end - onset)
    )
    return Banner(
        "recovered",
        say("Recovered"),
        "v-ok",
        "back",
        say.plural("Recovered: back in range for {n} step", "Recovered: back in range for {n} steps", clean),
        say(
            "{what}, from step {first} to {last}.", what=last.title, first=say.step(onset), last=say.step(end)
        ),
        big=f"{clean:,}",
        big_note=say("clean steps, {n} close it", n=f"{RECOVERED_FOR_STEPS:,}"),
        folded=tuple(_fold(item, view, say) for item in findings),
        acts=acts_of(view, last, (last,), say),
        acted=state_words(view, last, say),
        cost=cost,
    )


def _warming_up(view: RunView, steps: int, say: Say) -> Banner:
    counts = check_counts(view)
    return Banner(
        "warming_up",
        say("Warming up"),
        "v-info",
        "dots",
        say("Too early to judge drift: {n} of {all} steps", n=f"{steps:,}", all=WARM_UP_STEPS),
        say(
            "Hard limits are checked from the first step and are clean so far: no NaN, no broken scale. "
            "Change and drift checks start when there is enough history."
        ),
        big=_of_total(counts, say),
        big_note=say("checks have what they need") if counts.total else "",
        progress_pct=min(100, round(100 * steps / WARM_UP_STEPS)),
    )


def _of_total(counts: CheckCounts, say: Say) -> str:
    if not counts.total:
        return ""
    return say("{n} of {total}", n=counts.looked, total=counts.total)


def _quiet(view: RunView, notes: tuple[Finding, ...], steps: int, say: Say) -> Banner:
    """No warning and nothing critical: healthy, healthy with remarks, or nothing in FP8 to look at."""
    counts = check_counts(view)
    missing = baseline_is_missing(view)
    beside = say("{n} of {total} checks", n=counts.looked, total=counts.total) if counts.total else ""
    common = Banner(
        "healthy",
        say("Healthy"),
        "v-ok",
        "ok",
        _quiet_title(view, notes, steps, say, missing=missing),
        say.sentences(quiet_why(view, say)),
        slim=True,
        big_note=beside,
        folded=tuple(_fold(item, view, say) for item in notes),
    )
    if notes:
        return replace(common, state="watch", word=say("Watch"), tone="v-info", icon="info")
    if no_fp8(view):
        return replace(
            common,
            state="no_fp8",
            word=say("No FP8 tensors"),
            tone="v-info",
            icon="info",
            slim=False,
            title=say("This run has no FP8 tensors, so only the loss is judged"),
            acts=acts_of(view, None, (), say),
        )
    if missing:
        return replace(
            common,
            state="no_baseline",
            why=f"{common.why} {baseline_why(say)}",
            match=view.facts.match,
            offers_baseline=view.facts.may_write,
        )
    return common


def _quiet_title(view: RunView, notes: tuple[Finding, ...], steps: int, say: Say, *, missing: bool) -> str:
    if notes:
        remarks = say.plural("{n} remark", "{n} remarks", len(notes))
        return say.plural(
            "Nothing to act on, {remarks} in {n} step", "Nothing to act on, {remarks} in {n} steps", steps,
            remarks=remarks,
        )  # fmt: skip
    if missing:
        return say.plural(
            "No finding in {n} step, but there is no baseline to compare with",
            "No finding in {n} steps, but there is no baseline to compare with",
            steps,
        )
    if view.row.status == "finished":
        return say.plural(
            "Finished clean: no finding in {n} step", "Finished clean: no finding in {n} steps", steps
        )
    return say.plural("No finding in {n} step", "No finding in {n} steps", steps)


def _notes(view: RunView, say: Say) -> tuple[str, ...]:
    """Strips above the facts: what makes this verdict old or final."""
    if view.row.status == "stalled":
        return (say("No data for {age}, so this verdict may be out of date.", age=_silent_for(view, say)),)
    if view.row.status in ("crashed", "failed"):
        reason = _reason(view)
        ended = _bad_end(view, say, cause=True)
        return (ended + (" " + say("Reason given: {reason}", reason=reason) if reason else ""),)
    return ()


def _silent_for(view: RunView, say: Say) -> str:
    since = view.row.created if view.row.last_seen is None else view.row.last_seen
    return say.duration((view.now - since).total_seconds())


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
