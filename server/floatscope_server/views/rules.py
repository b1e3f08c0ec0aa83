"""Fills the page of rules and notifications from the store and from the rules' own files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from floatscope_dashboards.rules_view import (
    EVERY,
    ChangeView,
    RulesView,
    RuleView,
    SettingView,
    ThresholdView,
)
from floatscope_diagnostics.rule_texts import RuleText
from floatscope_server.backtest import DAY_S
from floatscope_server.callers import ADMIN, Caller
from floatscope_server.services import Services
from floatscope_server.store import audit, projects, rule_history, rule_settings
from floatscope_server.store.audit import AuditRecord
from floatscope_server.store.rule_history import FIRED_DAYS, Fired
from floatscope_server.store.rule_settings import StoredSetting
from floatscope_server.times import moment
from floatscope_server.views.channels import channels_view

MOST_PROJECTS = 200
MOST_CHANGES = 20


def rules_view(c: Connection, services: Services, by: Caller, *, asked: str | None) -> RulesView:
    """The page as it is in a project, or for every project. asked: project of the address; one that nobody
    named before shows every project and says so.
    """
    now = time.time()
    project = asked if asked and asked != EVERY and projects.is_known(c, asked) else None
    since = now - FIRED_DAYS * DAY_S
    fired = rule_history.by_rule(c, since=since, project=project)
    firing = rule_history.firing(c, project=project)
    stored = rule_settings.listed(c)
    rules = tuple(
        _rule(
            text,
            [s for s in stored if s.rule == code],
            project=project,
            fired=fired.get(code, Fired()),
            firing=firing.get(code, 0),
        )
        for code, text in services.rule_book.texts.items()
    )
    return RulesView(
        rules=rules,
        projects=_projects(c, stored, project),
        days=FIRED_DAYS,
        now=moment(now),
        project=project,
        strange=asked if asked and asked != EVERY and project is None else None,
        changes=_changes(c) if by.may(ADMIN) else None,
        told=channels_view(c, services, now=now),
    )


def _projects(c: Connection, stored: Sequence[StoredSetting], project: str | None) -> tuple[str, ...]:
    """Those of the newest runs, those that settings name, and the one that is looked at."""
    found = dict.fromkeys(projects.listed(c, limit=MOST_PROJECTS))
    found |= dict.fromkeys([s.project for s in stored if s.project != EVERY][:MOST_PROJECTS])
    if project is not None:
        found[project] = None
    return tuple(sorted(found))


def _rule(
    text: RuleText,
    settings: Sequence[StoredSetting],
    *,
    project: str | None,
    fired: Fired,
    firing: int,
) -> RuleView:
    rule = text.rule
    mine = {s.project: _setting(s) for s in settings}
    holds = mine.get(project or EVERY) or mine.get(EVERY)
    moved: Mapping[str, float] = {} if holds is None else holds.thresholds
    return RuleView(
        code=rule.code,
        name=rule.name,
        title=text.title,
        families=text.families,
        causes=tuple(rule.causes),
        sections=text.sections,
        needs=text.needs,
        docs=text.docs_path,
        severities=text.severities,
        thresholds=tuple(
            ThresholdView(
                name=t.name,
                unit=t.unit,
                value=moved.get(t.name, t.default),
                default=t.default,
                lowest=t.lowest,
                highest=t.highest,
                whole=t.whole,
                meaning=t.meaning,
            )
            for t in rule.thresholds
        ),
        settings=tuple(mine.values()),
        holds=holds,
        fired=fired.count,
        confirmed=fired.confirmed,
        denied=fired.denied,
        firing=firing,
    )


def _setting(setting: StoredSetting) -> SettingView:
    return SettingView(
        project=setting.project,
        enabled=setting.enabled,
        severity=setting.severity,
        thresholds=setting.thresholds,
        note=setting.note,
        updated=moment(setting.updated),
        by=setting.updated_by,
    )


def _changes(c: Connection) -> tuple[ChangeView, ...]:
    return tuple(_change(record) for record in audit.listed(c, action="rule.change", limit=MOST_CHANGES))


def _change(record: AuditRecord) -> ChangeView:
    detail = record.detail
    note = detail.get("note")
    return ChangeView(
        moment=moment(record.time),
        by=record.who,
        code=record.target or "",
        project=str(detail.get("project", EVERY)),
        before=_mapping(detail.get("before")),
        after=_mapping(detail.get("after")),
        note=None if note is None else str(note),
    )


def _mapping(value: object) -> Mapping[str, object] | None:
    return value if isinstance(value, Mapping) else None
