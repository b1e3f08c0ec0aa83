"""Refuses parameters of a query that a route does not know: a mistyped one would be ignored in silence."""

from __future__ import annotations

import difflib

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from floatscope_server.errors import Refused

_MOST_LETTERS = 80


def known_queries(request: Request) -> None:
    """A dependency of routes. Raises Refused that names the parameters there are."""
    route = request.scope["route"]
    if not isinstance(route, APIRoute):
        raise TypeError(f"{route!r} is no route with parameters")
    known = sorted(_names(route.dependant))
    for name in request.query_params:
        if name not in known:
            shown = name[:_MOST_LETTERS]
            near = difflib.get_close_matches(shown, known, n=1)
            hint = f"did you mean {near[0]}" if near else f"leave {shown} out"
            raise Refused(shown, "no parameter but " + ", ".join(known), "one of this name", hint=hint)


def _names(dependant: Dependant) -> set[str]:
    """Of the route's own parameters and those of what it depends on."""
    found = {field.alias for field in dependant.query_params}
    return found.union(*(_names(part) for part in dependant.dependencies))
