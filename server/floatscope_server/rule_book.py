"""The rules there are, what they say of themselves, and what is set for them in a project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from floatscope_diagnostics.rule import Rule
from floatscope_diagnostics.rule_settings import (
    RuleSetting,
    RuleSettings,
    SettingsError,
    parse_setting,
    still_valid,
)
from floatscope_diagnostics.rule_texts import RuleText, texts
from floatscope_server.errors import Refused, RuleNotFound
from floatscope_server.store import rule_settings, runs, verdicts
from floatscope_server.store.rule_settings import StoredSetting
from floatscope_server.store.runs import RunRecord


class RuleBook:
    """All rules by code; read once, since it parses the rules' own files."""

    def __init__(self, found: tuple[RuleText, ...] | None = None) -> None:
        self.texts: Mapping[str, RuleText] = {t.rule.code: t for t in (texts() if found is None else found)}
        self.rules: tuple[Rule, ...] = tuple(t.rule for t in self.texts.values())

    def text(self, code: str) -> RuleText:
        """The rule; raises RuleNotFound."""
        found = self.texts.get(code)
        if found is None:
            raise RuleNotFound(code)
        return found

    def parse(self, code: str, given: Mapping[str, Any]) -> RuleSetting:
        """A setting that somebody asks for; raises RuleNotFound, or Refused naming what is wrong with it."""
        try:
            return parse_setting(given, self.text(code).rule)
        except SettingsError as error:
            hint = f"GET /api/v1/rules/{code} lists what this rule has"
            raise Refused(error.field, error.expected, error.got, hint=hint) from error

    def of_run(self, c: Connection, run: RunRecord) -> RuleSettings:
        """What a run is judged under: what is set for its project, or, once it has ended, what its verdict
        was given under, so that late steps and a baseline that grows do not bring other settings in.
        """
        if run.status not in runs.ENDED:
            return self.of_project(c, run.project)
        verdict = verdicts.find(c, run.id)
        return still_valid(None if verdict is None else verdict.get("rule_settings"), self.rules)

    def of_project(self, c: Connection, project: str) -> RuleSettings:
        """What holds in a project."""
        return self.valid(rule_settings.of_project(c, project))

    def valid(self, stored: Mapping[str, StoredSetting]) -> RuleSettings:
        """Stored settings as the engine takes them, as far as this version knows them."""
        if not stored:
            return RuleSettings()
        return still_valid({code: setting.to_json() for code, setting in stored.items()}, self.rules)
