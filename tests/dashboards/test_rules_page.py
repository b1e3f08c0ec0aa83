"""The page of rules and notifications from view objects: what is said, marked, escaped and offered."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, time, timedelta, timezone

import pytest

from floatscope_dashboards.channel_words import told_words, week_of
from floatscope_dashboards.channels_view import (
    DAYS,
    ChannelsView,
    ChannelView,
    DeliveryView,
    QuietView,
    SilenceView,
)
from floatscope_dashboards.page import Shell
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.rules_page import is_noisy, rule_words, rules_page
from floatscope_dashboards.rules_view import (
    EVERY,
    ChangeView,
    RulesView,
    RuleView,
    SettingView,
    ThresholdView,
)
from floatscope_diagnostics.rule_texts import HEADINGS, texts
from tests.dashboards.sample import HOSTILE

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)
PAGES = Pages()
SAY = PAGES.say("en")
SPIKE = ThresholdView("spike_nats", "nats", 1.5, 3.0, 0.4, 100.0, False, "What is an alarm.")
RULE = RuleView(
    code="FS411",
    name="bad_batch",
    title="bad batch",
    families=("data",),
    causes=("bad_batch",),
    sections={heading: f"{heading} of <b>it</b>." for heading in HEADINGS},
    needs=("loss",),
    docs="docs/rules/FS411.md",
    severities=("info", "warning"),
    thresholds=(SPIKE,),
)
SETTING = SettingView(EVERY, True, None, {"spike_nats": 1.5}, HOSTILE, NOW, HOSTILE)
CHANNEL = ChannelView(
    id="webhook-1",
    kind="webhook",
    name=HOSTILE,
    host="example.org",
    min_severity="critical",
    projects=(HOSTILE,),
    enabled=True,
    repeat_s=3600.0,
    escalate_s=900.0,
    quiet=None,
    signed=True,
    from_settings=False,
)
SILENCE = SilenceView(
    id="silence-1",
    state="active",
    run=None,
    project=HOSTILE,
    family="data",
    cause=None,
    starts=NOW - timedelta(hours=1),
    ends=NOW + timedelta(hours=4),
    critical=False,
    note=HOSTILE,
    by=HOSTILE,
    ended_by=None,
    held=12,
)


def view(*rules: RuleView, **more: object) -> RulesView:
    return replace(RulesView(rules or (RULE,), (HOSTILE,), 30, NOW), **more)  # type: ignore[arg-type]


def shown(found: RulesView, *scopes: str) -> str:
    shell = Shell(SAY, "0.1.0", NOW, may=frozenset(("read", *scopes)), reader="tests")
    return PAGES.show(rules_page(found, SAY), shell)


def test_every_rule_there_is_can_be_shown() -> None:
    rules = tuple(
        replace(
            RULE,
            code=text.rule.code,
            title=text.title,
            families=text.families,
            causes=tuple(text.rule.causes),
            sections=text.sections,
            severities=text.severities,
        )
        for text in texts()
    )
    html = shown(view(*rules), "write")
    for text in texts():
        assert f'id="{text.rule.code}"' in html
    assert html.count('class="rule"') == len(rules)


@pytest.mark.parametrize(
    ("fired", "confirmed", "denied", "noisy"),
    [
        (0, 0, 0, False),
        (5, 2, 3, True),
        (5, 3, 3, False),
        (2, 0, 2, False),
        (31, 2, 0, True),
        (31, 4, 0, False),
        (19, 0, 0, False),
    ],
)
def test_noisy_is_what_people_deny_or_hardly_ever_confirm(
    fired: int, confirmed: int, denied: int, noisy: bool
) -> None:
    assert is_noisy(replace(RULE, fired=fired, confirmed=confirmed, denied=denied)) is noisy


def test_a_rule_is_marked_by_what_holds_where_the_reader_looks() -> None:
    own = replace(SETTING, project="mine", thresholds={}, enabled=False)
    everywhere = rule_words(replace(RULE, settings=(own,)), view(), SAY)
    assert everywhere.marks == ("all", "changed")
    assert everywhere.scope == "every project, 1 has its own setting"
    inside = rule_words(replace(RULE, settings=(own,), holds=own), view(project="mine"), SAY)
    assert inside.marks == ("all", "changed", "off")
    assert inside.scope == "this project"
    elsewhere = rule_words(replace(RULE, settings=(own,)), view(project="other"), SAY)
    assert elsewhere.marks == ("all",)
    same_as_written = replace(SETTING, thresholds={})
    assert rule_words(
        replace(RULE, settings=(same_as_written,), holds=same_as_written), view(), SAY
    ).marks == ("all",)


def test_what_a_rule_says_and_what_is_set_stays_text() -> None:
    changed = ChangeView(NOW, HOSTILE, "FS411", HOSTILE, None, {"thresholds": {"spike_nats": 1.5}}, HOSTILE)
    told = ChannelsView(
        (replace(CHANNEL, last=DeliveryView("dead", 3, NOW, HOSTILE)),), (SILENCE,), (SILENCE,)
    )
    rule = replace(
        RULE, settings=(SETTING, replace(SETTING, project=HOSTILE)), holds=SETTING, fired=3, firing=2
    )
    html = shown(view(rule, changes=(changed,), told=told, strange=HOSTILE), "write", "admin")
    assert "<script>window.stolen" not in html
    assert "<img" not in html
    assert "What it checks of &lt;b&gt;it&lt;/b&gt;." in html
    for words in ("Firing on 2 runs", "fired 3 times", "default 3", "Holds back 12 alerts.", "after 3 tries"):
        assert words in html


def test_an_unknown_severity_or_threshold_of_an_old_change_is_left_out() -> None:
    odd = {"enabled": False, "severity": "awful", "thresholds": {"gone": 1}}
    html = shown(view(changes=(ChangeView(NOW, "x", "FS999", "p", odd, None),)), "admin")
    assert "awful" not in html
    assert "gone" not in html
    assert "FS999" in html


@pytest.mark.parametrize(
    ("scopes", "offered"), [((), 0), (("write",), 1), (("write", "admin"), 3)], ids=["read", "write", "admin"]
)
def test_what_the_reader_may_not_do_is_not_offered(scopes: tuple[str, ...], offered: int) -> None:
    told = ChannelsView((CHANNEL,), (SILENCE,))
    html = shown(view(told=told), *scopes)
    acts = [f'data-act="{act}"' in html for act in ("edit", "off", "delete")]
    assert sum(acts) == (3 if "admin" in scopes else 0)
    assert html.count("disabled") == {0: 6, 1: 1, 3: 0}[offered]
    assert ('id="readonly"' in html) is ("admin" not in scopes)


def test_the_channel_of_the_environment_says_so_and_cannot_be_deleted() -> None:
    html = shown(view(told=ChannelsView((replace(CHANNEL, from_settings=True),))), "write", "admin")
    assert "from the environment" in html
    assert "FLOATSCOPE_SLACK_WEBHOOK_URL" in html
    assert 'data-act="delete"' not in html
    assert 'data-act="edit"' in html


def test_terms_of_a_channel_are_sentences() -> None:
    (words,) = told_words(
        ChannelsView((replace(CHANNEL, projects=tuple("abcde")),)), SAY, now_s=NOW.timestamp()
    ).channels
    assert words.terms == (
        "Critical only, projects a, b, c and 2 more.",
        "Only what nobody acknowledged for 15 min.",
        "Again every 1 h until somebody acknowledges.",
    )


def test_a_name_of_a_kilobyte_is_short_in_a_sentence() -> None:
    long = "n" * 1000
    found = told_words(
        ChannelsView((replace(CHANNEL, projects=(long,)),), (replace(SILENCE, project=long, note=""),)),
        SAY,
        now_s=NOW.timestamp(),
    )
    assert found.channels[0].terms[0] == f"Critical only, project {'n' * 79}\u2026."
    assert found.silences[0].title == f"Data in project {'n' * 79}\u2026"


def test_quiet_hours_over_midnight_go_on_the_next_day() -> None:
    week = week_of(QuietView("UTC", time(22), time(7), ("sun", "mon")), SAY)
    assert [day.bars for day in week] == [
        ((0, 420), (1320, 1440)),
        ((0, 420),),
        (),
        (),
        (),
        (),
        ((1320, 1440),),
    ]
    whole = week_of(QuietView("UTC", time(0), time(0), DAYS), SAY)
    assert all(day.bars == ((0, 1440),) for day in whole)


@pytest.mark.parametrize(
    ("silence", "title", "left"),
    [
        (replace(SILENCE, note="", ends=None), f"Data in project {HOSTILE}", ""),
        (
            replace(SILENCE, note="fan", state="waiting", starts=NOW + timedelta(minutes=5)),
            "fan",
            "begins in 5 min",
        ),
        (
            replace(SILENCE, note="", family=None, project=None, run="r1"),
            "Every warning on run r1",
            "4 h left",
        ),
        (
            replace(SILENCE, note="", family=None, project=None, critical=True),
            "Every finding in every project",
            "4 h left",
        ),
    ],
)
def test_a_silence_says_what_and_how_long(silence: SilenceView, title: str, left: str) -> None:
    (words,) = told_words(ChannelsView(silences=(silence,)), SAY, now_s=NOW.timestamp()).silences
    assert (words.title, words.left) == (title, left)
