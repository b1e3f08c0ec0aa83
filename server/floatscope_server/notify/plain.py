"""Messages as plain text with a title, for e-mail, chats and pagers."""

from __future__ import annotations

from typing import Any

from floatscope_server.notify import words
from floatscope_server.notify.links import Links
from floatscope_server.notify.words import NAME_CHARS, OVER
from floatscope_server.telling.notice import SUMMARY, Notice, Subject

LISTED = 10
TYPES = {"critical": "failure", "warning": "warning", "info": "info"}


def message(notice: Notice, links: Links) -> dict[str, Any]:
    """Title, body and type (failure, warning, info or success)."""
    lead = notice.lead
    if notice.event == SUMMARY:
        lines = [words.counted(notice), *(_line(s, links, with_run=True) for s in notice.subjects)]
        lines += [f"and {notice.more:,} more"] if notice.more else []
        lines += ["", f"All alerts: {links.alerts()}"]
        standing = [s.severity for s in notice.subjects if s.event not in OVER]
        worst = next((s for s in ("critical", "warning", "info") if s in standing), None)
        kind = "success" if worst is None else TYPES[worst]
        return {"title": title_of(notice), "body": "\n".join(lines), "type": kind}
    over = lead.event in OVER
    body = [", ".join([words.cut(lead.run.name, NAME_CHARS), *words.standing(notice)]), ""]
    body += _over(lead) if over else _begun(notice)
    others = notice.subjects[1:]
    if others or notice.more:
        body += ["", f"Also on this run ({len(others) + notice.more}):"]
        body += [_line(subject, links) for subject in others[:LISTED]]
        left_out = max(len(others) - LISTED, 0) + notice.more
        body += [f"and {left_out:,} more"] if left_out else []
    body += ["", f"{'Alert' if over else 'Acknowledge'}: {links.alert(lead.alert_id)}"]
    body.append(f"Run: {links.run(lead.run.run_id, at=words.step_to_show(lead))}")
    repeat = words.repeat_note(notice)
    rule = f"Rule {words.cut(lead.finding.get('rule'), NAME_CHARS)}"
    body.append(f"{rule}, {repeat}" if repeat else rule)
    kind = "success" if over else TYPES.get(lead.severity, "info")
    return {"title": title_of(notice), "body": "\n".join(body), "type": kind}


def test(name: str) -> dict[str, Any]:
    shown = words.cut(name, NAME_CHARS)
    return {"title": "Test", "body": f"floatscope reaches this channel ({shown})", "type": "info"}


def title_of(notice: Notice) -> str:
    """The first line of a message, as plain text."""
    if notice.event == SUMMARY:
        count = len(notice.subjects) + notice.more
        return f"Quiet hours are over: {count:,} alert{'' if count == 1 else 's'} while it was quiet"
    return f"{words.word(notice.lead)}: {words.headline(notice.lead)}"


def _begun(notice: Notice) -> list[str]:
    finding = notice.lead.finding
    lines = []
    onset = finding.get("onset_step")
    if isinstance(onset, int):
        when = "" if notice.onset_time is None else f", {words.date(notice.onset_time)}"
        late = words.noticed(finding)
        lines.append(f"Since: step {onset:,}{when}" + (f", {late}" if late else ""))
    lines.append("Began at: " + ", ".join(filter(None, (words.place(finding), words.rank_note(finding)))))
    effect = words.effect(notice)
    lines += [f"Effect: {', '.join(effect)}"] if effect else []
    rivals = words.rivals(finding)
    lines.append(f"Cause: {words.cause(finding)}" + (f" (next best: {rivals[0]})" if rivals else ""))
    for measured, where, expected in words.evidence(finding):
        lines.append(
            "Measured: " + ", ".join(filter(None, (measured, where))) + (expected and f" {expected}")
        )
    if not words.is_sure(finding):
        lines += ["", "Not sure yet:", *(f"- {candidate}" for candidate in words.candidates(finding))]
        test = words.decisive_test(finding)
        return [*lines, "What would decide it:", test] if test else lines
    steps = words.to_do(finding)
    numbered = steps if len(steps) == 1 else [f"{n}. {step}" for n, step in enumerate(steps, 1)]
    shown = [f"{k.replace('_', ' ')}: {v}" for k, v in words.settings(finding, notice.lead.run.recipe)]
    return [*lines, "", "What to do:", *numbered, *shown]


def _over(lead: Subject) -> list[str]:
    finding, lines = (
        lead.finding,
        [f"What it was: {words.cut(lead.finding.get('summary'), words.TEXT_CHARS)}"],
    )
    if isinstance(finding.get("resolved_step"), int):
        lines.append(f"Clean since: step {finding['resolved_step']:,}")
    lasted = words.lasted(finding)
    lines += [f"Lasted: {lasted}"] if lasted else []
    if lead.run.last_step is not None:
        lines.append(f"Now at: step {lead.run.last_step:,}")
    return lines


def _line(subject: Subject, links: Links, *, with_run: bool = False) -> str:
    run = f"{words.cut(subject.run.name, NAME_CHARS)}: " if with_run else ""
    return f"- {run}{words.word(subject)}: {words.headline(subject)} {links.alert(subject.alert_id)}"
