"""What alerts, silences, channels and rules look like in answers."""

from __future__ import annotations

from collections.abc import Mapping

from floatscope_server.openapi.run_shapes import FINDING
from floatscope_server.openapi.shapes import (
    ANY_OBJECT,
    COUNT,
    FINITE,
    FLAG,
    TEXT,
    TIME,
    Shape,
    array,
    nullable,
    obj,
    one_of,
    ref,
)

ALERT_STATES = ("firing", "acknowledged", "resolved", "recovered", "silenced")
SEVERITIES = ("info", "warning", "critical")

_HISTORY = obj(
    {
        "time": TIME,
        "event": TEXT,
        "by": nullable(TEXT),
        "before": nullable(TEXT),
        "after": nullable(TEXT),
        "note": nullable(TEXT),
    }
)
_DELIVERY_OF_ALERT = obj(
    {
        "channel": TEXT,
        "event": TEXT,
        "state": one_of(("pending", "sent", "dead")),
        "attempts": COUNT,
        "created": TIME,
        "finished": nullable(TIME),
        "error": nullable(TEXT),
    }
)
_ALERT: Mapping[str, Shape] = {
    **FINDING,
    "id": TEXT,
    "run_id": TEXT,
    "project": TEXT,
    "state": one_of(ALERT_STATES),
    "finding_state": TEXT,
    "first_seen": TIME,
    "last_seen": TIME,
    "firing_since": nullable(TIME),
    "mute_until": nullable(TIME),
    "silence": nullable(
        obj({"id": TEXT, "ends": nullable(TIME), "note": TEXT, "created_by": nullable(TEXT)})
    ),
    "history": array(_HISTORY),
    "deliveries": array(_DELIVERY_OF_ALERT),
}
_CHANNEL: Mapping[str, Shape] = {
    "id": TEXT,
    "kind": one_of(("slack", "webhook", "apprise")),
    "name": TEXT,
    "host": nullable(TEXT),
    "min_severity": one_of(SEVERITIES),
    "projects": array(TEXT),
    "enabled": FLAG,
    "repeat_s": nullable(FINITE),
    "escalate_s": nullable(FINITE),
    "quiet": nullable(obj({"zone": TEXT, "from": TEXT, "to": TEXT, "days": array(TEXT)})),
    "signed": FLAG,
    "created": TIME,
    "updated": nullable(TIME),
    "updated_by": nullable(TEXT),
}
_SETTING = obj(
    {
        "project": TEXT,
        "enabled": FLAG,
        "severity": nullable(one_of(SEVERITIES)),
        "thresholds": ANY_OBJECT,
        "note": nullable(TEXT),
        "updated": TIME,
        "updated_by": nullable(TEXT),
    }
)
_RULE: Mapping[str, Shape] = {
    **{name: TEXT for name in ("code", "name", "title", "checks", "condition", "docs")},
    "families": array(TEXT),
    "causes": array(obj({"cause": TEXT, "family": TEXT})),
    "needs": array(TEXT),
    "severity": one_of(SEVERITIES),
    "severities": array(one_of(SEVERITIES)),
    "thresholds": array(
        obj({"name": TEXT, "unit": TEXT, "value": FINITE}, additionalProperties=True),
    ),
    "enabled": FLAG,
    "set_severity": nullable(one_of(SEVERITIES)),
    "settings": array(ref("RuleSetting")),
    "runs_firing": COUNT,
    "fired": obj({"days": COUNT, "count": COUNT, "confirmed": COUNT, "not_the_cause": COUNT}),
}
_TOKEN: Mapping[str, Shape] = {
    "id": TEXT,
    "name": TEXT,
    "scopes": array(one_of(("ingest", "read", "write", "admin"))),
    "state": TEXT,
    "created": TIME,
    "created_by": nullable(TEXT),
    "expires": nullable(TIME),
    "last_used": nullable(TIME),
    "revoked": nullable(TIME),
}

SHAPES: Mapping[str, Shape] = {
    "Alert": obj(
        _ALERT,
        additionalProperties=True,
        description="A finding that somebody should know of, flat: the finding's members beside its own.",
    ),
    "ActedOn": obj(
        {
            "done": COUNT,
            "failed": COUNT,
            "items": array(
                obj(
                    {
                        "id": TEXT,
                        "before": nullable(one_of(ALERT_STATES)),
                        "after": nullable(one_of(ALERT_STATES)),
                        "error": nullable(TEXT),
                        "undo": array(
                            obj(
                                {"action": TEXT, "expected": one_of(ALERT_STATES)},
                                {"mute_until": nullable(TIME)},
                            ),
                            description="The way back: bodies of this request, one after the other.",
                        ),
                    }
                )
            ),
        },
        description="One item an alert that was named, in that order. error: why nothing was done to it.",
    ),
    "Silence": obj(
        {
            "id": TEXT,
            **{name: nullable(TEXT) for name in ("run", "project", "family", "cause")},
            "state": one_of(("waiting", "active", "ended")),
            "starts": TIME,
            "ends": nullable(TIME),
            "critical": FLAG,
            "note": TEXT,
            "created": TIME,
            "created_by": nullable(TEXT),
            "ended_by": nullable(TEXT),
        }
    ),
    "Channel": obj(_CHANNEL, {"secret": TEXT}, description="The secret is shown once, where it was made."),
    "Delivery": obj(
        {
            "number": COUNT,
            "alert": TEXT,
            "event": TEXT,
            "state": one_of(("pending", "sent", "dead")),
            "attempts": COUNT,
            "created": TIME,
            "due": nullable(TIME),
            "finished": nullable(TIME),
            "error": nullable(TEXT),
        }
    ),
    "ChannelTest": obj(
        {"delivered": FLAG, "status": nullable(COUNT), "took_s": FINITE, "error": nullable(TEXT)}
    ),
    "RuleSetting": _SETTING,
    "Rule": obj(_RULE),
    "RuleDetails": obj({**_RULE, "sections": ANY_OBJECT}),
    "RuleChange": obj(
        {
            "rule": TEXT,
            "project": TEXT,
            "before": nullable(ref("RuleSetting")),
            "after": nullable(ref("RuleSetting")),
            "diff": array(ANY_OBJECT),
            "runs_judged_anew": COUNT,
        }
    ),
    "BackTest": obj(
        {
            "id": TEXT,
            "state": TEXT,
            "created": TIME,
            "created_by": nullable(TEXT),
            "updated": TIME,
            "request": ANY_OBJECT,
            "result": nullable(ANY_OBJECT),
        }
    ),
    "Token": obj(_TOKEN),
    "NewToken": obj({**_TOKEN, "token": TEXT}, description="The token itself is shown this once."),
    "Caller": obj({"name": TEXT, "token": nullable(TEXT), "scopes": array(TEXT), "session": FLAG}),
    "Act": obj(
        {
            "time": TIME,
            "who": TEXT,
            "token": nullable(TEXT),
            "action": TEXT,
            "target": nullable(TEXT),
            "detail": ANY_OBJECT,
            "address": nullable(TEXT),
        }
    ),
}
