"""Addresses of the tensor pages: a tensor's name may hold slashes, percent signs, markup, anything."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode


def tensors_href(run_id: str, **query: object) -> str:
    """The table of all tensors; what is None or "" is left out of the query."""
    return f"/runs/{quote(run_id, safe='')}/tensors{_query(query)}"


def tensor_href(run_id: str, tensor: str, **query: object) -> str:
    """The page of one tensor. Browsers take "." and ".." out of a path even when they are escaped, so these
    names go into the query.
    """
    if tensor in (".", ".."):
        return tensors_href(run_id, tensor=tensor, **query)
    return f"/runs/{quote(run_id, safe='')}/tensors/{quote(tensor, safe='')}{_query(query)}"


def _query(values: Mapping[str, object]) -> str:
    kept = {key: str(value) for key, value in values.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else ""
