"""Who may call what: every route declares it, and a route that does not is closed to everybody."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.errors import RequestError
from paceline.server.answer import Sender

F = TypeVar("F", bound=Callable[..., Any])

PUBLIC, USER = "public", "user"


def public(endpoint: F) -> F:
    """Anybody may call this endpoint."""
    endpoint.access = PUBLIC  # type: ignore[attr-defined]
    return endpoint


def user(endpoint: F) -> F:
    """Only clients with an API key may call this endpoint, if the server has keys."""
    endpoint.access = USER  # type: ignore[attr-defined]
    return endpoint


class Keys:
    """The API keys, kept as hashes; compared in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._hashes = [_digest(key) for key in keys]

    async def require(self, request: Request) -> None:
        """Let the request through to its endpoint, or not; sets `request.state.key_scope`.

        Raises:
            RequestError: 401 without a valid key, 403 at an endpoint that declares no access.
        """
        access = getattr(request.scope.get("endpoint"), "access", None)
        request.state.key_scope = ""
        if access == PUBLIC:
            return
        if access != USER:
            raise RequestError("This endpoint is closed.", status=403, code="forbidden")
        if not self._hashes:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, known) for known in self._hashes]  # all, whatever the first ones say
        if scheme.lower() != "bearer" or not any(matches):
            raise RequestError("The API key is missing or wrong.", status=401, code="invalid_api_key")
        if len(self._hashes) > 1:
            # Clients with different keys do not share cached prefixes: timing would tell one of the other.
            request.state.key_scope = given[:16].hex()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class HostGuard:
    """Refuses requests for other names than the server's own: a web page could have pointed its name here."""

    def __init__(self, app: ASGIApp, host: str, allowed: Sequence[str]) -> None:
        self._app = app
        self._any = "*" in allowed or (not allowed and not is_loopback(host))
        self._names = {name.lower() for name in (*allowed, "localhost", host)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._any and not self._allows(scope):
            error = RequestError(
                "This Host header is not accepted; the server's --allowed-hosts decides.",
                status=403,
                code="forbidden_host",
            )
            await Sender(send, {}).error(error)
            return
        await self._app(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"host"]
        if not given:
            return True  # only browsers can be tricked, and they always send it
        name = given[0].decode("latin-1").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        return len(given) == 1 and (name in self._names or is_loopback(name))


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine's own address or name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
