"""Messages through the apprise library, which knows some 170 services: in a process of its own, bounded in
time, in what it may call and in what it knows.

The library has no way to say which addresses it may call, takes proxies from the environment, and logs. In a
process that lives for one message all of it is under control, and one that hangs is ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from floatscope_server.notify.targets import MAX_URL_CHARS, WebhookRefused
from floatscope_server.notify.webhook import DeliveryFailed

TIMEOUT_S = 30.0  # starting takes a second; some services make several calls
SCHEMES = (
    *(
        "mailto",
        "mailtos",
        "mailgun",
        "sendgrid",
        "postmark",
        "brevo",
        "resend",
        "ses",
        "sparkpost",
        "smtp2go",
    ),
    *("discord", "workflow", "workflows", "gchat", "tgram", "slack", "wxteams", "webex", "zulip", "rocket"),
    *("rockets", "mmost", "mmosts", "matrix", "matrixs", "feishu", "lark", "dingtalk", "wecombot", "line"),
    *("cliq", "ryver", "flock", "twist", "ringc", "zoom", "guilded", "revolt", "nctalk", "nctalks"),
    *("pagerduty", "opsgenie", "ilert", "splunk", "victorops", "squadcast", "incidentio", "firehydrant"),
    *("betterstack", "pagertree", "signl4", "spike", "xmatters", "goalert", "goalerts", "jira", "github"),
    *("ntfy", "ntfys", "gotify", "gotifys", "pover", "pbul", "prowl", "bark", "barks", "join", "ifttt"),
    *("twilio", "vonage", "nexmo", "sns", "clicksend", "messagebird", "msgbird", "plivo", "sinch"),
    *("signal", "signals", "whatsapp", "threema", "pushy", "onesignal", "notifiarr", "dot", "schan"),
)
"""Services that are called over HTTP or SMTP and name a receiver outside. Desktop, log, bus and queue
services are not among them, nor those that post to any address: that is what kind ``webhook`` is for."""
KEPT_VARIABLES = ("PATH", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "TZ")
CHILD = "floatscope_server.notify.apprise_child"


def scheme_of(url: str) -> str:
    """The service of an address, all of it that may be shown. Raises WebhookRefused if it is not known."""
    scheme, separator, _ = url.partition("://")
    plain = url.isprintable() and len(url) <= MAX_URL_CHARS
    if not separator or scheme.lower() not in SCHEMES or not plain:
        raise WebhookRefused(
            "the address must begin with a service of the apprise library that floatscope allows: "
            + ", ".join(SCHEMES)
        )
    return scheme.lower()


def check(url: str) -> None:
    """Raises WebhookRefused for an address that the library cannot read; nothing is called."""
    scheme = scheme_of(url)
    answer = _ask({"url": url, "allow_private": False}, scheme)
    if not answer["ok"]:
        why = f": {answer['reason']}" if answer["reason"] else ""
        raise WebhookRefused(f"the address is not a complete one for {scheme}{why}")


def post(url: str, body: Mapping[str, Any], *, allow_private: bool, timeout: float = TIMEOUT_S) -> None:
    """Sends title, body and type. Raises DeliveryFailed; the library says only whether it worked."""
    scheme = scheme_of(url)
    order = {**{key: body[key] for key in ("title", "body", "type")}, "url": url}
    answer = _ask({**order, "allow_private": allow_private}, scheme, timeout=timeout)
    if not answer["ok"]:
        why = f": {answer['reason']}" if answer["reason"] else ""
        raise DeliveryFailed(f"{scheme} did not take the message{why}", refused=bool(answer["reason"]))


def _ask(order: Mapping[str, Any], scheme: str, *, timeout: float = TIMEOUT_S) -> dict[str, Any]:
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environment |= {"PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(  # noqa: S603  # our own module; the address goes in by standard input
            [sys.executable, "-m", CHILD],
            input=json.dumps(order).encode(),
            capture_output=True,
            timeout=timeout,
            env=environment,
            cwd=os.sep,
            check=False,
        )
        answer = json.loads(done.stdout)
        return {"ok": answer["ok"] is True, "reason": answer["reason"]}
    except subprocess.TimeoutExpired:
        raise DeliveryFailed(f"{scheme} did not take the message within {timeout:g} s") from None
    except (OSError, ValueError, KeyError, TypeError):  # its error output may hold the address
        raise DeliveryFailed(f"the process that sends to {scheme} failed") from None
