"""Serves the dashboards' static files: compressed once, named by a list made at start, so no path can lead
elsewhere.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from floatscope_dashboards import assets

IMMUTABLE = "public, max-age=31536000, immutable"
CHECK_EACH_TIME = "no-cache"  # browsers ask, and get 304
GZIP_LEVEL = 9
SMALLEST_GZIP_BYTES = 1024
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class _File:
    content: bytes
    packed: bytes | None
    media_type: str
    etag: str


class StaticFiles:
    """Files by their address. Each is read and compressed when it is first asked for and kept."""

    def __init__(self) -> None:
        root = assets.static_dir()
        inside = {
            f"{assets.STATIC_URL}/{path.relative_to(root).as_posix()}": path for path in root.rglob("*")
        }
        found: Mapping[str, Path] = {**inside, **assets.outside_files()}
        self._paths = {url: path for url, path in found.items() if path.is_file()}
        self._fingerprint = assets.fingerprint()
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}

    def answer(self, request: Request) -> Response:
        """The file of the request's path, 304 if the browser has it, or 404."""
        url, fingerprint = assets.without_fingerprint(request.url.path)
        path = self._paths.get(url)
        if path is None:
            return PlainTextResponse("there is no such file", status_code=404)
        file = self._file(url, path)
        # A page of an older release that is still open asks for its own: it gets what there is.
        fixed = fingerprint == self._fingerprint or url.startswith(f"{assets.STATIC_URL}/vendor/")
        cache = IMMUTABLE if fixed else CHECK_EACH_TIME
        headers = {"Cache-Control": cache, "ETag": file.etag, "Vary": "Accept-Encoding"}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                file.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.media_type
            )
        return Response(file.content, headers=headers, media_type=file.media_type)

    def _file(self, url: str, path: Path) -> _File:
        with self._lock:
            known = self._files.get(url)
            if known is None:
                content = path.read_bytes()
                packed = (
                    gzip.compress(content, GZIP_LEVEL, mtime=0)
                    if len(content) >= SMALLEST_GZIP_BYTES
                    else None
                )
                smaller = packed if packed is not None and len(packed) < len(content) else None
                kind = (
                    _TYPES.get(path.suffix)
                    or mimetypes.guess_type(path.name)[0]
                    or "application/octet-stream"
                )
                etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                known = self._files[url] = _File(content, smaller, kind, etag)
            return known
