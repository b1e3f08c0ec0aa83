"""What a message says, in plain text, whatever the channel: short, true, and for somebody who is tired.

Texts and names come from outside; they are cut here, and escaped by the form that a channel needs.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any

from floatscope_server.telling.notice import ESCALATED, PASSED, RECOVERED, REPEATED, WORSENED, Notice, Subject

HEADLINE_CHARS, TEXT_CHARS, NAME_CHARS = 180, 1200, 120
EVIDENCE, SETTINGS, STEPS_TO_DO, CANDIDATES = 3, 2, 6, 2
SURE_ENOUGH = 0.6  # below it a message shows two candidates and the test that decides, and no instruction
ORDINALS = ("", "first", "second", "third", "fourth", "fifth")
OVER = (RECOVERED, PASSED)
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_NO_SETTING = ("no setting", "not a ")


def cut(text: object, limit: int) -> str:
    """One line of text of at most ``limit`` characters; no sign that could turn or hide what follows."""
    plain = _CONTROL.sub(" ", str(text)).strip()
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def cause(finding: Mapping[str, Any]) -> str:
    return cut(str(finding.get("cause") or "undetermined").replace("_", " "), NAME_CHARS)


def headline(subject: Subject) -> str:
    """What is wrong, in one sentence; of what is over, that it is over."""
    finding = subject.finding
    if subject.event in OVER:
        at = place(finding)
        text = cause(finding) + ("" if at == WHOLE_RUN else f" at {at}") + " is over"
        since = finding.get("resolved_step")
        text += f", clean since step {since:,}" if isinstance(since, int) else ""
        return cut(text[:1].upper() + text[1:], HEADLINE_CHARS)
    return cut(finding.get("summary") or cause(finding), HEADLINE_CHARS).removesuffix(".")


WHOLE_RUN = "the whole run"


def place(finding: Mapping[str, Any]) -> str:
    """Where it began."""
    where = finding.get("tensor") or finding.get("layer")
    return cut(where, NAME_CHARS) if where else WHOLE_RUN


def rank_note(finding: Mapping[str, Any]) -> str:
    """``rank 12``, or nothing for the only or first one."""
    rank = finding.get("rank")
    return f"rank {rank}" if isinstance(rank, int) and rank > 0 else ""


def word(subject: Subject) -> str:
    """The first word of a message: how bad it is, or what became of it."""
    if subject.event == RECOVERED:
        return "Recovered"
    if subject.event == PASSED:
        return "Came and went"
    severity = subject.severity.capitalize()
    if subject.event == WORSENED:
        return f"Worse, {subject.severity}"
    if subject.event == REPEATED:
        return f"Still {subject.severity}"
    return f"{severity}, escalated" if subject.event == ESCALATED else severity


def standing(notice: Notice) -> list[str]:
    """What stands behind the run's name: how sure, for how long, why now."""
    lead, parts = notice.lead, []
    since = notice.now if lead.since is None else lead.since
    lasted = duration(notice.now - since) if notice.now - since >= 1 else None
    if lead.event in OVER:
        parts.append(f"was {lead.severity}" + (f" for {lasted}" if lasted else ""))
    else:
        parts.append(sure(lead.finding))
        if lead.event in (REPEATED, ESCALATED) and lead.state == "firing" and lasted:
            parts.append(f"nobody has acknowledged for {lasted}")
    if lead.raises > 1:
        parts.append(f"comes and goes, began {lead.raises} times since the last message")
    if notice.reason and lead.event not in (REPEATED, ESCALATED):
        parts.append(cut(notice.reason, NAME_CHARS))
    return parts


def sure(finding: Mapping[str, Any]) -> str:
    if finding.get("cause") == "undetermined":  # its confidence is that of neither candidate
        return "cause not determined yet"
    share = percent(finding.get("confidence"))
    return f"{share} sure" if share else "not known how sure"


def percent(share: object) -> str:
    known = isinstance(share, int | float) and math.isfinite(share)
    return f"{100 * float(share):.0f} %" if known else ""  # type: ignore[arg-type]


def rivals(finding: Mapping[str, Any]) -> list[str]:
    """Other causes that might be it, likeliest first, each with its probability."""
    found = [a for a in finding.get("alternatives") or [] if isinstance(a, Mapping)]
    return [_with_share(a) for a in found][:CANDIDATES]


def candidates(finding: Mapping[str, Any]) -> list[str]:
    """The causes between which it is not decided yet."""
    own = [] if finding.get("cause") == "undetermined" else [_with_share(finding)]
    return [*own, *rivals(finding)][:CANDIDATES]


def _with_share(finding: Mapping[str, Any]) -> str:
    return f"{cause(finding)}, {percent(finding.get('confidence')) or 'not known how likely'}"


def is_sure(finding: Mapping[str, Any]) -> bool:
    confidence = finding.get("confidence")
    unsure = isinstance(confidence, int | float) and confidence < SURE_ENOUGH
    return not unsure and finding.get("cause") != "undetermined"


def evidence(finding: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what was measured, where, what was expected), the first few."""
    out = []
    for item in [e for e in finding.get("evidence") or [] if isinstance(e, Mapping)][:EVIDENCE]:
        value = item.get("value")
        shown = number(value) if isinstance(value, int | float) else cut(value, NAME_CHARS)
        measured = f"{cut(item.get('signal'), NAME_CHARS)}: {'no value' if value is None else shown}"
        if isinstance(item.get("step"), int):
            measured += f" at step {item['step']:,}"
        expected = item.get("expected")
        out.append(
            (
                measured,
                cut(item["tensor"], NAME_CHARS) if item.get("tensor") else "",
                "" if expected in (None, "") else f"(expected: {cut(expected, NAME_CHARS)})",
            )
        )
    return out


def to_do(finding: Mapping[str, Any]) -> list[str]:
    """The remedy as steps."""
    remedy = finding.get("remedy")
    text = cut(remedy.get("text") or "", TEXT_CHARS) if isinstance(remedy, Mapping) else ""
    steps = _SENTENCE.split(text) if text else ["Open the run: no remedy is known for this cause."]
    return (
        [*steps[: STEPS_TO_DO - 1], " ".join(steps[STEPS_TO_DO - 1 :])] if len(steps) > STEPS_TO_DO else steps
    )


def settings(finding: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(framework, setting) for the frameworks that such a recipe comes from, where there is one to change."""
    remedy = finding.get("remedy")
    known = remedy.get("settings") if isinstance(remedy, Mapping) else None
    if not isinstance(known, Mapping):
        return []
    mine = (
        ("torchao",) if str(recipe.get("name", "")).startswith("ao_") else ("transformer_engine", "megatron")
    )
    named = [(str(k), cut(v, 2 * NAME_CHARS)) for k, v in known.items() if v and k in mine]
    return [(k, v) for k, v in named if not v.startswith(_NO_SETTING)][:SETTINGS]


def decisive_test(finding: Mapping[str, Any]) -> str:
    return cut(finding.get("decisive_test") or "", TEXT_CHARS)


def noticed(finding: Mapping[str, Any]) -> str:
    """When it was noticed, if that was later than it began."""
    onset, detected = finding.get("onset_step"), finding.get("detected_step")
    late = isinstance(onset, int) and isinstance(detected, int) and detected > onset
    return f"noticed at step {detected:,}" if late else ""


def effect(notice: Notice) -> list[str]:
    """What it did so far: tensors, and the loss where it was known before and after."""
    finding = notice.lead.finding
    count, onset = finding.get("affected_tensors"), finding.get("onset_step")
    parts = []
    if isinstance(count, int) and count > 0:
        parts.append(f"{count:,} tensor{'' if count == 1 else 's'} affected")
    before = [v for step, v in notice.loss if isinstance(onset, int) and step < onset and v is not None]
    after = [v for step, v in notice.loss if isinstance(onset, int) and step >= onset and v is not None]
    if before and after:
        parts.append(f"loss {number(before[-1])} before, {number(after[-1])} now")
    return parts


def lasted(finding: Mapping[str, Any]) -> str:
    """Over which steps it was, of what is over."""
    onset, end = finding.get("onset_step"), finding.get("resolved_step")
    if not isinstance(onset, int):
        return ""
    if not isinstance(end, int) or end <= onset:
        return f"from step {onset:,}"
    return f"from step {onset:,}, {end - onset:,} step{'' if end - onset == 1 else 's'}"


def step_to_show(subject: Subject) -> int | None:
    """The step at which the run's page opens: where it began, or where it is clean again."""
    name = "resolved_step" if subject.event in OVER else "onset_step"
    step = subject.finding.get(name, subject.finding.get("onset_step"))
    return step if isinstance(step, int) else None


def repeat_note(notice: Notice) -> str:
    """Which repeat this is, and when the next one comes."""
    parts = []
    if notice.repeat_number:
        n = notice.repeat_number
        parts.append(f"{ORDINALS[n] if n < len(ORDINALS) else f'{n}th'} repeat")
    if notice.next_repeat is not None:
        at = time.strftime("%H:%M UTC", time.gmtime(notice.next_repeat))
        parts.append(f"next at {at} unless acknowledged")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """``8 h 8 min``, ``3 d 4 h``, ``45 s``: the two largest units."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        hours, minutes = whole // 3600, whole % 3600 // 60
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = whole // 86_400, whole % 86_400 // 3600
    return f"{days} d {hours} h" if hours else f"{days} d"


def date(unix: float) -> str:
    return time.strftime("%d %b %Y, %H:%M UTC", time.gmtime(unix))


def number(value: float) -> str:
    """Four digits; NaN and infinities by name."""
    if math.isfinite(value):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
    return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"


def counted(notice: Notice) -> str:
    """How many of each severity, and how many of them are over."""
    standing = [s for s in notice.subjects if s.event not in OVER]
    parts = []
    for severity, plural in (("critical", "critical"), ("warning", "warnings"), ("info", "infos")):
        n = sum(1 for subject in standing if subject.severity == severity)
        if n:
            parts.append(f"{n} {severity if n == 1 else plural}")
    over = len(notice.subjects) - len(standing)
    if over:
        parts.append(f"{over} over already")
    runs = len({subject.run.run_id for subject in notice.subjects})
    where = f"on {runs} run{'' if runs == 1 else 's'}"
    return f"{', '.join(parts)}, {where}"
