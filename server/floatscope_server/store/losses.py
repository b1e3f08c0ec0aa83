"""What an older schema cannot hold, so that taking the database back to it would lose it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, Table, func, select

from floatscope_server import tables

_Part = tuple[Table, ColumnElement[bool] | None]
_SINCE: Mapping[str, Mapping[str, _Part]] = {
    "0007": {
        "silences": (tables.silence, None),
        "channels with a signing key, quiet hours, repeats or escalation": (
            tables.channel,
            tables.channel.c.signing_key.is_not(None)
            | tables.channel.c.quiet_json.is_not(None)
            | tables.channel.c.repeat_s.is_not(None)
            | tables.channel.c.escalate_s.is_not(None),
        ),
    },
    "0008": {"rule settings": (tables.rule_setting, None), "back-tests": (tables.backtest, None)},
    "0009": {
        "tokens that are limited, revoked or run out (they would be admin tokens)": (
            tables.token,
            tables.token.c.revoked.is_not(None)
            | tables.token.c.expires.is_not(None)
            | (tables.token.c.scopes_json != '["admin"]'),
        ),
        "lines of the audit log": (tables.audit, None),
    },
}


def below(c: Connection, revision: str) -> dict[str, int]:
    """What is lost by going down to ``revision`` (``base``: nothing is kept at all) -> how many."""
    if revision == "base":
        return {"runs with all their data": _count(c, tables.run, None)}
    found = {
        what: _count(c, table, where)
        for since, parts in _SINCE.items()
        if revision < since
        for what, (table, where) in parts.items()
    }
    return {what: count for what, count in found.items() if count}


def _count(c: Connection, table: Table, where: ColumnElement[bool] | None) -> int:
    query = select(func.count()).select_from(table)
    return int(c.execute(query if where is None else query.where(where)).scalar_one())
