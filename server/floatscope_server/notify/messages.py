"""What a Slack message says: what, since when, where, how sure, what to do, and a link. Every change is a
new message.

Everything from a run is escaped and cut to length, since names and texts come from outside. Block Kit's
limits are 3,000 characters in a section and 2,000 in a field; what is written here stays far below them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from floatscope_server.alerting import Change
from floatscope_server.store.runs import RunRecord

SIGNS = {
    "critical": ":small_red_triangle:",
    "warning": ":small_orange_diamond:",
    "info": ":information_source:",
}
COLOURS = {"critical": "#b3380a", "warning": "#8a5a00", "info": "#4a5568"}
RECOVERED_SIGN, RECOVERED_COLOUR = ":white_check_mark:", "#00694e"
BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
NONFINITE, GAP = "\u2573", " "
HEADLINE_CHARS, TEXT_CHARS, NAME_CHARS = 180, 1200, 120
SURE_ENOUGH = 0.6  # below it a message shows two candidates and the test that decides, and no instruction


class Messages:
    """Builds messages whose links lead to ``public_url``."""

    CURVE_POINTS = 24

    def __init__(self, *, public_url: str) -> None:
        self._public_url = public_url

    def of(
        self,
        change: Change,
        *,
        run: RunRecord,
        loss: Sequence[tuple[int, float | None]],
        onset_time: float | None,
        now: float,
    ) -> dict[str, Any]:
        """The webhook body for one change of an alert.

        loss: (step, value) in order of steps, a value that is None is a gap.  onset_time: Unix seconds of
        the onset step.
        """
        finding = change.finding
        url = self._run_url(run.run_id, finding.get("onset_step"))
        if change.event == "recovered":
            return _message(
                RECOVERED_SIGN,
                "Recovered",
                url,
                run,
                finding,
                colour=RECOVERED_COLOUR,
                note=f"was {change.severity}",
                blocks=[
                    _section(_summary(finding)),
                    _fields(_recovered_fields(finding, run, now)),
                    _context(_link(url, "Open run")),
                    _context(_rule(finding)),
                ],
            )
        word = "Worse" if change.event == "worsened" else change.severity.capitalize()
        blocks = [_section(_summary(finding)), _fields(_fields_of(finding, onset_time))]
        drawn = curve(loss, onset=finding.get("onset_step"))
        if drawn:
            blocks.append(_section(f"```{drawn}```"))
        return _message(
            SIGNS.get(change.severity, SIGNS["info"]),
            word,
            url,
            run,
            finding,
            colour=COLOURS.get(change.severity, COLOURS["info"]),
            note=_sure(finding),
            blocks=[
                *blocks,
                _section(_advice(finding)),
                _context(_link(url, "Open run")),
                _context(_rule(finding)),
            ],
        )

    def test(self, channel: str) -> dict[str, Any]:
        """A message that only shows that the channel works."""
        text = f":white_check_mark: *Test:* floatscope reaches this channel ({escape(channel, NAME_CHARS)})"
        return {"text": text, "unfurl_links": False, "unfurl_media": False}

    def _run_url(self, run_id: str, at: int | None) -> str:
        return f"{self._public_url}/runs/{quote(run_id, safe='')}" + ("" if at is None else f"?at={at}")


def escape(text: object, limit: int) -> str:
    """Text as Slack shows it literally: cut to ``limit`` characters, with ``& < >`` as entities and no code
    fences.
    """
    plain = str(text)
    plain = plain if len(plain) <= limit else plain[: limit - 3] + "..."
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")


def curve(points: Sequence[tuple[int, float | None]], *, onset: int | None) -> str:
    """The loss as one line of block characters, with a mark under the onset; empty without two finite
    values.
    """
    finite = [v for _, v in points if v is not None and math.isfinite(v)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    bars = "".join(_bar(value, low, span) for _, value in points)
    head = f"loss  {finite[0]:.4g}  "
    line = f"{head}{bars}  {_number(points[-1][1])}"
    if onset is None or not points[0][0] <= onset:
        return line
    at = sum(1 for step, _ in points if step <= onset) - 1
    label = "onset ^"
    return f"{line}\n{' ' * max(len(head) + at - len(label) + 1, 0)}{label}"


def _bar(value: float | None, low: float, span: float) -> str:
    if value is None:
        return GAP
    if not math.isfinite(value):
        return NONFINITE
    return BARS[min(int((value - low) / span * len(BARS)), len(BARS) - 1)]


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return (
        f"{value:.4g}"
        if math.isfinite(value)
        else ("NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf")
    )


def _message(
    sign: str,
    word: str,
    url: str,
    run: RunRecord,
    finding: Mapping[str, Any],
    *,
    colour: str,
    note: str,
    blocks: list[dict[str, Any]],
) -> dict[str, Any]:
    headline = _link(
        url, escape(finding.get("summary") or finding.get("cause"), HEADLINE_CHARS).replace("|", "/")
    )
    text = f"{sign} *{word}:* {headline}\n{escape(run.name, NAME_CHARS)}, {note}"
    attachment = {"color": colour, "blocks": blocks}
    return {"text": text, "unfurl_links": False, "unfurl_media": False, "attachments": [attachment]}


def _summary(finding: Mapping[str, Any]) -> str:
    cause = escape(str(finding.get("cause")).replace("_", " "), NAME_CHARS)
    kind = finding.get("kind")
    named = f"*{cause}*" + (f" ({escape(str(kind).replace('_', ' '), NAME_CHARS)})" if kind else "")
    evidence = [e for e in finding.get("evidence") or [] if isinstance(e, Mapping)][:1]
    shown = "".join(f"\n{_evidence(e)}" for e in evidence)
    return f"{named}: {escape(finding.get('summary') or '', TEXT_CHARS)}{shown}"


def _evidence(item: Mapping[str, Any]) -> str:
    where = item.get("tensor")
    value = item.get("value")
    number = f"{value:.4g}" if isinstance(value, int | float) else value
    parts = [f"{escape(item.get('signal'), NAME_CHARS)} = {escape(number, NAME_CHARS)}"]
    if where:
        parts.append(f"at `{escape(where, NAME_CHARS)}`")
    if item.get("step") is not None:
        parts.append(f"on step {escape(item['step'], NAME_CHARS)}")
    if item.get("expected"):
        parts.append(f"(expected {escape(item['expected'], NAME_CHARS)})")
    return " ".join(parts)


def _fields_of(finding: Mapping[str, Any], onset_time: float | None) -> list[tuple[str, str]]:
    onset, detected = finding.get("onset_step"), finding.get("detected_step")
    out = []
    if onset is not None:
        out.append(("Since", f"step {onset:,}" + ("" if onset_time is None else f", {_date(onset_time)}")))
    out.append(("Began at", _where(finding)))
    if finding.get("affected_tensors"):
        count = int(finding["affected_tensors"])
        out.append(("Effect", f"{count:,} tensor{'' if count == 1 else 's'} affected"))
    if detected is not None and onset is not None:
        late = max(detected - onset, 0)
        when = f"{late:,} step{'' if late == 1 else 's'} after it began" if late else "as it began"
        out.append(("Noticed", f"step {detected:,}, {when}"))
    rivals = _rivals(finding)
    out.append(
        ("Checks", f"{_sure(finding)}, " + (f"next best {rivals[0]}" if rivals else "no other cause fits"))
    )
    return out


def _recovered_fields(finding: Mapping[str, Any], run: RunRecord, now: float) -> list[tuple[str, str]]:
    out = []
    if finding.get("resolved_step") is not None:
        out.append(("Clean since", f"step {finding['resolved_step']:,}"))
    if run.last_step is not None:
        out.append(("Now at", f"step {run.last_step:,}, {_date(now)}"))
    out.append(("Began at", _where(finding)))
    return out


def _where(finding: Mapping[str, Any]) -> str:
    place = finding.get("tensor") or finding.get("layer")
    text = f"`{escape(place, NAME_CHARS)}`" if place else "the whole run"
    rank = finding.get("rank")
    return f"{text}, rank {rank}" if isinstance(rank, int) and rank > 0 else text


def _rivals(finding: Mapping[str, Any]) -> list[str]:
    found = [a for a in finding.get("alternatives") or [] if isinstance(a, Mapping)]
    return [
        f"{escape(str(a.get('cause')).replace('_', ' '), NAME_CHARS)} {_percent(a.get('confidence'))}"
        for a in found
    ]


def _advice(finding: Mapping[str, Any]) -> str:
    test = escape(finding.get("decisive_test") or "", TEXT_CHARS)
    confidence = finding.get("confidence")
    if isinstance(confidence, int | float) and confidence < SURE_ENOUGH:
        rivals = _rivals(finding)[:2]
        shown = f" Candidates: {', '.join(rivals)}." if rivals else ""
        return f"*Not sure yet*{shown}" + (f"\n*What would decide it*\n{test}" if test else "")
    remedy = finding.get("remedy") or {}
    text = escape(remedy.get("text") or "", TEXT_CHARS) if isinstance(remedy, Mapping) else ""
    settings = remedy.get("settings") or {} if isinstance(remedy, Mapping) else {}
    lines = [f"*What to do*\n{text or 'Open the run: no remedy is known for this cause.'}"]
    lines += [
        f"{escape(k, NAME_CHARS)}: `{escape(v, NAME_CHARS)}`" for k, v in list(settings.items())[:3] if v
    ]
    return "\n".join(lines)


def _sure(finding: Mapping[str, Any]) -> str:
    if finding.get("cause") == "undetermined":  # its confidence is that of neither candidate
        return "cause not determined yet"
    return f"{_percent(finding.get('confidence'))} sure"


def _percent(share: object) -> str:
    return (
        f"{100 * share:.0f} %" if isinstance(share, int | float) and math.isfinite(share) else "not known how"
    )


def _rule(finding: Mapping[str, Any]) -> str:
    return f"Rule {escape(finding.get('rule'), NAME_CHARS)}, finding {escape(finding.get('id'), NAME_CHARS)}"


def _date(unix: float) -> str:
    plain = time.strftime("%d %b %Y, %H:%M UTC", time.gmtime(unix))
    return f"<!date^{int(unix)}^{{date_short_pretty}} {{time}}|{plain}>"


def _link(url: str, label: str) -> str:
    return f"<{url}|{label}>"


def _text(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": text}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _text(text)}


def _fields(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {"type": "section", "fields": [_text(f"*{name}*\n{value}") for name, value in pairs]}


def _context(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [_text(text)]}
