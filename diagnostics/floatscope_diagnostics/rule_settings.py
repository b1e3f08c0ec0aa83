"""What people set for rules: off, another severity, moved thresholds.

    {"FS411": {"enabled": true, "severity": "critical", "thresholds": {"spike_nats": 1.5}}}

The same for a project on a server and for ``floatscope diagnose --rules FILE``. A rule that is off is named
in ``not_checked``; what it would have explained is left to the other rules. Settings touch neither detectors
nor their memory, so an engine takes others at any time and then says what it would have said with them from
the first step on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

from floatscope_diagnostics.rule import SEVERITIES, Check, Finding, Rule, RunFacts, Severity, Symptoms, Window

OFF = "switched off for this project"
KEYS = ("enabled", "severity", "thresholds")
MOST_SHOWN = 60  # characters of a wrong value that an error repeats


class SettingsError(ValueError):
    """A setting that no rule can have. field: where, in dots.  expected, got: in words."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        super().__init__(f"{field}: expected {expected}, got {got}")
        self.field = field
        self.expected = expected
        self.got = got


@dataclass(frozen=True)
class RuleSetting:
    """What is set for one rule. severity: of its alarms; None as the rule says, ``info`` for no alarm.
    thresholds: those that were moved, by name.
    """

    enabled: bool = True
    severity: Severity | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "enabled": self.enabled,
            "severity": self.severity,
            "thresholds": dict(sorted(self.thresholds.items())),
        }

    @property
    def is_default(self) -> bool:
        return self.enabled and self.severity is None and not self.thresholds


DEFAULT = RuleSetting()
_NOTHING: Mapping[str, RuleSetting] = MappingProxyType({})


@dataclass(frozen=True)
class RuleSettings:
    """Settings by rule code; a rule that is not named is as it was written."""

    by_rule: Mapping[str, RuleSetting] = field(default_factory=lambda: _NOTHING)

    def of(self, code: str) -> RuleSetting:
        return self.by_rule.get(code, DEFAULT)

    def having(self, code: str, setting: RuleSetting) -> RuleSettings:
        """These settings with another one for one rule."""
        return RuleSettings({**self.by_rule, code: setting})

    def to_json(self) -> dict[str, Any]:
        """What differs from the rules as they were written."""
        found = sorted(self.by_rule.items())
        return {code: setting.to_json() for code, setting in found if not setting.is_default}

    def bound(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """The rules that are on, each with its thresholds."""
        return tuple(_bound(r, self.of(r.code).thresholds) for r in rules if self.of(r.code).enabled)

    def off(self, rules: Sequence[Rule]) -> tuple[dict[str, Any], ...]:
        """Entries for ``not_checked``: the rules that are off."""
        return tuple(
            {"rule": r.code, "needs": [r.name.replace("_", " ")], "why": OFF}
            for r in rules
            if not self.of(r.code).enabled
        )

    def judged(self, finding: Finding) -> Finding:
        """The finding as grave as is set for its rule; notes stay notes."""
        severity = self.of(finding.rule).severity
        if severity is None or finding.severity == "info":
            return finding
        return replace(finding, severity=severity)


def _bound(rule: Rule, thresholds: Mapping[str, float]) -> Rule:
    if not thresholds:
        return rule
    own, moved = rule.check, dict(thresholds)

    def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
        return own(symptoms, window, replace(run, thresholds=moved))

    bound: Check = check
    return replace(rule, check=bound)


def parse_settings(tree: Any, rules: Sequence[Rule]) -> RuleSettings:
    """Settings of several rules from plain values. Raises SettingsError that names the first wrong one."""
    if not isinstance(tree, Mapping):
        raise SettingsError("rules", "an object with rule codes as its keys", _shown(tree))
    known = {rule.code: rule for rule in rules}
    found = {}
    for code, given in tree.items():
        if code not in known:
            raise SettingsError(
                _shown(code), f"the code of a rule ({', '.join(sorted(known))})", _shown(code)
            )
        found[str(code)] = parse_setting(given, known[code], field=str(code))
    return RuleSettings(found)


def parse_setting(given: Any, rule: Rule, *, field: str = "") -> RuleSetting:
    """The setting of one rule from plain values; what is not given is the rule's own.

    field: what errors put before a name.  Raises SettingsError.
    """
    at = f"{field}." if field else ""
    if not isinstance(given, Mapping):
        raise SettingsError(field or "settings", "an object with " + ", ".join(KEYS), _shown(given))
    for key in given:
        if key not in KEYS:
            raise SettingsError(f"{at}{_shown(key)}", "one of " + ", ".join(KEYS), _shown(key))
    enabled = given.get("enabled", True)
    if not isinstance(enabled, bool):
        raise SettingsError(f"{at}enabled", "true or false", _shown(enabled))
    severity = given.get("severity")
    if severity is not None and severity not in SEVERITIES:
        raise SettingsError(f"{at}severity", "one of " + ", ".join(SEVERITIES), _shown(severity))
    thresholds = given.get("thresholds")
    return RuleSetting(
        enabled=enabled,
        severity=cast(Severity | None, severity),
        thresholds={} if thresholds is None else _thresholds(thresholds, rule, at=f"{at}thresholds"),
    )


def _thresholds(given: Any, rule: Rule, *, at: str) -> dict[str, float]:
    """Those that differ from their default: so that two ways to say the same are the same."""
    if not isinstance(given, Mapping):
        raise SettingsError(at, "an object with thresholds by name", _shown(given))
    known = {t.name: t for t in rule.thresholds}
    found = {}
    for name, value in given.items():
        threshold = known.get(name)
        if threshold is None:
            have = f"one of {', '.join(known)}" if known else f"nothing: {rule.code} has no threshold to move"
            raise SettingsError(f"{at}.{_shown(name)}", have, _shown(name))
        number = _number(value)
        if number is None or not threshold.allows(number):
            raise SettingsError(f"{at}.{name}", threshold.range, _shown(value))
        if number != threshold.default:
            found[threshold.name] = number
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return None


def still_valid(tree: Any, rules: Sequence[Rule]) -> RuleSettings:
    """Stored settings as far as this version has them: what it no longer knows or allows is left out."""
    found = {}
    for rule in rules:
        given = tree.get(rule.code) if isinstance(tree, Mapping) else None
        if not isinstance(given, Mapping):
            continue
        stored = given.get("thresholds")
        known = {t.name: t for t in rule.thresholds}
        severity = given.get("severity")
        found[rule.code] = RuleSetting(
            enabled=given.get("enabled") is not False,
            severity=cast(Severity, severity) if severity in SEVERITIES else None,
            thresholds={
                str(name): number
                for name, value in (stored.items() if isinstance(stored, Mapping) else ())
                if name in known and (number := _number(value)) is not None and known[name].allows(number)
            },
        )
    return RuleSettings(found)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."
