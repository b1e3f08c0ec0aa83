"""What other number formats would do to the tensors of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from floatscope.protocol.names import MAX_STEP, split_tensor
from floatscope_diagnostics.whatif.document import what_if_document
from floatscope_diagnostics.whatif.selecting import Pattern
from floatscope_server import caching
from floatscope_server.answers import Json
from floatscope_server.errors import Problem, Refused
from floatscope_server.routes import fields, reading
from floatscope_server.routes.fields import RankQuery, RunId
from floatscope_server.routes.known_queries import known_queries
from floatscope_server.services import Use
from floatscope_server.store import frame_reads, kinds, runs
from floatscope_server.views.near_names import near_names
from floatscope_server.what_if import (
    NO_HISTOGRAMS,
    NONE_SAMPLED,
    NOT_SAMPLED,
    Asked,
    asked_what_if,
    chosen_variants,
)

router = APIRouter(tags=["tensors"])

DEFAULT_TENSORS = 20
MOST_TENSORS = 100  # of one answer: about 25 ms each
MAX_FORMATS = 64
MOST_ROLES = 8  # named where one is not there


class TensorNotFound(Problem):
    """No tensor of the run is meant. field: "tensor", "layer" or "role".  near: names that look alike."""

    def __init__(self, field: str, name: str, near: tuple[str, ...]) -> None:
        shown = name if len(name) <= 200 else name[:200] + "..."
        super().__init__(
            404,
            f"Unknown {field}",
            f"the run has no {field} {shown!r}",
            field=field,
            expected=f"the name of a {field} of the run"
            + ("" if field == "role" else ", or a pattern with * and ?"),
            hint="did you mean " + ", ".join(near)
            if near
            else "GET /api/v1/runs/{run_id}/tensors lists them",
        )


@router.get("/runs/{run_id}/what-if", response_class=Json, dependencies=[Depends(known_queries)])
def what_if(
    request: Request,
    run_id: RunId,
    services: Use,
    tensor: Annotated[
        str | None, Query(max_length=4096, description="Only this one, or those of a pattern with * and ?.")
    ] = None,
    layer: Annotated[
        str | None,
        Query(max_length=4096, description="Only the tensors of this layer, or of a pattern's layers."),
    ] = None,
    role: Annotated[str | None, Query(max_length=64, description="Only tensors of this role.")] = None,
    step: Annotated[int | None, Query(ge=0, le=MAX_STEP, description="Default: the last.")] = None,
    formats: Annotated[str | None, Query(max_length=4096, description="Keys of formats, by comma.")] = None,
    rank: RankQuery = None,
    limit: Annotated[int, Query(ge=1, le=MOST_TENSORS)] = DEFAULT_TENSORS,
    cursor: fields.Cursor = None,
) -> Response:
    """What underflow, overflow and SQNR of the tensors would be in other formats, predicted from histograms.

    Each tensor's answer is of the step at which it was sampled nearest to ``step``, which is said. Without
    ``tensor`` and ``layer`` all tensors of the run are gone through in the order of the network, ``limit`` at
    a time. ``without``: tensors of which no histogram is near, with ``why_not``.
    """
    keys = fields.listed(formats, field="formats")
    if len(keys) > MAX_FORMATS:
        raise Refused("formats", f"at most {MAX_FORMATS} keys", len(keys))
    wanted = chosen_variants(keys)
    start = fields.cursor(cursor) or 0
    with services.database.read() as c:
        run = runs.get(c, run_id)
        headers = caching.of_run(request, run)
        known = runs.series(c, run.id)
        described = services.descriptions.get(c, run).tensors
        has = tuple(sorted({at for (kind, _), ranks in known.items() if kind == kinds.STAT for at in ranks}))
        source = reading.source(c, services, run, reading.rank_of(rank, has))
        last = frame_reads.last(source, segment=None, tensors=described)
        names = set(described) | set(() if last is None else last.names)
        ordered = sorted(names, key=lambda name: reading.order(name, described.get(name, {})))
        chosen = _chosen(ordered, tensor, layer, role)
        page = tuple(chosen[start : start + limit])
        at = step if step is not None else (run.last_step or 0)
        found = asked_what_if(c, services, run, Asked(page, at, source.rank, wanted), known=known)
    why = ""
    if not found.tensors and len(page) == len(ordered):
        why = NO_HISTOGRAMS
    elif not found.tensors:
        why = NOT_SAMPLED if len(chosen) == 1 else NONE_SAMPLED
    notes = (why,) if why else ()
    more = fields.next_cursor(start + limit) if start + limit < len(chosen) else None
    extra: Mapping[str, Any] = {
        "rank": source.rank,
        "asked_step": at,
        "total": len(chosen),
        "without": list(found.without),
        "why_not": why or None,
        "next_cursor": more,
    }
    document = what_if_document(run=run_id, step=found.step, tensors=found.tensors, notes=notes)
    return Json(document | dict(extra), headers=headers)


def _chosen(ordered: list[str], tensor: str | None, layer: str | None, role: str | None) -> list[str]:
    """The tensors that are meant, in the order of the network. Raises TensorNotFound."""
    found = ordered
    if tensor is not None:
        pattern = _pattern(tensor, field="tensor")
        found = [name for name in found if pattern.takes(name)]
        if not found:
            raise TensorNotFound("tensor", tensor, near_names(tensor, ordered))
    if layer is not None:
        pattern = _pattern(layer, field="layer")
        here = found
        found = [name for name in here if pattern.takes(split_tensor(name)[0])]
        if not found:
            raise TensorNotFound("layer", layer, near_names(layer, {split_tensor(name)[0] for name in here}))
    if role is None:
        return found
    roles = {split_tensor(one)[1] for one in found}
    if role not in roles:
        raise TensorNotFound("role", role, tuple(sorted(roles))[:MOST_ROLES])
    return [one for one in found if split_tensor(one)[1] == role]


def _pattern(text: str, *, field: str) -> Pattern:
    try:
        return Pattern(fields.name(text, field=field))
    except ValueError as error:
        raise Refused(field, str(error), text[:80]) from error
