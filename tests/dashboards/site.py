"""A small real HTTP server for browser tests: the pages, the static files, the REST interface and the event
stream, over runs made up in `sample`. What it shows can be changed while a browser looks at it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from floatscope_dashboards.assets import static_dir, without_fingerprint
from floatscope_dashboards.pages import CONTENT_SECURITY_POLICY
from floatscope_dashboards.ruler import ruler
from floatscope_dashboards.views import RunsView, RunView
from floatscope_server.events import BEAT
from tests.dashboards import sample, sample_pictures
from tests.dashboards.sample import Curves
from tests.dashboards.showing import Shown


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes its page in mid-answer is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}


@dataclass
class Site:
    """What the server answers with. Change it, then `publish` an event, as the real server would."""

    runs: Callable[[], RunsView]
    run: Callable[[str], RunView | None]
    curves: Callable[[str], Curves | None]
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    refuse_events: bool = False
    silent: bool = False
    """Streams stay open and say nothing, as behind a cable that was pulled."""
    firing: int = 0
    signed_in: bool = True
    url: str = ""
    _server: ThreadingHTTPServer | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stream: int = 0

    def __enter__(self) -> Site:
        self._start(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, port: int) -> None:
        handler = type("SiteHandler", (_Handler,), {"site": self, "pages": Shown()})
        self._server = _Server(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """As if the server had been killed: streams end, connections are refused."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        with self._changed:
            self._stream += 1
            self._changed.notify_all()

    @property
    def is_stopped(self) -> bool:
        """Whether nobody answers now."""
        return self._server is None

    def restart(self) -> None:
        """Again on the same port."""
        self._start(int(self.url.rsplit(":", 1)[1]))

    def publish(self, kind: str, **data: Any) -> None:
        """Sends one event to every open stream."""
        with self._changed:
            self.events.append((len(self.events) + 1, kind, data))
            self._changed.notify_all()

    def wait_events(
        self, after: int, stream: int, seconds: float
    ) -> list[tuple[int, str, dict[str, Any]]] | None:
        """Events after that id, [] when there was none in time, None when the server stopped."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._stream == stream and len(self.events) <= after and time.monotonic() < deadline:
                self._changed.wait(0.2)
            return None if self._stream != stream else self.events[after:]

    @property
    def stream(self) -> int:
        """Number of the server's life, so that a stream of an earlier one ends."""
        return self._stream


def default_site() -> Site:
    """One faulty and one healthy run."""
    healthy = sample.healthy_row()
    views = {
        "k3f9q2": sample.run_view(baseline="c0ffee"),
        "c0ffee": RunView(
            healthy, sample.info(), sample.verdict(), (), ("headroom_log2",), None, sample.NOW, "0.1.0"
        ),
    }
    curves = {"k3f9q2": sample.faulty_curves(), "c0ffee": sample.healthy_curves()}
    return Site(
        runs=lambda: sample.runs_view(*(view.row for view in views.values())),
        run=views.get,
        curves=curves.get,
    )


class _Handler(BaseHTTPRequestHandler):
    site: Site
    pages: Shown
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self.site.is_stopped:  # a connection that was kept open from before
            self.close_connection = True
            return
        address = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        self.site.requests.append((address.path, {**query, **dict(self.headers.items())}))
        parts = [unquote(part) for part in address.path.split("/") if part]
        if address.path.startswith("/static/"):
            self._static(without_fingerprint(address.path)[0].split("/")[2:])
        elif address.path == "/login":
            self._html(200, self.pages.login(None, query.get("next", "/")))
        elif not self.site.signed_in:
            self._redirect("/login")
        elif address.path == "/":
            self._html(200, self.pages.runs(self.site.runs()))
        elif parts[:1] == ["runs"] and len(parts) == 2:
            view = self.site.run(parts[1])
            if view is None:
                self._html(404, self.pages.message(404, "No such run", "It may have been deleted."))
            else:
                self._html(200, self.pages.run(view))
        elif parts[:1] == ["runs"] and parts[2:] == ["ruler"]:
            at = int(query.get("at") or sample.LAST)
            card = ruler(sample_pictures.ruler_at(at, pinned=query.get("t")), self.pages.say, run=parts[1])
            self._html(200, self.pages.part("_ruler.html", ruler=card))
        elif parts[:3] == ["api", "v1", "events"]:
            self._events()
        elif parts[:3] == ["api", "v1", "alerts"]:
            self._json(200, {"items": [], "next_cursor": None, "firing": self.site.firing})
        elif parts[:3] == ["api", "v1", "runs"] and len(parts) == 5:
            self._api(parts[3], parts[4], query)
        else:
            self._html(404, self.pages.message(404, "Not found", "There is no such page."))

    def _api(self, run: str, what: str, query: dict[str, str]) -> None:
        curves = self.site.curves(run)
        if curves is None:
            self._json(404, {"title": "No such run"})
            return
        low, high = int(query.get("from", 0)), int(query.get("to", 1 << 50))
        if what == "scalars":
            self._json(200, curves.scalars(query["names"].split(","), low, high, int(query["points"])))
        elif what == "series":
            self._json(200, curves.series(query["tensor"], query["stat"], low, high, int(query["points"])))
        elif what == "rankmap":
            self._json(200, sample_pictures.rankmap(query["name"], low, high, int(query["columns"])))
        elif what == "heatmap":
            self._json(200, curves.heatmap(query["stat"], low, high, int(query["columns"])))
        else:
            self._json(404, {"title": "Not found"})

    def _events(self) -> None:
        if self.site.refuse_events:
            self._json(503, {"title": "Busy"})
            return
        stream = self.site.stream
        after = int(self.headers.get("Last-Event-ID", len(self.site.events)))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(b"retry: 300\n\n" + (b"" if self.site.silent else BEAT.encode()))
            self.wfile.flush()
            while (found := self.site.wait_events(after, stream, 1.0)) is not None:
                for number, kind, data in found:
                    after = number
                    text = f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
                    self.wfile.write(text.encode())
                if not found:
                    self.wfile.write(b": not gone\n\n" if self.site.silent else BEAT.encode())
                self.wfile.flush()
        except OSError:
            return  # the browser went away

    def _static(self, parts: list[str]) -> None:
        path = static_dir().joinpath(*parts)
        if ".." in parts or not path.is_file():
            self._html(404, "")
            return
        self._send(200, TYPES.get(path.suffix, "application/octet-stream"), path.read_bytes())

    def _redirect(self, target: str) -> None:
        self.send_response(303)
        self.send_header("Location", target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _html(self, status: int, text: str) -> None:
        self._send(status, "text/html; charset=utf-8", text.encode())

    def _json(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        self.end_headers()
        self.wfile.write(body)
