"""What routes work with. Made once by ``app.create_app`` and handed to every route; there are no globals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

import anyio
from fastapi import Depends, Request

from floatscope_dashboards.pages import Pages
from floatscope_server.access import Access
from floatscope_server.backtest import BackTests
from floatscope_server.compaction import Compactor
from floatscope_server.database import Database
from floatscope_server.disk import Disk
from floatscope_server.doorkeeper import Doorkeeper
from floatscope_server.events import Events
from floatscope_server.ingest import Ingest
from floatscope_server.lifecycle import Lifecycle
from floatscope_server.limits.backlog import Backlog
from floatscope_server.metrics.measures import Measures
from floatscope_server.notify.messages import Messages
from floatscope_server.notify.sender import Sender
from floatscope_server.objects.sweeper import Sweeper
from floatscope_server.readiness import Readiness
from floatscope_server.reference import Reference
from floatscope_server.removing import Remover
from floatscope_server.retention import Retention
from floatscope_server.rule_book import RuleBook
from floatscope_server.rule_changes import RuleChanges
from floatscope_server.settings import Settings
from floatscope_server.static_files import StaticFiles
from floatscope_server.store.descriptions import Descriptions
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm
from floatscope_server.telling.duty import Telling
from floatscope_server.workers.crew import Crew


@dataclass(frozen=True)
class Services:
    """Everything behind the routes.

    ``ingest_slots`` bounds how many batches are unpacked and stored at once, ``large_slots`` how many of
    those that are large when unpacked, which have none of the former.
    """

    settings: Settings
    version: str
    database: Database
    access: Access
    doorkeeper: Doorkeeper
    events: Events
    crew: Crew
    tensor_tables: TensorTables
    descriptions: Descriptions
    warm: Warm
    ingest: Ingest
    lifecycle: Lifecycle
    rule_book: RuleBook
    rule_changes: RuleChanges
    back_tests: BackTests
    remover: Remover
    compactor: Compactor
    objects: Objects | None
    sweeper: Sweeper
    retention: Retention
    messages: Messages
    sender: Sender
    telling: Telling
    pages: Pages
    static_files: StaticFiles
    reference: Reference
    ingest_slots: anyio.CapacityLimiter
    large_slots: anyio.CapacityLimiter
    measures: Measures
    disk: Disk
    readiness: Readiness
    backlog: Backlog


def _services(request: Request) -> Services:
    return cast(Services, request.app.state.services)


Use = Annotated[Services, Depends(_services)]
"""A route's access to the services."""
