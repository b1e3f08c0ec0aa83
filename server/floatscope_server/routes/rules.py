"""Rules: what each does, how often it fired, what is set for it in a project, and what another setting would
have done.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.responses import Response

from floatscope.protocol.names import MAX_NAME_BYTES, RUN_ID_PATTERN
from floatscope_diagnostics.rule import FAMILY_OF
from floatscope_diagnostics.rule_texts import RuleText
from floatscope_server.answers import Json
from floatscope_server.backtest import DAY_S
from floatscope_server.callers import By, Caller
from floatscope_server.errors import Problem, Refused
from floatscope_server.routes import fields
from floatscope_server.routes.fields import ResourceId, Text
from floatscope_server.rule_changes import Change
from floatscope_server.services import Services, Use
from floatscope_server.store import backtests, rule_history, rule_settings
from floatscope_server.store.backtests import BacktestRecord
from floatscope_server.store.rule_history import FIRED_DAYS, Fired
from floatscope_server.store.rule_settings import EVERY, StoredSetting
from floatscope_server.times import iso

router = APIRouter(tags=["rules"])

NOTE_CHARS = 4000
MOST_THRESHOLDS = 32
MOST_DAYS = 365
MOST_RUNS = 500
MOST_OPEN = 20  # back-tests that wait
SHOWN_BACKTESTS = 50

Code = Annotated[str, Path(pattern=r"^FS[0-9]{3}$", description="Code of the rule.")]
Project = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]


class SettingIn(BaseModel):
    """What to set for a rule in a project (``*``: in every project that sets nothing of its own for it).

    ``severity``: of its alarms; null as the rule says, ``info`` for no alert. ``thresholds``: those to move;
    what is left out is as the rule has it.
    """

    model_config = ConfigDict(extra="forbid")

    project: Project
    enabled: bool = True
    severity: Literal["info", "warning", "critical"] | None = None
    thresholds: dict[str, float] = Field(default_factory=dict, max_length=MOST_THRESHOLDS)
    note: str | None = Field(default=None, max_length=NOTE_CHARS)

    def plain(self) -> dict[str, Any]:
        return {"enabled": self.enabled, "severity": self.severity, "thresholds": self.thresholds}


class BacktestIn(SettingIn):
    """A setting to try on the runs of the last ``days``, or on the runs named."""

    days: int | None = Field(default=None, ge=1, le=MOST_DAYS)
    runs: list[Annotated[str, Field(pattern=f"^{RUN_ID_PATTERN}$")]] | None = Field(
        default=None, min_length=1, max_length=MOST_RUNS
    )


@router.get("/rules", response_class=Json)
def list_rules(services: Use, project: Text = None) -> Response:
    """Every rule with what is set for it. ``project``: what holds there; without it, what holds for every
    project.
    """
    if project is not None:
        fields.name(project, field="project")
    with services.database.read() as c:
        stored = rule_settings.listed(c)
        history = _history(c, project)
    items = [_shown(text, stored, history, project) for text in services.rule_book.texts.values()]
    return Json({"items": items, "next_cursor": None})


@router.get("/rules/{code}", response_class=Json)
def show_rule(code: Code, services: Use, project: Text = None) -> Response:
    """One rule, with all that its page says."""
    text = services.rule_book.text(code)
    if project is not None:
        fields.name(project, field="project")
    with services.database.read() as c:
        stored = rule_settings.listed(c, rule=code)
        history = _history(c, project)
    return Json({**_shown(text, stored, history, project), "sections": dict(text.sections)})


@router.put("/rules/{code}/settings", openapi_extra=fields.body_of(SettingIn), response_class=Json)
async def set_rule(request: Request, code: Code, services: Use, by: By) -> Response:
    """Sets a rule for a project. Live runs are judged with it in a moment; runs that ended keep their
    verdict. The answer has what it replaced: put that back to undo it.
    """
    given = await fields.read_json(request, SettingIn)
    return await anyio.to_thread.run_sync(_set, services, code, given, by)


def _set(services: Services, code: str, given: SettingIn, by: Caller) -> Response:
    _check_project(given.project)
    setting = services.rule_book.parse(code, given.plain())
    note = None if given.note is None else _storable(given.note)
    change = services.rule_changes.put(by, project=given.project, rule=code, setting=setting, note=note)
    return Json(_changed(services, code, given.project, change))


@router.delete("/rules/{code}/settings", response_class=Json)
def unset_rule(
    code: Code,
    services: Use,
    by: By,
    project: Annotated[str, Query(min_length=1, max_length=MAX_NAME_BYTES)],
) -> Response:
    """Takes away what a project (or ``*``) sets for the rule."""
    services.rule_book.text(code)
    _check_project(project)
    change = services.rule_changes.remove(by, project=project, rule=code)
    return Json(_changed(services, code, project, change))


@router.post(
    "/rules/{code}/backtest", openapi_extra=fields.body_of(BacktestIn), response_class=Json, status_code=202
)
async def start_backtest(request: Request, code: Code, services: Use, by: By) -> Response:
    """Asks what the rule would have said of stored runs with such a setting. It runs in the background."""
    given = await fields.read_json(request, BacktestIn)
    return await anyio.to_thread.run_sync(_start, services, code, given, by)


def _start(services: Services, code: str, given: BacktestIn, by: Caller) -> Response:
    _check_project(given.project)
    setting = services.rule_book.parse(code, given.plain())
    if given.days is not None and given.runs is not None:
        raise Refused("days", "either days or runs", "both")
    now = time.time()
    days = FIRED_DAYS if given.days is None and given.runs is None else given.days
    record = BacktestRecord(
        id=f"bt-{secrets.token_hex(8)}",
        created=now,
        created_by=by.name,
        state=backtests.WAITING,
        request={
            "rule": code,
            "project": given.project,
            "setting": setting.to_json(),
            "days": days,
            "runs": given.runs,
        },
        result=None,
        updated=now,
    )
    with services.database.write() as c:
        if len(backtests.open_ones(c)) >= MOST_OPEN:
            raise Problem(
                429,
                "Too many back-tests",
                f"{MOST_OPEN} back-tests wait already",
                hint="wait for one, or cancel one with DELETE /api/v1/backtests/{id}",
                headers={"Retry-After": "60"},
            )
        backtests.add(c, record)
    services.back_tests.wake()
    return Json(_test_shown(record), status_code=202)


@router.get("/backtests", response_class=Json)
def list_backtests(services: Use) -> Response:
    """The newest back-tests, without their runs."""
    with services.database.read() as c:
        found = backtests.listed(c, limit=SHOWN_BACKTESTS)
    items = []
    for record in found:
        shown = _test_shown(record)
        for name in ("runs", "skipped"):
            if shown["result"] is not None:
                shown["result"].pop(name, None)
        items.append(shown)
    return Json({"items": items, "next_cursor": None})


@router.get("/backtests/{backtest_id}", response_class=Json)
def show_backtest(backtest_id: ResourceId, services: Use) -> Response:
    """How far it is and what came out."""
    with services.database.read() as c:
        return Json(_test_shown(backtests.get(c, backtest_id)))


@router.delete("/backtests/{backtest_id}", response_class=Json)
def cancel_backtest(backtest_id: ResourceId, services: Use) -> Response:
    """Ends it before it is done; one that is over stays as it is."""
    with services.database.write() as c:
        backtests.get(c, backtest_id)
        backtests.move(c, backtest_id, before=backtests.OPEN, after=backtests.CANCELLED, now=time.time())
        record = backtests.get(c, backtest_id)
    return Json(_test_shown(record))


def _check_project(project: str) -> None:
    if project != EVERY:
        fields.name(project, field="project")


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


@dataclass(frozen=True)
class _History:
    fired: Mapping[str, Fired]
    firing: Mapping[str, int]


def _history(c: Connection, project: str | None) -> _History:
    since = time.time() - FIRED_DAYS * DAY_S
    return _History(
        rule_history.by_rule(c, since=since, project=project), rule_history.firing(c, project=project)
    )


def _shown(
    text: RuleText, stored: Sequence[StoredSetting], history: _History, project: str | None
) -> dict[str, Any]:
    rule = text.rule
    mine = {s.project: s for s in stored if s.rule == rule.code}
    holds = mine.get(project or EVERY) or mine.get(EVERY)
    seen = history.fired.get(rule.code, Fired())
    return {
        "code": rule.code,
        "name": rule.name,
        "title": text.title,
        "families": list(text.families),
        "causes": [{"cause": cause, "family": FAMILY_OF[cause]} for cause in rule.causes],
        "checks": text.sections["What it checks"],
        "condition": text.sections["How it decides"],
        "needs": list(text.needs),
        "severity": text.severities[-1],
        "severities": list(text.severities),
        "thresholds": [
            {**t.to_json(), "value": t.default if holds is None else holds.thresholds.get(t.name, t.default)}
            for t in rule.thresholds
        ],
        "enabled": True if holds is None else holds.enabled,
        "set_severity": None if holds is None else holds.severity,
        "settings": [_setting(s) for s in mine.values()],
        "docs": text.docs_path,
        "runs_firing": history.firing.get(rule.code, 0),
        "fired": {
            "days": FIRED_DAYS,
            "count": seen.count,
            "confirmed": seen.confirmed,
            "not_the_cause": seen.denied,
        },
    }


def _setting(setting: StoredSetting) -> dict[str, Any]:
    """As ``PUT`` takes it, with who set it and when."""
    return {
        "project": setting.project,
        **setting.to_json(),
        "note": setting.note,
        "updated": iso(setting.updated),
        "updated_by": setting.updated_by,
    }


def _changed(services: Services, code: str, project: str, change: Change) -> dict[str, Any]:
    return {
        "rule": code,
        "project": project,
        "before": None if change.before is None else _setting(change.before),
        "after": None if change.after is None else _setting(change.after),
        "diff": change.diff(services.rule_book.text(code).rule.thresholds),
        "runs_judged_anew": change.runs,
    }


def _test_shown(record: BacktestRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "state": record.state,
        "created": iso(record.created),
        "created_by": record.created_by,
        "updated": iso(record.updated),
        "request": dict(record.request),
        "result": None if record.result is None else dict(record.result),
    }
