"""The pages for people: a chat at `/`, the live pipeline at `/monitor`.

Plain files that are read once, and nothing from elsewhere: a strict policy lets a browser load and call only this
server, and run no script that is not one of the files. What the pages show is asked of the API with the reader's own key.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from paceline.errors import RequestError
from paceline.server.access import public

_FOLDER = Path(__file__).parent / "pages"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Trusted types: a script that tries to make HTML of a text (an answer of the model, say) fails.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # ask each time whether it changed: a new version of the server has new pages
}


class _Page:
    """One file, ready to be sent."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        tag = f'"{hashlib.sha256(self._data).hexdigest()[:20]}"'
        self._headers = _HEADERS | {"content-type": _TYPES[path.suffix], "etag": tag}

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the browser has it."""
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._data, headers=self._headers)


def add_page_routes(app: FastAPI) -> None:
    """Add the pages. They hold nothing secret, so no key is needed to get them."""
    pages = {path.name: _Page(path) for path in _FOLDER.iterdir() if path.suffix in _TYPES}

    @app.get("/")
    @public
    async def chat(request: Request) -> Response:
        return pages["chat.html"].answer(request)

    @app.get("/monitor")
    @public
    async def monitor(request: Request) -> Response:
        return pages["monitor.html"].answer(request)

    @app.get("/pages/{name}")
    @public
    async def part(name: str, request: Request) -> Response:
        """A style sheet, script or picture; only names of files that were there at the start are known."""
        if name not in pages:
            raise RequestError("There is no such endpoint.", status=404, code="not_found")
        return pages[name].answer(request)
