"""Fills the view of the settings page."""

from __future__ import annotations

import time

from sqlalchemy import Connection

from floatscope_dashboards.say import LANGUAGES
from floatscope_dashboards.settings_view import Keeping, Room, SettingsView, TokenRow
from floatscope_server.callers import ADMIN, ENVIRONMENT, Caller
from floatscope_server.services import Services
from floatscope_server.sessions import IDLE_S, LIFE_S
from floatscope_server.settings import Settings
from floatscope_server.store import inventory, tokens, usage
from floatscope_server.store.tokens import TokenRecord
from floatscope_server.times import moment

DAY_S = 86_400
MIB = 2**20
MOST_PROJECTS = 20


def settings_view(c: Connection, services: Services, by: Caller) -> SettingsView:
    """What this reader may see: tokens and the disk only with the scope admin."""
    now, settings = time.time(), services.settings
    is_admin = by.may(ADMIN)
    return SettingsView(
        tokens=tuple(_token(record, by, now) for record in tokens.listed(c)) if is_admin else None,
        has_environment_token=services.access.has_environment_token,
        keeping=_keeping(settings),
        room=_room(c, services) if is_admin else None,
        session_days=LIFE_S // DAY_S,
        idle_days=IDLE_S // DAY_S,
        now=moment(now),
        by_environment=by.token is None and by.name == ENVIRONMENT,
        workers=settings.workers,
        languages=tuple(LANGUAGES.items()),
    )


def _token(record: TokenRecord, by: Caller, now: float) -> TokenRow:
    return TokenRow(
        id=record.id,
        name=record.name,
        scopes=record.scopes,
        state=record.state(now),
        created=moment(record.created),
        created_by=record.created_by,
        expires=None if record.expires is None else moment(record.expires),
        last_used=None if record.last_used is None else moment(record.last_used),
        is_reader=record.id == by.token,
    )


def _keeping(settings: Settings) -> Keeping:
    named = sorted(settings.retention_projects.items())[:MOST_PROJECTS]
    return Keeping(
        days=settings.retention_days,
        gib=settings.retention_gib,
        audit_days=settings.audit_days,
        projects=tuple((name, own.days, own.gib, own.keep) for name, own in named),
    )


def _room(c: Connection, services: Services) -> Room:
    found, (largest, whole) = inventory.room(c), usage.by_project(c)
    return Room(
        database=c.dialect.name,
        database_bytes=found.total_bytes,
        reusable_bytes=found.free_bytes,
        free_bytes=services.disk.free_bytes(),
        reserve_bytes=services.settings.disk_reserve_mib * MIB,
        objects=services.settings.tiles_url,
        run_bytes=whole.bytes,
        runs=whole.runs,
        projects=tuple((use.project, use.runs, use.bytes) for use in largest),
    )
