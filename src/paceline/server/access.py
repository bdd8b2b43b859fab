"""Who may call what: every route declares it, and a route that does not is closed to everybody."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.errors import RequestError
from paceline.server.answer import Sender

F = TypeVar("F", bound=Callable[..., Any])

PUBLIC, USER, OWNER, ADMIN = "public", "user", "owner", "admin"
_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def public(endpoint: F) -> F:
    """Anybody may call this endpoint."""
    endpoint.access = PUBLIC  # type: ignore[attr-defined]
    return endpoint


def user(endpoint: F) -> F:
    """Only clients with an API key may call this endpoint, if the server has keys."""
    endpoint.access = USER  # type: ignore[attr-defined]
    return endpoint


def owner(endpoint: F) -> F:
    """Shows or ends requests: with an API key one's own, with the admin key or (without any key) from this machine all."""
    endpoint.access = OWNER  # type: ignore[attr-defined]
    return endpoint


def admin(endpoint: F) -> F:
    """Shows all requests: needs the admin key or, if the server has no key at all, a client on this machine."""
    endpoint.access = ADMIN  # type: ignore[attr-defined]
    return endpoint


class Caller(NamedTuple):
    """Who makes a request."""

    owner: str = ""  # stands for the key it came with, in the record of this server; not the key's hash
    key_scope: str = ""  # clients of different scopes share no cached prefixes
    sees_all: bool = False

    def may_see(self, owner: str) -> bool:
        """Whether a request of this owner may be shown."""
        return self.sees_all or (bool(self.owner) and owner == self.owner)


class Keys:
    """The API keys and the admin key, kept as hashes; compared in constant time."""

    def __init__(self, keys: Sequence[str], admin_key: str | None = None) -> None:
        self._hashes = [_digest(key) for key in keys]
        self._admin = None if admin_key is None else _digest(admin_key)
        self._owner_key = secrets.token_bytes(16)

    async def require(self, request: Request) -> None:
        """Let the request through to its endpoint, or not; sets `request.state.caller`.

        Raises:
            RequestError: 401 without a valid key, 403 at an endpoint that declares no access or is not for this caller.
        """
        access = getattr(request.scope.get("endpoint"), "access", None)
        request.state.caller = Caller()
        if access == PUBLIC:
            return
        if access not in (USER, OWNER, ADMIN):
            raise RequestError("This endpoint is closed.", status=403, code="forbidden")
        request.state.caller = caller = self._identify(request)
        if access == USER and self._hashes and not (caller.owner or caller.sees_all):
            raise RequestError("The API key is missing or wrong.", status=401, code="invalid_api_key")
        if access in (OWNER, ADMIN) and not caller.sees_all and not (access == OWNER and caller.owner):
            self._refuse(caller)

    def _identify(self, request: Request) -> Caller:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if scheme.lower() == "bearer" else "")
        matches = [hmac.compare_digest(given, known) for known in self._hashes]  # all, whatever the first ones say
        is_admin = self._admin is not None and hmac.compare_digest(given, self._admin)
        if is_admin or any(matches):
            name = hashlib.blake2b(given, key=self._owner_key, digest_size=8).hexdigest()
            # Clients with different keys do not share cached prefixes: timing would tell one of the other.
            scope = given[:16].hex() if len(self._hashes) + (self._admin is not None) > 1 else ""
            return Caller(name, scope, is_admin)
        return Caller(sees_all=not self._hashes and self._admin is None and _is_on_this_machine(request))

    def _refuse(self, caller: Caller) -> None:
        if caller.owner:
            raise RequestError("This needs the server's --admin-api-key.", status=403, code="forbidden")
        if self._hashes or self._admin is not None:
            raise RequestError("The API key is missing or wrong.", status=401, code="invalid_api_key")
        raise RequestError(
            "Without keys this is shown only to clients on the server's own machine; set --admin-api-key.",
            status=403,
            code="forbidden",
        )


def _is_on_this_machine(request: Request) -> bool:
    """Whether the client itself is; a proxy that speaks for another one says so."""
    if any(name in request.headers for name in _PROXY_HEADERS):
        return False
    return request.client is not None and is_loopback(request.client.host)


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
