"""Who makes a request: a token's name, what it may do, and from which address.

def change(services: Use, by: By) -> Response:
    ... audit.write(c, by, "silence.add", target=silence_id, detail={"until": until}, now=now)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

ADMIN = "admin"
ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Caller:
    """Who acts.

    name: the token's name, ``environment`` for the token of the settings, ``server`` for the program itself.
    token: id of the stored token, None where there is none. address: of the client, empty if not known.
    session: whether a browser's cookie let the request in.
    """

    name: str
    token: str | None = None
    scopes: frozenset[str] = frozenset()
    address: str = ""
    session: bool = False

    def may(self, scope: str) -> bool:
        """Whether the caller has this scope, or one that includes it."""
        return scope in self.scopes


SERVER = Caller("server", scopes=frozenset((ADMIN,)))
"""The program itself: retention, start."""
COMMAND_LINE = Caller("command line", scopes=frozenset((ADMIN,)))
"""A ``floatscope`` command that works on the database directly."""
NOBODY = Caller("nobody")
"""A request to an open address, without a token."""


def _caller(request: Request) -> Caller:
    return cast(Caller, request.state.caller)


By = Annotated[Caller, Depends(_caller)]
"""A route's access to who calls it; set by the gate for every request."""
