"""Slack messages: what, since when, where, how sure, what to do; hostile names stay text; limits hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_server.alerting import Change
from floatscope_server.database import Database
from floatscope_server.notify.messages import Messages, curve, escape
from floatscope_server.store import runs
from floatscope_server.store.runs import RunRecord
from tests.server.samples import finding

SECTION_CHARS, FIELD_CHARS, FIELDS, BLOCKS = 3000, 2000, 10, 50  # Block Kit's limits
EVIL = "<script>`*_~&<!channel>|> " * 60


def record(database: Database, name: str = "llama-7b-e4m3") -> RunRecord:
    with database.write() as c:
        runs.create(c, "k3f9q2", RunInfo(name=name), summary="", now=1.7e9)
        return runs.get(c, "k3f9q2")


def message(
    database: Database, event: str = "raised", name: str = "llama-7b-e4m3", **changes: Any
) -> dict[str, Any]:
    found = finding(**changes)
    change = Change("f1", event, found, found["severity"], muted=False)
    loss = [(step, 2.0 + step / 10) for step in range(0, 20, 2)]
    return Messages(public_url="https://fs.example.org").of(
        change, run=record(database, name), loss=loss, onset_time=1795494120.0, now=1795527060.0
    )


def texts(value: Any) -> list[str]:
    """Every text of a message."""
    if isinstance(value, dict):
        own = [value["text"]] if isinstance(value.get("text"), str) else []
        return own + [text for part in value.values() for text in texts(part)]
    return [text for part in value for text in texts(part)] if isinstance(value, list) else []


def test_an_undetermined_cause_shows_its_candidates_and_no_number_of_its_own(
    sqlite_database: Database,
) -> None:
    two = [{"cause": "stall", "confidence": 0.5}, {"cause": "bad_batch", "confidence": 0.3}]
    body = message(sqlite_database, cause="undetermined", confidence=0.2, alternatives=two)
    whole = "\n".join([body["text"], *texts(body["attachments"])])
    assert "cause not determined yet" in body["text"]
    assert "Candidates: stall 50 %, bad batch 30 %." in whole
    assert "20 %" not in whole


def test_a_message_says_all_that_is_needed(sqlite_database: Database) -> None:
    body = message(sqlite_database)
    assert body["text"].startswith(
        ":small_red_triangle: *Critical:* <https://fs.example.org/runs/k3f9q2?at=4|The scale stands still"
    )
    assert "llama-7b-e4m3, 93 % sure" in body["text"]
    assert (body["unfurl_links"], body["unfurl_media"]) == (False, False)
    (attachment,) = body["attachments"]
    assert attachment["color"] == "#b3380a"
    whole = "\n".join(texts(attachment))
    for part in (
        "*stale scale saturation*",
        "overflow_pct = 4.1 at `blocks.0.attn.qkv/input` on step 6 (expected &lt; 0.5)",
        "*Since*\nstep 4, <!date^1795494120^{date_short_pretty} {time}|24 Nov 2026, 04:22 UTC>",
        "*Began at*\n`blocks.0.attn.qkv/input`",
        "14 tensors affected",
        "*Noticed*\nstep 6, 2 steps after it began",
        "93 % sure, next best activation outlier growth 4 %",
        "\u2581",
        "onset ^",
        "*What to do*\nRoll back to step 4.",
        "transformer_engine: `Float8CurrentScaling()`",
        "<https://fs.example.org/runs/k3f9q2?at=4|Open run>",
        "Rule FS201",
    ):
        assert part in whole


def test_recovered_is_a_message_of_its_own(sqlite_database: Database) -> None:
    body = message(sqlite_database, "recovered", resolved_step=1200, state="recovered")
    assert body["text"].startswith(":white_check_mark: *Recovered:*")
    assert "was critical" in body["text"]
    assert body["attachments"][0]["color"] == "#00694e"
    assert "*Clean since*\nstep 1,200" in "\n".join(texts(body))


def test_worse_and_warning_have_their_words(sqlite_database: Database) -> None:
    assert "*Worse:*" in message(sqlite_database, "worsened")["text"]
    assert "*Warning:*" in message(sqlite_database, severity="warning")["text"]


def test_below_60_percent_it_gives_candidates_and_a_test_and_no_instruction(
    sqlite_database: Database,
) -> None:
    whole = "\n".join(texts(message(sqlite_database, confidence=0.4)))
    assert "*Not sure yet* Candidates: activation outlier growth 4 %" in whole
    assert "*What would decide it*\nRun one step with current scaling." in whole
    assert "Roll back" not in whole


@pytest.mark.parametrize("event", ["raised", "worsened", "recovered"])
def test_hostile_text_stays_text_and_within_limits(sqlite_database: Database, event: str) -> None:
    body = message(
        sqlite_database,
        event,
        name=EVIL[:1000],
        summary=EVIL,
        tensor=EVIL,
        layer=EVIL,
        decisive_test=EVIL,
        evidence=[{"signal": EVIL, "tensor": EVIL, "step": 6, "value": EVIL, "expected": EVIL}],
        alternatives=[{"cause": EVIL, "confidence": math.nan}],
        remedy={"text": EVIL, "settings": {EVIL: EVIL}},
    )
    for text in texts(body):
        assert "<script" not in text
        assert "<!channel" not in text
        assert len(text) <= SECTION_CHARS
        assert text.count("`") % 2 == 0
    blocks = body["attachments"][0]["blocks"]
    assert len(blocks) <= BLOCKS
    for block in blocks:
        fields = block.get("fields", [])
        assert len(fields) <= FIELDS
        assert all(len(field["text"]) <= FIELD_CHARS for field in fields)
    assert json.loads(json.dumps(body)) == body


def test_a_finding_with_little_in_it_still_makes_a_message(sqlite_database: Database) -> None:
    bare = {"id": "f", "cause": "undetermined", "severity": "warning", "state": "raised"}
    change = Change("f", "raised", bare, "warning", muted=False)
    messages = Messages(public_url="http://x")
    body = messages.of(change, run=record(sqlite_database), loss=[], onset_time=None, now=0.0)
    assert "the whole run" in "\n".join(texts(body))


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
