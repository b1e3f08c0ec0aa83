"""The composition root: everything is made here and nowhere else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from floatscope_dashboards.pages import Pages
from floatscope_diagnostics.engine import Engine
from floatscope_server import migrate
from floatscope_server.access import open_access
from floatscope_server.background import Refresher, StallWatch
from floatscope_server.backtest import BackTests
from floatscope_server.careful_headers import CarefulHeaders
from floatscope_server.codec import work_beside_other_threads
from floatscope_server.compaction import Compactor
from floatscope_server.database import Database, file_of
from floatscope_server.diagnosis import Diagnosis, Engines
from floatscope_server.disk import MIB, Disk
from floatscope_server.doorkeeper import Doorkeeper
from floatscope_server.error_answers import answer_errors
from floatscope_server.events import Events
from floatscope_server.gate import Gate
from floatscope_server.ingest import Ingest
from floatscope_server.keeper import Keeper
from floatscope_server.lifecycle import Lifecycle
from floatscope_server.limits.backlog import Backlog
from floatscope_server.limits.layer import Limits
from floatscope_server.locks import RunLocks
from floatscope_server.metrics.gauges import gauges
from floatscope_server.metrics.measures import Measures
from floatscope_server.metrics.state import State
from floatscope_server.notify.environment import offer_environment_channel
from floatscope_server.notify.messages import Messages
from floatscope_server.notify.posting import Post, poster
from floatscope_server.notify.sender import Sender
from floatscope_server.objects.opening import open_objects
from floatscope_server.objects.sweeper import Sweeper
from floatscope_server.observing import Observed
from floatscope_server.origins import networks
from floatscope_server.outcome import Outcome
from floatscope_server.readiness import Readiness
from floatscope_server.reference import Reference
from floatscope_server.removing import Remover
from floatscope_server.retention import Policy, Retention
from floatscope_server.routes import (
    advice,
    alerts,
    audit,
    batches,
    channels,
    compare,
    deliveries,
    frames,
    health,
    histogram,
    login,
    metrics,
    pages,
    rankmap,
    reference,
    rules,
    runs,
    search,
    series,
    silences,
    ticks,
    what_if,
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
INGEST_SLOTS = 6  # each may hold a body of 32 MiB and as much unpacked
LARGE_SLOTS = 1  # may hold a body that unpacks to 256 MiB


def create_app(
    settings: Settings,
    *,
    database: Database | None = None,
    engines: Engines = Engine,
    post: Post | None = None,
    inside: Inside | None = None,
    worker: int = 0,
) -> FastAPI:
    """The application over the database of the settings, which is brought to the current schema.

    engines and post are arguments so that tests can use stand-ins; database lets a caller share one it has
    opened. inside: where other workers on the same database reach this one, if they can. worker: its number
    among those of this machine.
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
    measures = Measures(worker=worker)
    measures.watch(database.engine)
    disk = Disk(file_of(settings.database), reserve_bytes=settings.disk_reserve_mib * MIB)
    lives = {"sending": sender.alive, "telling": telling.alive, "compaction": compactor.alive}
    readiness = Readiness(database=database, disk=disk, parts=lives)
    backlog = Backlog(database=database, compacting=compactor.works)
    slots = anyio.CapacityLimiter(INGEST_SLOTS)
    measures.registry.register(
        State(
            database=database,
            worker=measures.worker,
            gauges=gauges(
                diagnosis=diagnosis,
                compactor=compactor,
                events=events,
                crew=crew,
                disk=disk,
                backlog=backlog,
                slots=slots,
            ),
        )
    )
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
        ingest_slots=slots,
        large_slots=anyio.CapacityLimiter(LARGE_SLOTS),
        measures=measures,
        disk=disk,
        readiness=readiness,
        backlog=backlog,
    )

    private, shared, peers = _among_workers(database, crew)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        events.attach(asyncio.get_running_loop())
        await anyio.to_thread.run_sync(crew.start)
        sender.start()
        refresher.work_for(lifecycle)
        refresher.start()
        stalls.start()
        telling.start()
        keeper.start()
        remover.start()
        compactor.start()
        sweeper.start()
        retention.start()
        back_tests.start()
        threading.Thread(target=services.pages.prepare, name="floatscope-templates", daemon=True).start()
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
            Middleware(Observed, measures=measures),
            Middleware(CarefulHeaders, public_url=settings.public_url),
            Middleware(GZipMiddleware, minimum_size=GZIP_FROM_BYTES, compresslevel=1),
            Middleware(Gate, doorkeeper=doorkeeper, public_url=settings.public_url),
            Middleware(
                Limits,
                ingest_per_s=settings.ingest_per_s,
                other_per_s=settings.requests_per_s,
                measures=measures,
            ),
            *shared,
        ],
    )
    app.state.services = services
    app.include_router(health.router)
    app.include_router(metrics.router)
    app.include_router(login.router)
    app.include_router(pages.router)
    app.include_router(reference.router)
    for module in (
        runs,
        batches,
        frames,
        series,
        histogram,
        rankmap,
        ticks,
        search,
        alerts,
        silences,
        rules,
        channels,
        deliveries,
        live,
        token_routes,
        audit,
        compare,
        what_if,
        advice,
    ):
        app.include_router(module.router, prefix=API)
    answer_errors(app)
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
