"""The process in which the apprise library runs: one message, then it ends.

Its services open connections of their own, so the guard sits below all of them: an audit hook sees every
connection just before it is made and stops those to private addresses, together with programs, other
sockets, and files that are not the library's. Reads one JSON object from standard input and writes one to
standard output; run as ``python -m floatscope_server.notify.apprise_child``.
"""

from __future__ import annotations

import json
import logging
import mimetypes
import os
import signal
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from floatscope_server.notify.targets import FIRST_FREE_PORT, WEB_PORTS, is_public

LIFE_S = 60
MAIL_PORTS = (25, 465, 587)
PROGRAMS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "pty.spawn",
    "ctypes.dlopen",
)
SENDING = ("socket.connect", "socket.sendto", "socket.sendmsg")
READABLE_FILES = (os.devnull, *mimetypes.knownfiles)


class Guard:
    """An audit hook that stops what a message does not need. ``reasons``: what it stopped."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        paths = sysconfig.get_paths()
        own = (sys.prefix, sys.base_prefix, *(paths[name] for name in ("stdlib", "purelib", "platlib")))
        self._folders = tuple(os.path.realpath(path) + os.sep for path in own)
        self.reasons: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in SENDING:
            self._sending(arguments[1])
        elif event in PROGRAMS:
            self._stop("it wanted to start a program")
        elif event == "open":
            self._opening(arguments[0])

    def _sending(self, address: object) -> None:
        if not isinstance(address, tuple) or len(address) < 2:
            self._stop("it wanted to talk to a local service")
            return
        host, port = str(address[0]), address[1]
        try:
            public = is_public(host)
        except ValueError:
            self._stop("it wanted to call a name that was not looked up")
            return
        if not public and not self._allow_private:
            self._stop(f"{host} is a loopback or private address")
        if port < FIRST_FREE_PORT and port not in (*WEB_PORTS, *MAIL_PORTS):
            self._stop(f"port {port} belongs to another service")

    def _opening(self, path: object) -> None:
        if isinstance(path, int):  # a file that is open already, such as a socket's
            return
        name = os.fsdecode(path) if isinstance(path, str | bytes) else ""
        if name not in READABLE_FILES and not os.path.realpath(name).startswith(self._folders):
            self._stop("it wanted to open a file")

    def _stop(self, reason: str) -> None:
        self.reasons.append(reason)
        raise PermissionError(reason)


def deliver(order: Mapping[str, Any]) -> dict[str, Any]:
    """Sends the message, or only looks at the address; says whether that went well, and what was stopped."""
    from apprise import Apprise, AppriseAsset  # noqa: PLC0415  # only here, never in the server itself

    logging.disable(logging.CRITICAL)  # its log may hold addresses
    asset = AppriseAsset(app_id="floatscope", http_redirects=False, allow_templates=False)
    apprise = Apprise(asset=asset)
    guard = Guard(allow_private=order["allow_private"])
    Apprise.instantiate(
        "json://localhost", asset=asset
    )  # it loads its services, which are files, at first use
    sys.addaudithook(guard)
    ok = bool(apprise.add(order["url"]))
    if ok and order.get("title") is not None:
        ok = bool(
            apprise.notify(
                title=order["title"], body=order["body"], notify_type=order["type"], body_format="text"
            )
        )
    return {"ok": ok, "reason": guard.reasons[0] if guard.reasons else None}


def main() -> None:
    signal.alarm(LIFE_S)  # the server ends it sooner, unless it died itself
    answer = deliver(json.load(sys.stdin))
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
