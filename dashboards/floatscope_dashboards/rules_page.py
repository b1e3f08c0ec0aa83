"""The page of rules and notifications: every rule with what is set for it and how often it fired, channels,
silences, and who changed what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from floatscope_dashboards.channel_words import KINDS, told_words
from floatscope_dashboards.family_words import FAMILIES
from floatscope_dashboards.page import Page
from floatscope_dashboards.rules_view import (
    EVERY,
    ChangeView,
    RulesView,
    RuleView,
    SettingView,
    ThresholdView,
)
from floatscope_dashboards.say import Say, later
from floatscope_dashboards.wording import CAUSES, Sign

CHECKS = later("What it checks")
SECTIONS = (
    CHECKS,
    later("Why it matters"),
    later("How it decides"),
    later("What excludes it"),
    later("Known false positives"),
    later("What to do"),
    later("Source"),
)
"""Headings of a rule's documentation in the order shown; the texts below them stay as they were written."""
SIGNS: Mapping[str, Sign] = {
    "critical": Sign("crit", "\u25b2", later("Critical")),
    "warning": Sign("warn", "\u25c6", later("Warning")),
    "info": Sign("info", "\u25cb", later("Note")),
}
NOISY_DENIED = 3
NOISY_FIRED, NOISY_SHARE = 20, 0.1
OFF, NOT_SET = later("off"), later("as the rule says")


@dataclass(frozen=True)
class Difference:
    """One value that is another one than before, as text."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class ThresholdWords:
    """A threshold as it is shown; range: what it may be."""

    threshold: ThresholdView
    value: str
    default: str
    range: str
    moved: bool


@dataclass(frozen=True)
class RuleWords:
    """A rule as it is shown. sign: of its gravest alarm as it is set.  marks: all, changed, noisy, off."""

    rule: RuleView
    title: str
    sign: Sign
    enabled: bool
    marks: tuple[str, ...]
    condition: str
    thresholds: tuple[ThresholdWords, ...]
    scope: str
    by: SettingView | None
    history: str
    sections: tuple[tuple[str, str], ...]
    causes: tuple[str, ...]
    settings: tuple[tuple[SettingView, str, tuple[Difference, ...]], ...]
    words: str
    """For the search, in lower case."""


@dataclass(frozen=True)
class Group:
    """Rules of one family."""

    family: str
    name: str
    rules: tuple[RuleWords, ...]


@dataclass(frozen=True)
class ChangeWords:
    """One change as it is shown."""

    change: ChangeView
    title: str
    where: str
    differences: tuple[Difference, ...]


def rules_page(view: RulesView, say: Say) -> Page:
    """The page of all rules."""
    rules = [rule_words(rule, view, say) for rule in view.rules]
    counts = {mark: sum(mark in rule.marks for rule in rules) for mark in ("all", "changed", "noisy", "off")}
    titles = {rule.rule.code: rule.title for rule in rules}
    changes = None
    if view.changes is not None:
        thresholds = {rule.code: rule.thresholds for rule in view.rules}
        changes = [change_words(c, titles, thresholds.get(c.code, ()), say) for c in view.changes]
    title = say("Rules and notifications")
    return Page(
        "rules.html",
        f"{title} \u2013 floatscope",
        section="rules",
        script="rules.js",
        styles=("rules.css",),
        values={
            "view": view,
            "title": title,
            "headline": _headline(view, counts, say),
            "groups": _groups(rules, say),
            "filters": _filters(counts, say),
            "told": told_words(view.told, say, now_s=view.now.timestamp()),
            "changes": changes,
            "every": EVERY,
            "since": view.now - timedelta(days=view.days),
        },
        data=_data(view, say),
    )


def rule_words(rule: RuleView, view: RulesView, say: Say) -> RuleWords:
    """One rule in words, where the reader looks."""
    holds = rule.holds
    severity = (holds.severity if holds else None) or rule.severities[-1]
    enabled = holds is None or holds.enabled
    marks = ["all"]
    if any(_is_changed(setting) for setting in rule.settings if view.project in (None, setting.project)) or (
        holds is not None and _is_changed(holds)
    ):
        marks.append("changed")
    if is_noisy(rule):
        marks.append("noisy")
    if not enabled:
        marks.append("off")
    causes = tuple(say(CAUSES.get(cause, cause)) for cause in rule.causes)
    families = tuple(say(FAMILIES.get(family, family)) for family in rule.families)
    searched = " ".join((rule.code, rule.name, rule.title, *causes, *families, rule.sections[CHECKS]))
    return RuleWords(
        rule=rule,
        title=rule.title[:1].upper() + rule.title[1:],
        sign=SIGNS[severity],
        enabled=enabled,
        marks=tuple(marks),
        condition=rule.sections[CHECKS],
        thresholds=tuple(_threshold(threshold, say) for threshold in rule.thresholds),
        scope=_scope(rule, view, say),
        by=holds,
        history=_history(rule, view.days, say),
        sections=tuple((say(name), rule.sections[name]) for name in SECTIONS if name in rule.sections),
        causes=causes,
        settings=tuple(
            (
                setting,
                _project(setting.project, say),
                differences(None, _stored(setting), rule.thresholds, say),
            )
            for setting in rule.settings
        ),
        words=searched.lower(),
    )


def is_noisy(rule: RuleView) -> bool:
    """Whether people say more often no than yes to it, or hardly ever yes."""
    if rule.denied >= NOISY_DENIED and rule.denied > rule.confirmed:
        return True
    return rule.fired >= NOISY_FIRED and rule.confirmed < NOISY_SHARE * rule.fired


def differences(
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    thresholds: Sequence[ThresholdView],
    say: Say,
) -> tuple[Difference, ...]:
    """What differs between two settings; None is the rule as it was written."""
    old, new = _flat(before, thresholds, say), _flat(after, thresholds, say)
    return tuple(Difference(name, old[name], new[name]) for name in old if old[name] != new[name])


def change_words(
    change: ChangeView, titles: Mapping[str, str], thresholds: Sequence[ThresholdView], say: Say
) -> ChangeWords:
    """One line of the change history."""
    return ChangeWords(
        change,
        titles.get(change.code, change.code),
        _project(change.project, say),
        differences(change.before, change.after, thresholds, say),
    )


def plain_number(value: float) -> str:
    """A threshold as people type it: no more digits than it has."""
    return f"{value:.10g}"


def _flat(setting: Mapping[str, Any] | None, thresholds: Sequence[ThresholdView], say: Say) -> dict[str, str]:
    given = setting or {}
    moved = given.get("thresholds") or {}
    severity = str(given.get("severity"))
    return {
        "enabled": say("on") if given.get("enabled", True) else say(OFF),
        "severity": say(SIGNS[severity].word) if severity in SIGNS else say(NOT_SET),
        **{t.name: plain_number(float(moved.get(t.name, t.default))) for t in thresholds},
    }


def _stored(setting: SettingView) -> Mapping[str, Any]:
    return {
        "enabled": setting.enabled,
        "severity": setting.severity,
        "thresholds": dict(setting.thresholds),
    }


def _is_changed(setting: SettingView) -> bool:
    return not setting.enabled or setting.severity is not None or bool(setting.thresholds)


def _threshold(threshold: ThresholdView, say: Say) -> ThresholdWords:
    text = say("{low} to {high}", low=f"{threshold.lowest:,.10g}", high=f"{threshold.highest:,.10g}")
    return ThresholdWords(
        threshold,
        plain_number(threshold.value),
        plain_number(threshold.default),
        text,
        threshold.value != threshold.default,
    )


def _project(project: str, say: Say) -> str:
    return say("every project") if project == EVERY else project


def _scope(rule: RuleView, view: RulesView, say: Say) -> str:
    """Where the setting that holds comes from, and how many projects have one of their own."""
    own = sum(setting.project != EVERY for setting in rule.settings)
    if view.project is not None:
        if rule.holds is not None and rule.holds.project == view.project:
            return say("this project")
        return say("every project")
    if not own:
        return say("every project")
    return say.plural(
        "every project, {n} has its own setting", "every project, {n} have their own settings", own
    )


def _history(rule: RuleView, days: int, say: Say) -> str:
    """What it did in the last days and what people said."""
    if not rule.fired:
        return say("never fired")
    parts = [say.plural("fired once", "fired {n} times", rule.fired)]
    if rule.confirmed:
        parts.append(say("{n} confirmed", n=f"{rule.confirmed:,}"))
    if rule.denied:
        parts.append(say("{n} not the cause", n=f"{rule.denied:,}"))
    return ", ".join(parts)


def _headline(view: RulesView, counts: Mapping[str, int], say: Say) -> str:
    on = counts["all"] - counts["off"]
    fixed = sum(not rule.thresholds for rule in view.rules)
    text = say.plural("{n} rule on, {off} off.", "{n} rules on, {off} off.", on, off=counts["off"])
    more = say.plural(
        "{n} of them is an invariant that needs no threshold.",
        "{n} of all are invariants that need no threshold.",
        fixed,
    )
    return f"{text} {more}"


def _filters(counts: Mapping[str, int], say: Say) -> list[tuple[str, str, int]]:
    return [
        ("all", say("All"), counts["all"]),
        ("changed", say("Changed"), counts["changed"]),
        ("noisy", say("Noisy"), counts["noisy"]),
        ("off", say("Off"), counts["off"]),
    ]


def _groups(rules: Sequence[RuleWords], say: Say) -> list[Group]:
    found = []
    for family in dict.fromkeys((*FAMILIES, *(rule.rule.families[0] for rule in rules))):
        of_it = tuple(rule for rule in rules if rule.rule.families[0] == family)
        if of_it:
            found.append(Group(family, say(FAMILIES.get(family, family)), of_it))
    return found


def _data(view: RulesView, say: Say) -> dict[str, Any]:
    """What the scripts need beside the page itself: words, and where the reader looks."""
    return {
        "project": view.project or EVERY,
        "projects": list(view.projects),
        "families": [[family, say(word)] for family, word in FAMILIES.items()],
        "causes": [[cause, say(word)] for cause, word in CAUSES.items()],
        "kinds": [[kind, say(word)] for kind, word in KINDS.items()],
        "severities": {severity: say(sign.word) for severity, sign in SIGNS.items()},
    }
