"""What was changed on one worker and is remembered on others: tokens, channels, rule settings."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

Listener = Callable[[str | None], None]
"""Called with the key of what changed; None: anything may have changed."""
TOPIC = "changed"

_log = logging.getLogger(__name__)


class Changes:
    """``tell`` after the commit; every listener of the topic hears it, in this process at once and in others
    within a fraction of a second.

    Listeners run on whatever thread tells them, so they only drop what they remember or wake a thread. When
    news may have been missed, they hear None.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._listeners: dict[str, list[Listener]] = defaultdict(list)
        self._relay: Callable[[str, Mapping[str, Any], str], None] | None = None

    def relay_by(self, relay: Callable[[str, Mapping[str, Any], str], None]) -> None:
        """Names what carries news to other workers: called with topic, body and a key for coalescing."""
        self._relay = relay

    def hear(self, topic: str, listener: Listener) -> None:
        with self._guard:
            self._listeners[topic].append(listener)

    def tell(self, topic: str, key: str | None = None) -> None:
        self._call(topic, key)
        if self._relay is not None:
            self._relay(TOPIC, {"topic": topic, "key": key}, f"{topic} {key}")

    def arrived(self, body: Mapping[str, Any]) -> None:
        """News of another worker."""
        topic, key = body.get("topic"), body.get("key")
        if isinstance(topic, str) and (key is None or isinstance(key, str)):
            self._call(topic, key)

    def missed(self) -> None:
        """News of other workers may have been missed: nothing that is remembered can be relied on."""
        with self._guard:
            topics = list(self._listeners)
        for topic in topics:
            self._call(topic, None)

    def _call(self, topic: str, key: str | None) -> None:
        with self._guard:
            listeners = list(self._listeners.get(topic, ()))
        for listener in listeners:
            try:
                listener(key)
            except Exception:  # one that fails must not keep the news from the others
                _log.exception("a listener for changes of %s failed", topic)
