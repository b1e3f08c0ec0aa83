"""Slack messages: what, since when, where, how sure, what to do, and links. Every change is a new message,
since an incoming webhook cannot edit one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope_server.notify import words
from floatscope_server.notify.links import Links
from floatscope_server.notify.slack_text import code, context, curve, date, escape, fields, link, section
from floatscope_server.notify.words import HEADLINE_CHARS, NAME_CHARS, OVER, TEXT_CHARS
from floatscope_server.telling.notice import SUMMARY, Notice, Subject

SIGNS = {
    "critical": ":small_red_triangle:",
    "warning": ":small_orange_diamond:",
    "info": ":information_source:",
}
COLOURS = {"critical": "#b3380a", "warning": "#8a5a00", "info": "#4a5568"}
OVER_SIGN, OVER_COLOUR = ":white_check_mark:", "#00694e"
SUMMARY_SIGN = ":crescent_moon:"
LISTED = 10  # further alerts of a message; Block Kit would take more, a reader would not


def message(notice: Notice, links: Links) -> dict[str, Any]:
    """The body for a Slack webhook."""
    if notice.event == SUMMARY:
        return _summary(notice, links)
    lead = notice.lead
    over = lead.event in OVER
    sign = OVER_SIGN if over else SIGNS.get(lead.severity, SIGNS["info"])
    url = links.run(lead.run.run_id, at=words.step_to_show(lead))
    notes = ", ".join([escape(lead.run.name, NAME_CHARS), *(escape(n, 200) for n in words.standing(notice))])
    text = f"{sign} *{words.word(lead)}:* {link(url, escape(words.headline(lead), HEADLINE_CHARS))}\n{notes}"
    blocks = _over(notice) if over else _begun(notice)
    if len(notice.subjects) > 1 or notice.more:
        blocks.append(section(_further(notice, links)))
    first = "Open alert" if over else "Acknowledge"
    blocks.append(context([link(links.alert(lead.alert_id), first), link(url, "Open run")]))
    blocks.append(context([_rule(notice)]))
    colour = OVER_COLOUR if over else COLOURS.get(lead.severity, COLOURS["info"])
    return _body(text, colour, blocks)


def test(name: str) -> dict[str, Any]:
    """A message that only shows that the channel works."""
    shown = escape(name, NAME_CHARS)
    return _plain(f":white_check_mark: *Test:* floatscope reaches this channel ({shown})")


def _begun(notice: Notice) -> list[dict[str, Any]]:
    finding = notice.lead.finding
    blocks = [section(_what(finding)), fields(_facts(notice))]
    drawn = curve(notice.loss, onset=finding.get("onset_step"))
    if drawn:
        blocks.append(section([f"```{drawn}```"]))
    blocks.append(section(_advice(notice.lead)))
    return blocks


def _over(notice: Notice) -> list[dict[str, Any]]:
    lead = notice.lead
    finding = lead.finding
    said = escape(finding.get("summary") or words.cause(finding), TEXT_CHARS)
    pairs = []
    if isinstance(finding.get("resolved_step"), int):
        pairs.append(("Clean since", f"step {finding['resolved_step']:,}"))
    if lead.run.last_step is not None:
        pairs.append(("Now at", f"step {lead.run.last_step:,}, {date(notice.now)}"))
    pairs.append(("Began at", _where(finding)))
    lasted = words.lasted(finding)
    if lasted:
        pairs.append(
            ("Lasted", lasted + ("" if notice.onset_time is None else f"\n{date(notice.onset_time)}"))
        )
    return [section([f"What it was: {said}"]), fields(pairs)]


def _what(finding: Mapping[str, Any]) -> list[str]:
    kind = finding.get("kind")
    named = f"*{escape(words.cause(finding), NAME_CHARS)}*"
    named += f" ({escape(str(kind).replace('_', ' '), NAME_CHARS)})" if kind else ""
    summary = str(finding.get("summary") or "")
    if len(summary) > HEADLINE_CHARS:  # the headline was cut
        named += f": {escape(summary, TEXT_CHARS)}"
    lines = [named]
    for measured, where, expected in words.evidence(finding):
        line = escape(measured, 3 * NAME_CHARS) + (f", {code(where)}" if where else "")
        lines.append(line + (f" {escape(expected, 2 * NAME_CHARS)}" if expected else ""))
    return lines


def _facts(notice: Notice) -> list[tuple[str, str]]:
    finding = notice.lead.finding
    out = []
    onset = finding.get("onset_step")
    if isinstance(onset, int):
        began = f"step {onset:,}" + ("" if notice.onset_time is None else f", {date(notice.onset_time)}")
        late = words.noticed(finding)
        out.append(("Since", began + (f"\n{late}" if late else "")))
    out.append(("Began at", _where(finding)))
    effect = words.effect(notice)
    if effect:
        out.append(("Effect", "\n".join(effect)))
    rivals = words.rivals(finding)
    other = f"next best cause: {escape(rivals[0], 2 * NAME_CHARS)}" if rivals else "no other cause fits"
    out.append(("Checks", f"{words.sure(finding)}\n{other}"))
    return out


def _where(finding: Mapping[str, Any]) -> str:
    place, rank = words.place(finding), words.rank_note(finding)
    shown = place if place == words.WHOLE_RUN else code(place)
    return f"{shown}, {rank}" if rank else shown


def _advice(subject: Subject) -> list[str]:
    finding = subject.finding
    if not words.is_sure(finding):
        candidates = [escape(candidate, 2 * NAME_CHARS) for candidate in words.candidates(finding)]
        test = escape(words.decisive_test(finding), TEXT_CHARS)
        lines = ["*Not sure yet*", *(f"\u2022 {candidate}" for candidate in candidates)]
        return [*lines, "*What would decide it*", test] if test else lines
    steps = [escape(step, TEXT_CHARS) for step in words.to_do(finding)]
    numbered = steps if len(steps) == 1 else [f"{n}. {step}" for n, step in enumerate(steps, 1)]
    shown = [
        f"{escape(framework.replace('_', ' '), NAME_CHARS)}: {code(setting, 2 * NAME_CHARS)}"
        for framework, setting in words.settings(finding, subject.run.recipe)
    ]
    return ["*What to do*", *numbered, *shown]


def _further(notice: Notice, links: Links) -> list[str]:
    others = notice.subjects[1:]
    left_out = max(len(others) - LISTED, 0) + notice.more
    lines = [f"*Also on this run* ({len(others) + notice.more})"]
    lines += [_line(subject, links) for subject in others[:LISTED]]
    return [*lines, f"and {left_out:,} more"] if left_out else lines


def _line(subject: Subject, links: Links) -> str:
    shown = link(links.alert(subject.alert_id), escape(words.headline(subject), NAME_CHARS))
    onset = subject.finding.get("onset_step")
    since = f", since step {onset:,}" if isinstance(onset, int) and subject.event not in OVER else ""
    return f"\u2022 {words.word(subject)}: {shown}{since}"


def _summary(notice: Notice, links: Links) -> dict[str, Any]:
    """What quiet hours held back, by run."""
    count = len(notice.subjects) + notice.more
    by_run: dict[str, list[Subject]] = {}
    for subject in notice.subjects:
        by_run.setdefault(subject.run.run_id, []).append(subject)
    title = f"{count:,} alert{'' if count == 1 else 's'} while it was quiet"
    text = f"{SUMMARY_SIGN} *Quiet hours are over:* {link(links.alerts(), title)}\n{words.counted(notice)}"
    blocks = []
    for run_id, found in by_run.items():
        name = escape(found[0].run.name, NAME_CHARS)
        head = f"*{link(links.run(run_id, at=None), name)}*"
        blocks.append(section([head, *(_line(subject, links) for subject in found)]))
    if notice.more:
        blocks.append(section([f"and {notice.more:,} more"]))
    blocks.append(context([link(links.alerts(), "All alerts")]))
    standing = [s.severity for s in notice.subjects if s.event not in OVER]
    worst = next((s for s in ("critical", "warning", "info") if s in standing), None)
    return _body(text, OVER_COLOUR if worst is None else COLOURS[worst], blocks)


def _rule(notice: Notice) -> str:
    parts = [f"Rule {escape(notice.lead.finding.get('rule'), NAME_CHARS)}"]
    parts.append(f"alert {escape(notice.lead.alert_id, NAME_CHARS)}")
    repeat = words.repeat_note(notice)
    return ", ".join([*parts, repeat] if repeat else parts)


def _plain(text: str) -> dict[str, Any]:
    return {"text": text, "unfurl_links": False, "unfurl_media": False}


def _body(text: str, colour: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {**_plain(text), "attachments": [{"color": colour, "blocks": blocks}]}
