"""Messages: what, since when, where, how sure, what to do; hostile names stay text; limits hold."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.protocol import strict_json
from floatscope_server.notify import words
from floatscope_server.notify.messages import Messages
from floatscope_server.notify.slack_text import code, curve, escape, within
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.store.runs import RunRecord
from floatscope_server.telling.notice import Notice, Subject
from tests.server.samples import finding

SECTION_CHARS, FIELD_CHARS, FIELDS, ELEMENTS, BLOCKS = 3000, 2000, 10, 10, 50  # Block Kit's limits
EVIL = "<script>`*_~&<!channel>|> \u202e\n" * 60
NOW = 1795527060.0


def run(name: str = "llama-7b-e4m3", run_id: str = "k3f9q2") -> RunRecord:
    values: dict[str, Any] = dict.fromkeys(RunRecord.__dataclass_fields__)
    numbers = {"id": 1, "last_step": 1500, "recipe": {"name": "fp8_delayed_scaling"}}
    return RunRecord(**{**values, **numbers, "run_id": run_id, "name": name, "project": "p"})


def subject(event: str = "raised", name: str = "llama-7b-e4m3", **changes: Any) -> Subject:
    found = finding(**changes)
    return Subject(found["id"], event, found["severity"], found, run(name), "firing", NOW - 22_380)


def notice(event: str = "raised", *further: Subject, more: int = 0, **changes: Any) -> Notice:
    loss = [(step, 2.0 + step / 10) for step in range(0, 20, 2)]
    lead = subject(event, **changes)
    return Notice(event, (lead, *further), NOW, more, loss=loss, onset_time=1795494120.0)


def rendered(told: Notice, kind: str = "slack") -> dict[str, Any]:
    channel = ChannelRecord("c", kind, "team", "https://x.example/secret", "info", (), True, 0.0)
    return Messages(public_url="https://fs.example.org").body(told, channel)


def texts(value: Any) -> list[str]:
    """Every text of a message."""
    if isinstance(value, dict):
        own = [value["text"]] if isinstance(value.get("text"), str) else []
        return own + [text for part in value.values() for text in texts(part)]
    return [text for part in value for text in texts(part)] if isinstance(value, list) else []


def shape(body: dict[str, Any]) -> list[str]:
    """The blocks of a message by what they are."""
    (attachment,) = body["attachments"]
    return [
        "fields" if "fields" in block else "links" if len(block.get("elements", [])) > 1 else block["type"]
        for block in attachment["blocks"]
    ]


def test_a_message_says_all_that_is_needed() -> None:
    body = rendered(notice())
    assert body["text"] == (
        ":small_red_triangle: *Critical:* <https://fs.example.org/runs/k3f9q2?at=4|"
        "The scale stands still while amax grows; 4.1 % of the values clip>\nllama-7b-e4m3, 93 % sure"
    )
    assert (body["unfurl_links"], body["unfurl_media"]) == (False, False)
    (attachment,) = body["attachments"]
    assert attachment["color"] == "#b3380a"
    assert shape(body) == ["section", "fields", "section", "section", "links", "context"]
    whole = "\n".join(texts(attachment))
    for part in (
        "*stale scale saturation*",
        "overflow_pct: 4.1 at step 6, `blocks.0.attn.qkv/input` (expected: &lt; 0.5)",
        "*Since*\nstep 4, <!date^1795494120^{date_short_pretty} {time}|24 Nov 2026, 04:22 UTC>",
        "noticed at step 6",
        "*Began at*\n`blocks.0.attn.qkv/input`",
        "*Effect*\n14 tensors affected\nloss 2.2 before, 3.8 now",
        "*Checks*\n93 % sure\nnext best cause: activation outlier growth, 4 %",
        "\u2581",
        "onset ^",
        "*What to do*\n1. Roll back to step 4.\n2. Use current scaling.",
        "transformer engine: `Float8CurrentScaling()`",
        "<https://fs.example.org/alerts/f1|Acknowledge>",
        "<https://fs.example.org/runs/k3f9q2?at=4|Open run>",
        "Rule FS201, alert f1",
    ):
        assert part in whole


def test_recovered_is_a_message_of_its_own_and_does_not_repeat_the_fault_as_news() -> None:
    body = rendered(notice("recovered", resolved_step=1200, state="recovered"))
    assert body["text"] == (
        ":white_check_mark: *Recovered:* <https://fs.example.org/runs/k3f9q2?at=1200|"
        "Stale scale saturation at blocks.0.attn.qkv/input is over, clean since step 1,200>"
        "\nllama-7b-e4m3, was critical for 6 h 13 min"
    )
    assert body["attachments"][0]["color"] == "#00694e"
    assert shape(body) == ["section", "fields", "links", "context"]
    whole = "\n".join(texts(body))
    for part in ("*Clean since*\nstep 1,200", "*Now at*\nstep 1,500", "*Lasted*\nfrom step 4, 1,196 steps"):
        assert part in whole


def test_what_is_over_in_the_whole_run_and_took_no_time_is_said_in_few_words() -> None:
    told = notice("passed", cause="bad_batch", severity="warning", tensor=None, layer=None, resolved_step=12)
    lead = replace(told.lead, since=NOW)
    body = rendered(replace(told, subjects=(lead,)))["text"]
    assert "Bad batch is over, clean since step 12" in body
    assert body.endswith("was warning")


@pytest.mark.parametrize(
    ("event", "severity", "word"),
    [
        ("raised", "warning", "*Warning:*"),
        ("worsened", "critical", "*Worse, critical:*"),
        ("repeated", "critical", "*Still critical:*"),
        ("escalated", "critical", "*Critical, escalated:*"),
        ("passed", "warning", "*Came and went:*"),
    ],
)
def test_every_event_has_its_word(event: str, severity: str, word: str) -> None:
    told = notice(event, severity=severity)
    assert word in rendered(told)["text"]
    assert rendered(told, "apprise")["title"].startswith(word.strip("*"))


def test_a_repeat_says_how_long_nobody_answered_and_when_the_next_comes() -> None:
    told = replace(notice("repeated"), repeat_number=2, next_repeat=NOW + 3600, reason="it was not answered")
    body = rendered(told)
    assert "llama-7b-e4m3, 93 % sure, nobody has acknowledged for 6 h 13 min" in body["text"]
    assert "Rule FS201, alert f1, second repeat, next at 14:31 UTC unless acknowledged" in texts(body)[-1]


def test_why_now_and_coming_and_going_are_said() -> None:
    told = notice()
    told = replace(told, subjects=(replace(told.lead, raises=3),), reason="the silence ended")
    text = rendered(told)["text"]
    assert "comes and goes, began 3 times since the last message, the silence ended" in text


def test_further_alerts_are_listed_and_those_left_out_counted() -> None:
    others = [subject(id=f"f{n}", severity="warning", onset_step=n) for n in range(2, 20)]
    body = rendered(notice("raised", *others, more=5))
    (listed,) = [text for text in texts(body) if "Also on this run" in text]
    lines = listed.split("\n")
    assert lines[0] == "*Also on this run* (23)"
    assert lines[1].startswith("\u2022 Warning: <https://fs.example.org/alerts/f2|The scale stands still")
    assert lines[1].endswith(", since step 2")
    assert lines[-1] == "and 13 more"
    plain = rendered(notice("raised", *others, more=5), "apprise")["body"]
    assert "Also on this run (23):\n- Warning: The scale" in plain
    assert "and 13 more" in plain


def test_the_end_of_quiet_hours_is_one_message_about_several_runs() -> None:
    over = subject("recovered", id="b", resolved_step=9, state="recovered")
    other = replace(subject(id="c", severity="warning"), run=run("b-run", "b"))
    told = Notice("summary", (subject(), over, other), NOW, more=2)
    body = rendered(told)
    assert body["text"] == (
        ":crescent_moon: *Quiet hours are over:* <https://fs.example.org/alerts|"
        "5 alerts while it was quiet>\n1 critical, 1 warning, 1 over already, on 2 runs"
    )
    assert body["attachments"][0]["color"] == "#b3380a"
    whole = "\n".join(texts(body))
    assert "*<https://fs.example.org/runs/b|b-run>*" in whole
    assert "and 2 more" in whole
    plain = rendered(told, "apprise")
    assert plain["type"] == "failure"
    assert "llama-7b-e4m3: Recovered: Stale scale saturation" in plain["body"]


def test_below_60_percent_it_gives_candidates_and_a_test_and_no_instruction() -> None:
    whole = "\n".join(texts(rendered(notice(confidence=0.4))))
    assert (
        "*Not sure yet*\n\u2022 stale scale saturation, 40 %\n\u2022 activation outlier growth, 4 %" in whole
    )
    assert "*What would decide it*\nRun one step with current scaling." in whole
    assert "Roll back" not in whole


def test_an_undetermined_cause_shows_its_candidates_and_no_number_of_its_own() -> None:
    two = [{"cause": "stall", "confidence": 0.5}, {"cause": "bad_batch", "confidence": 0.3}]
    body = rendered(notice(cause="undetermined", confidence=0.2, alternatives=two))
    whole = "\n".join([body["text"], *texts(body["attachments"])])
    assert "cause not determined yet" in body["text"]
    assert "*Not sure yet*\n\u2022 stall, 50 %\n\u2022 bad batch, 30 %" in whole
    assert "20 %" not in whole


def evil(event: str) -> Notice:
    changes: dict[str, Any] = {
        "summary": EVIL,
        "tensor": EVIL,
        "layer": EVIL,
        "kind": EVIL,
        "rule": EVIL,
        "decisive_test": EVIL,
        "evidence": [{"signal": EVIL, "tensor": EVIL, "step": 6, "value": EVIL, "expected": EVIL}] * 9,
        "alternatives": [{"cause": EVIL, "confidence": math.nan}] * 9,
        "remedy": {"text": "A. " * 900, "settings": {"transformer_engine": EVIL, "megatron": EVIL}},
    }
    others = [subject(event, name=EVIL[:1000], id=f"{n}", **changes) for n in range(19)]
    told = notice(event, *others, name=EVIL[:1000], more=9, **changes)
    return replace(told, event="summary" if event == "summary" else event, reason=EVIL)


@pytest.mark.parametrize("event", ["raised", "worsened", "recovered", "repeated", "summary"])
@pytest.mark.parametrize("confidence", [0.9, 0.1])
def test_hostile_text_stays_text_and_within_limits(event: str, confidence: float) -> None:
    told = evil(event)
    lead = told.lead
    told = replace(
        told,
        subjects=(
            replace(lead, finding={**lead.finding, "confidence": confidence}),
            *told.subjects[1:],
        ),
    )
    body = rendered(told)
    for text in texts(body):
        assert "<script" not in text
        assert "<!channel" not in text
        assert "\u202e" not in text
        assert len(text) <= SECTION_CHARS
        assert text.count("`") % 2 == 0
        assert text.count("<") == text.count(">")
    blocks = body["attachments"][0]["blocks"]
    assert len(blocks) <= BLOCKS
    for block in blocks:
        assert len(block.get("fields", [])) <= FIELDS
        assert len(block.get("elements", [])) <= ELEMENTS
        assert all(len(field["text"]) <= FIELD_CHARS for field in block.get("fields", []))
    assert json.loads(json.dumps(body)) == body
    plain = rendered(told, "apprise")
    assert "\u202e" not in plain["title"] + plain["body"]
    assert "\n" not in plain["title"]


def test_a_finding_with_little_in_it_still_makes_a_message() -> None:
    bare = {"id": "f", "cause": "undetermined", "severity": "warning", "state": "raised"}
    told = Notice("raised", (Subject("f", "raised", "warning", bare, run(), "firing"),), 0.0)
    assert "the whole run" in "\n".join(texts(rendered(told)))
    assert rendered(told, "apprise")["type"] == "warning"
    assert rendered(told, "webhook")["alert"]["id"] == "f"


def test_a_webhook_gets_the_alert_as_it_is() -> None:
    body = rendered(notice("raised", subject(id="f2"), confidence=math.nan, more=1), "webhook")
    body = json.loads(strict_json.dumps(body))
    assert (body["schema"], body["event"], body["more"]) == ("floatscope.notification/1", "raised", 1)
    assert body["text"] == "Critical: The scale stands still while amax grows; 4.1 % of the values clip"
    alert = body["alert"]
    assert (alert["id"], alert["run_id"], alert["state"]) == ("f1", "k3f9q2", "firing")
    assert (alert["tensor"], alert["confidence"]) == ("blocks.0.attn.qkv/input", "NaN")
    assert alert["url"] == "https://fs.example.org/alerts/f1"
    assert alert["run_url"] == "https://fs.example.org/runs/k3f9q2?at=4"
    assert [other["id"] for other in body["further"]] == ["f2"]


@pytest.mark.parametrize("kind", ["slack", "webhook", "apprise"])
def test_no_message_holds_the_address_of_its_channel(kind: str) -> None:
    assert "secret" not in json.dumps(rendered(notice(), kind))


def test_curve_marks_onset_nan_and_gap() -> None:
    drawn = curve([(0, 1.0), (10, 1.0), (20, None), (30, math.nan), (40, 9.0)], onset=30)
    line, mark = drawn.split("\n")
    assert line == "loss  1  \u2581\u2581 \u2573\u2588  9"
    assert mark.index("^") == line.index("\u2573")
    assert curve([(0, 1.0)], onset=None) == ""
    assert curve([(0, 1.0), (1, math.inf), (2, 1.0)], onset=None) == "loss  1  \u2581\u2573\u2581  1"


def test_escape() -> None:
    assert escape("a<b>&`c`", 100) == "a&lt;b&gt;&amp;'c'"
    assert escape("x" * 50, 10) == "xxxxxxx..."
    assert escape("*Recovered:* :white_check_mark: ~a~", 99) == (
        "\u2217Recovered:\u2217 :\u200bwhite_check_mark: \u223ca\u223c"
    )
    assert escape("blocks.*/input at 12:30:45, grad_norm", 99) == "blocks.*/input at 12:30:45, grad_norm"
    assert code("*.mlp.*`", 99) == "`*.mlp.*'`"


@given(st.lists(st.text(max_size=40), max_size=20), st.integers(10, 200))
def test_lines_within_a_limit_are_whole(lines: list[str], limit: int) -> None:
    kept = within(lines, limit)
    assert len(kept) <= limit
    assert kept == "\n".join(lines) or kept.endswith("...")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (22_380, "6 h 13 min"),
        (7200, "2 h"),
        (273_600, "3 d 4 h"),
        (-5, "0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text
