"""How a message leaves, by kind of channel: Slack's webhook, a signed webhook, or the apprise library."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from floatscope.protocol import strict_json
from floatscope_server.notify import apprise_post, signing, targets, webhook
from floatscope_server.notify.targets import WebhookRefused
from floatscope_server.notify.webhook import DeliveryFailed

KINDS = ("slack", "webhook", "apprise")


@dataclass(frozen=True)
class Letter:
    """A message on its way. ``url`` and ``key`` are secret and never show in ``repr``.

    delivery: the same when it is sent again, so that a receiver can drop repeats.
    """

    kind: str
    url: str
    key: bytes | None
    body: Mapping[str, Any]
    delivery: str

    def __repr__(self) -> str:
        return f"Letter(kind={self.kind!r}, delivery={self.delivery!r})"


Post = Callable[[Letter], int | None]
"""Sends a letter and returns the status, None where there is none; raises DeliveryFailed."""


def poster(*, allow_private: bool) -> Post:
    """The real one: checks the address every time, since what a name points at may change."""

    def post(letter: Letter) -> int | None:
        try:
            return _post(letter, allow_private=allow_private)
        except WebhookRefused as error:
            raise DeliveryFailed(str(error), refused=True) from None
        except OSError as error:
            said = error.strerror or type(error).__name__
            raise DeliveryFailed(f"{targets.host_of(letter.url)} does not answer: {said}") from None

    return post


def check(kind: str, url: str, *, allow_private: bool) -> None:
    """Raises WebhookRefused for an address that may not be called, OSError if its name does not resolve."""
    if kind == "apprise":
        apprise_post.check(url)
    else:
        targets.check(url, allow_private=allow_private)


def shown(kind: str, url: str) -> str:
    """What may be shown of an address: its host, or the service that apprise calls."""
    return url.partition("://")[0].lower() if kind == "apprise" else targets.host_of(url)


def _post(letter: Letter, *, allow_private: bool) -> int | None:
    if letter.kind == "apprise":
        apprise_post.post(letter.url, letter.body, allow_private=allow_private)
        return None
    target = targets.check(letter.url, allow_private=allow_private)
    payload = strict_json.dumps(letter.body).encode("utf-8", "backslashreplace")
    if letter.key is None:
        return webhook.post(target, payload)
    headers = signing.signed(payload, key=letter.key, timestamp=int(time.time()), delivery=letter.delivery)
    return webhook.post(target, payload, headers=headers)
