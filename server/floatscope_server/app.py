"""The composition root: everything is made here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DatabaseError, InternalError, OperationalError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response

from floatscope_dashboards.pages import Pages
from floatscope_diagnostics.engine import Engine
from floatscope_server import migrate
from floatscope_server.access import open_access
from floatscope_server.answers import told
from floatscope_server.background import Refresher, StallWatch
from floatscope_server.backtest import BackTests
from floatscope_server.careful_headers import CarefulHeaders
from floatscope_server.codec import work_beside_other_threads
from floatscope_server.compaction import Compactor
from floatscope_server.database import AWAY, Database
from floatscope_server.diagnosis import Diagnosis, Engines
from floatscope_server.doorkeeper import Doorkeeper
from floatscope_server.errors import Damaged, Problem
from floatscope_server.events import Events
from floatscope_server.gate import Gate
from floatscope_server.ingest import Ingest
from floatscope_server.keeper import Keeper
from floatscope_server.lifecycle import Lifecycle
from floatscope_server.locks import RunLocks
from floatscope_server.notify.environment import offer_environment_channel
from floatscope_server.notify.messages import Messages
from floatscope_server.notify.posting import Post, poster
from floatscope_server.notify.sender import Sender
from floatscope_server.objects.opening import open_objects
from floatscope_server.objects.sweeper import Sweeper
from floatscope_server.origins import networks
from floatscope_server.outcome import Outcome
from floatscope_server.reference import Reference
from floatscope_server.removing import Remover
from floatscope_server.retention import Policy, Retention
from floatscope_server.routes import (
    alerts,
    audit,
    batches,
    channels,
    deliveries,
    fields,
    frames,
    health,
    login,
    pages,
    reference,
    rules,
    runs,
    series,
    silences,
)
from floatscope_server.routes import events as live
from floatscope_server.routes import tokens as token_routes
from floatscope_server.rule_book import RuleBook
from floatscope_server.rule_changes import RuleChanges
from floatscope_server.services import Services
from floatscope_server.sessions import Sessions, cookie_name
from floatscope_server.settings import Settings
from floatscope_server.static_files import StaticFiles
from floatscope_server.store import tokens
from floatscope_server.store.descriptions import Descriptions
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.warm import Warm
from floatscope_server.telling.duty import Telling
from floatscope_server.telling.teller import Teller
from floatscope_server.throttle import Throttle
from floatscope_server.workers.crew import Crew, Inside
from floatscope_server.workers.door import SECRET_NAME, Door
from floatscope_server.workers.forwarding import Forwarding, Peers

API = "/api/v1"
GZIP_FROM_BYTES = 4096  # event streams are never compressed: they must not wait in a buffer
INGEST_SLOTS = 6  # each may hold a body of 32 MiB and what it unpacks to
RETRY_LATER = {"Retry-After": "5"}

_log = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    *,
    database: Database | None = None,
    engines: Engines = Engine,
    post: Post | None = None,
    inside: Inside | None = None,
) -> FastAPI:
    """The application over the database of the settings, which is brought to the current schema.

    engines and post are arguments so that tests can use stand-ins; database lets a caller share one it has
    opened. inside: where other workers on the same database reach this one, if they can.
    """
    if database is None:
        database = Database(settings.database, synchronous=settings.sqlite_synchronous)
        migrate.upgrade(database)
    objects = open_objects(settings)
    work_beside_other_threads()
    events = Events()
    crew = Crew(database, events, inside=inside)
    tensor_tables = TensorTables()
    locks = RunLocks()
    messages = Messages(public_url=settings.public_url)
    env_url = None if settings.slack_webhook_url is None else settings.slack_webhook_url.get_secret_value()
    sender = Sender(
        database=database,
        post=post or poster(allow_private=settings.allow_private_webhooks),
        env_url=env_url,
        may_send=lambda: crew.duties.holds("sender"),
    )
    crew.changes.hear("outbox", lambda _key: sender.wake())
    rule_book = RuleBook()
    diagnosis = Diagnosis(
        engines=engines,
        tensor_tables=tensor_tables,
        enabled=settings.diagnose,
        rules_of=rule_book.of_run,
        objects=objects,
    )
    teller = Teller(bodies=messages, group_s=settings.alert_group_s, flap_s=settings.alert_flap_s)
    telling = Telling(
        database=database,
        teller=teller,
        events=events,
        woken=lambda: crew.changes.tell("outbox"),
        may_work=lambda: crew.duties.holds("telling"),
    )
    crew.changes.hear("telling", lambda _key: telling.wake())
    outcome = Outcome(
        teller=teller,
        events=events,
        woken=lambda: crew.changes.tell("outbox"),
        changed=lambda: crew.changes.tell("telling"),
    )
    refresher = Refresher(database=database, crew=crew)
    rule_changes = RuleChanges(database=database, judge_later=refresher.refresh)
    back_tests = BackTests(database=database, diagnosis=diagnosis, book=rule_book, duties=crew.duties)
    sweeper = Sweeper(database=database, objects=objects, alone=lambda: crew.duties.holds("sweep"))
    remover = Remover(
        database=database, alone=lambda: crew.duties.holds("remover"), removed_some=sweeper.wake
    )
    crew.changes.hear("removal", lambda _key: remover.wake())
    compactor = Compactor(database=database, tensor_tables=tensor_tables, objects=objects)
    lifecycle = Lifecycle(
        database=database,
        diagnosis=diagnosis,
        outcome=outcome,
        locks=locks,
        events=events,
        refresh_later=refresher.refresh,
        deleted=lambda: crew.changes.tell("removal"),
        ended=compactor.ended,
    )
    retention = Retention(
        database=database,
        lifecycle=lifecycle,
        policy=Policy.of(settings),
        alone=lambda: crew.duties.holds("retention"),
    )
    ingest = Ingest(
        database=database,
        tensor_tables=tensor_tables,
        diagnosis=diagnosis,
        outcome=outcome,
        locks=locks,
        events=events,
        baseline_grew=refresher.baseline_grew,
        compact_later=compactor.wake,
    )
    stalls = StallWatch(database=database, events=events, duties=crew.duties)
    token = None if settings.token is None else settings.token.get_secret_value()
    access = open_access(database, environment_token=token)
    cookie = cookie_name(port=settings.port, public_url=settings.public_url)
    doorkeeper = Doorkeeper(
        access=access,
        sessions=Sessions(database=database, access=access, cookie=cookie),
        throttle=Throttle(),
        trusted_proxies=networks(settings.trusted_proxies),
    )
    crew.changes.hear("tokens", lambda _key: doorkeeper.outdate())
    keeper = Keeper(
        database=database,
        doorkeeper=doorkeeper,
        audit_days=settings.audit_days,
        alone=lambda: crew.duties.holds("keeper"),
    )
    offer_environment_channel(database, is_set=env_url is not None, now=time.time())
    services = Services(
        settings=settings,
        version=version("floatscope"),
        database=database,
        access=access,
        doorkeeper=doorkeeper,
        events=events,
        crew=crew,
        tensor_tables=tensor_tables,
        descriptions=Descriptions(),
        warm=Warm(),
        ingest=ingest,
        lifecycle=lifecycle,
        rule_book=rule_book,
        rule_changes=rule_changes,
        back_tests=back_tests,
        remover=remover,
        compactor=compactor,
        objects=objects,
        sweeper=sweeper,
        retention=retention,
        messages=messages,
        sender=sender,
        telling=telling,
        pages=Pages(),
        static_files=StaticFiles(),
        reference=Reference(cookie=cookie),
        ingest_slots=anyio.CapacityLimiter(INGEST_SLOTS),
    )

    private, shared, peers = _among_workers(database, crew)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        events.attach(asyncio.get_running_loop())
        await anyio.to_thread.run_sync(crew.start)
        sender.start()
        refresher.start(lifecycle)
        stalls.start()
        telling.start()
        keeper.start()
        remover.start()
        compactor.start()
        sweeper.start()
        retention.start()
        back_tests.start()
        yield
        for worker in (
            back_tests,
            retention,
            compactor,
            remover,
            sweeper,
            telling,
            stalls,
            refresher,
            sender,
            keeper,
        ):
            await anyio.to_thread.run_sync(worker.stop)
        await anyio.to_thread.run_sync(crew.stop)
        await peers.close()
        database.close()

    app = FastAPI(
        title="floatscope",
        version=services.version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # routes/reference.py has it
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        middleware=[
            *private,
            Middleware(CarefulHeaders, public_url=settings.public_url),
            Middleware(GZipMiddleware, minimum_size=GZIP_FROM_BYTES, compresslevel=1),
            Middleware(Gate, doorkeeper=doorkeeper, public_url=settings.public_url),
            *shared,
        ],
    )
    app.state.services = services
    app.include_router(health.router)
    app.include_router(login.router)
    app.include_router(pages.router)
    app.include_router(reference.router)
    for module in (
        runs,
        batches,
        frames,
        series,
        alerts,
        silences,
        rules,
        channels,
        deliveries,
        live,
        token_routes,
        audit,
    ):
        app.include_router(module.router, prefix=API)
    _answer_errors(app)
    return app


def _among_workers(database: Database, crew: Crew) -> tuple[list[Middleware], list[Middleware], Peers]:
    """The outermost layer and the one behind the gate where other workers can reach this one; else none."""
    if crew.owners is None or crew.inside is None:
        return [], [], Peers("")
    with database.write() as c:
        secret = tokens.secret(c, SECRET_NAME).hex()
    peers = Peers(secret)
    private = [Middleware(Door, port=crew.inside.port, secret=secret, name=crew.name)]
    return private, [Middleware(Forwarding, owners=crew.owners, peers=peers)], peers


def _answer_errors(app: FastAPI) -> None:
    """Errors in one shape: problem+json, or a page for people.

    What is not foreseen is logged whole, told in general.
    """

    def answer(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
        services: Services = app.state.services
        return told(request, problem, pages=services.pages, headers=headers)

    @app.exception_handler(Problem)
    async def on_problem(request: Request, error: Problem) -> Response:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, fields.refused(list(error.errors())))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}"
        if error.status_code == 404:
            problem = Problem(
                404, "Not found", f"there is nothing at {what}", hint="/docs lists the API, / the runs"
            )
        else:
            problem = Problem(error.status_code, str(error.detail), f"{what}: {error.detail}")
        return answer(request, problem, error.headers)

    async def on_storage(request: Request, error: Exception) -> Response:
        what = f"{request.method} {request.url.path}"
        said = error.orig if isinstance(error, OperationalError) else error
        _log.error("%r failed: the database says: %s", what, str(said).strip())
        detail = (
            "the database could not take or give the data now (full, locked or away); nothing was changed"
        )
        hint = "send it again later; the server's log says more"
        return answer(
            request, Problem(503, "Storage is not available", detail, hint=hint, headers=RETRY_LATER)
        )

    for kind in AWAY:
        app.add_exception_handler(kind, on_storage)

    @app.exception_handler(DatabaseError)
    async def on_damage(request: Request, error: DatabaseError) -> Response:
        if type(error) not in (DatabaseError, InternalError):  # those say that the file itself is damaged
            raise error
        _log.error("%r failed: the database says: %s", f"{request.method} {request.url.path}", error.orig)
        return answer(request, Damaged("a page of the database"))

    @app.exception_handler(Exception)
    async def on_fault(request: Request, _error: Exception) -> Response:
        _log.error("%r failed", f"{request.method} {request.url.path}")
        detail = "the server failed on this request; its log says why"
        return answer(request, Problem(500, "Server fault", detail, hint="please report it"))
