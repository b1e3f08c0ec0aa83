"""Pages for people: one module a page."""

from __future__ import annotations

from fastapi import APIRouter

from floatscope_server.routes.pages import (
    advice,
    alerts,
    compare,
    overview,
    pictures,
    report,
    rules,
    run,
    settings,
    static,
    tensors,
)

router = APIRouter(include_in_schema=False)
for _page in (overview, run, pictures, tensors, advice, report, compare, alerts, rules, settings, static):
    router.include_router(_page.router)
