"""What addresses and queries may hold: ids, ranges of steps, lists, cursors. Everything is bounded here."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query, Request
from pydantic import BaseModel, ValidationError

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import MAX_STEP, RUN_ID_PATTERN, check_name
from floatscope_server import body
from floatscope_server.errors import Problem, Refused, from_protocol

MIB = 2**20
SMALL_BODY_BYTES = 1 * MIB
MAX_RANK = 2**20
MAX_SEGMENT = 2**31 - 1
MAX_LIMIT = 500
_SAID_AS = (  # how pydantic's sentences begin, and how they go on after "expected"
    ("Input should be ", ""),
    ("Input should ", "a value that should "),
    ("String should have ", ""),
    ("String should ", "a text that should "),
    ("List should have ", ""),
    ("Value should have ", ""),
    ("Value error, ", ""),
    ("Field required", "a value"),
    ("Extra inputs are not permitted", "no field of this name"),
)

RunId = Annotated[str, Path(pattern=f"^{RUN_ID_PATTERN}$", description="Id of the run.")]
Rank = Annotated[int, Path(ge=0, le=MAX_RANK, description="Rank of the process, from 0.")]
Seq = Annotated[int, Path(ge=0, le=MAX_STEP, description="Counts a rank's batches from 0.")]
ResourceId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:-]{1,160}$")]

FromStep = Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP, description="First step, included.")]
ToStep = Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP, description="Last step, included.")]
Segment = Annotated[
    int | None,
    Query(ge=0, le=MAX_SEGMENT, description="A segment as it was; without it the newest of each step."),
]
RankQuery = Annotated[
    int | None, Query(ge=0, le=MAX_RANK, description="Default: the lowest rank that has the series.")
]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
Cursor = Annotated[str | None, Query(max_length=64, description="next_cursor of the page before.")]
Text = Annotated[str | None, Query(max_length=4096)]

Model = TypeVar("Model", bound=BaseModel)


def listed(text: str | None, *, field: str, allowed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The parts of ``a,b``; with ``allowed``, each must be one of them."""
    parts = tuple(part for part in (text or "").split(",") if part)
    for part in parts:
        name(part, field=field)
        if allowed and part not in allowed:
            raise Refused(field, "one of " + ", ".join(allowed), part)
    return parts


def name(text: str, *, field: str) -> str:
    """A name as the protocol allows it; others cannot be in the store."""
    try:
        return check_name(text, field=field)
    except ProtocolError as error:
        raise from_protocol(error) from error


def storable(text: str | None) -> str | None:
    """A text without what a database cannot hold: lone surrogates and NUL."""
    return None if text is None else text.encode("utf-8", "replace").decode().replace("\x00", "")


def cursor(text: str | None) -> int | None:
    """The number behind a cursor."""
    if text is None:
        return None
    try:
        number = int(base64.urlsafe_b64decode(text.encode() + b"==").decode())
    except (ValueError, binascii.Error) as error:
        raise Refused("cursor", "a next_cursor from an answer", text) from error
    if not 0 <= number < 2**53:
        raise Refused("cursor", "a next_cursor from an answer", text)
    return number


def next_cursor(number: int | None) -> str | None:
    return None if number is None else base64.urlsafe_b64encode(str(number).encode()).decode().rstrip("=")


async def read_json(request: Request, model: type[Model], *, show_input: bool = True) -> Model:
    """A small JSON body as a model; raises Problem naming the first field that is wrong.

    show_input: off for a body that holds secrets, so that no answer repeats one.
    """
    content = await body.read(request, limit=SMALL_BODY_BYTES)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=show_input)
        if not show_input:
            raise refused([{**found[0], "input": "another value"}]) from None
        raise refused(list(found)) from error


def refused(errors: list[Any]) -> Problem:
    """One problem for what pydantic or FastAPI found."""
    first = errors[0]
    if first.get("type") == "json_invalid":
        why = str(first.get("msg", "")).removeprefix("Invalid JSON: ")
        return Refused("body", "valid JSON", why, hint="send one JSON object as the body")
    place = [str(part) for part in first.get("loc", ()) if part not in ("body", "query", "path")]
    field = ".".join(place) or "body"
    expected = _expected(str(first.get("msg", "a valid value")))
    return Refused(field, expected, _shown(first.get("input")), hint=f"correct {field}")


def _expected(message: str) -> str:
    """What pydantic says, as it reads after "expected"."""
    for begins, said in _SAID_AS:
        if message.startswith(begins):
            return said + message.removeprefix(begins)
    return message


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 100 else text[:100] + "..."


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI entry of a body that ``read_json`` reads."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": model.model_json_schema()}},
        }
    }
