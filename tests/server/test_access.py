"""Who may call what, and under which name."""

from __future__ import annotations

import pytest
from fastapi.routing import APIRoute

from paceline.config import ServerConfig
from paceline.server.access import ADMIN, OWNER, PUBLIC, USER
from paceline.server.state import Phase
from tests.server.fakes import Site

OPEN_PATHS = {"/health", "/health/ready", "/health/live", "/ping", "/version", "/metrics"}
OPEN_PATHS |= {"/", "/monitor", "/pages/{name}"}  # nothing secret is in them


def test_every_route_declares_its_access_and_only_these_are_open() -> None:
    routes = Site().app.routes
    assert all(isinstance(route, APIRoute) for route in routes)  # others would go round the check
    access = {route.path: route.endpoint.access for route in routes if isinstance(route, APIRoute)}
    assert set(access.values()) <= {PUBLIC, USER, OWNER, ADMIN}
    assert {path for path, who in access.items() if who == PUBLIC} == OPEN_PATHS


async def test_every_other_route_wants_a_key() -> None:
    site = Site(config=ServerConfig(api_key=("first", "second")))
    for route in site.app.routes:
        assert isinstance(route, APIRoute)
        method = next(iter(route.methods))
        path = route.path.replace("{model:path}", "m").replace("{number:int}", "0")
        reply = await site.client.request(method, path)
        assert (reply.status_code == 401) == (path not in OPEN_PATHS), path
        assert reply.status_code != 401 or reply.headers["www-authenticate"] == "Bearer"


async def test_a_route_that_declares_nothing_is_closed() -> None:
    site = Site()

    @site.app.get("/forgotten")
    async def forgotten() -> str:
        return "open"

    assert (await site.client.get("/forgotten")).status_code == 403


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Bearer firstsecond", 401),
        ("Basic first", 401),
        ("first", 401),
        ("Bearer first", 200),
        ("bearer second", 200),
    ],
)
async def test_keys(header: str | None, status: int) -> None:
    site = Site(config=ServerConfig(api_key=("first", "second")))
    headers = {} if header is None else {"authorization": header}
    assert (await site.client.get("/v1/models", headers=headers)).status_code == status


async def test_a_path_that_only_looks_open_is_not() -> None:
    site = Site(config=ServerConfig(api_key=("key",)))
    for path in ("/health/../v1/models", "//v1/models", "/v1/models/", "/health/%2e%2e/v1/models", "/V1/models"):
        assert (await site.client.get(path)).status_code in (401, 404), path


async def test_clients_with_different_keys_share_no_cached_prefixes() -> None:
    site = Site(config=ServerConfig(api_key=("first", "second")))
    for key in ("first", "second", "first"):
        body = {"prompt": "x", "cache_salt": "s"}
        reply = await site.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
        assert reply.status_code == 200
    salts = [args[2] for kind, args in site.engine.posted if kind == "add"]
    assert salts[0] == salts[2] != salts[1]
    assert all(salt.endswith(":s") and "first" not in salt for salt in salts)


@pytest.mark.parametrize(
    ("host", "allowed", "header", "status"),
    [
        ("127.0.0.1", (), "localhost:8000", 200),
        ("127.0.0.1", (), "127.0.0.1:8000", 200),
        ("127.0.0.1", (), "[::1]:8000", 200),
        ("127.0.0.1", (), "LOCALHOST", 200),
        ("127.0.0.1", (), "evil.example:8000", 403),
        ("127.0.0.1", (), "127.0.0.1.evil.example", 403),
        ("127.0.0.1", (), "", 403),
        ("127.0.0.1", ("llm.example",), "llm.example", 200),
        ("127.0.0.1", ("llm.example",), "other.example", 403),
        ("127.0.0.1", ("*",), "other.example", 200),
        ("0.0.0.0", (), "anything.example", 200),
        ("0.0.0.0", ("llm.example",), "other.example", 403),
    ],
)
async def test_host_headers(host: str, allowed: tuple[str, ...], header: str, status: int) -> None:
    site = Site(config=ServerConfig(host=host, allowed_hosts=allowed))
    reply = await site.client.get("/health", headers={"host": header})
    assert reply.status_code == status


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/health/live", "/ping"])
async def test_health_can_be_asked_without_a_body(path: str) -> None:
    site = Site(config=ServerConfig(api_key=("key",)))
    assert (await site.client.head(path)).status_code == 200
    site.state.phase = Phase.DRAINING
    assert (await site.client.head(path)).status_code == (200 if path.endswith("live") else 503)


async def test_no_other_origin_is_let_in() -> None:
    site = Site()
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    reply = await site.client.options("/v1/completions", headers=headers)
    assert reply.status_code == 405
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_request_id_headers_are_labels() -> None:
    site = Site(config=ServerConfig(enable_request_id_headers=True))
    reply = await site.client.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "mine\tx"})
    assert reply.headers["x-request-id"] == "mine?x"
    assert "mine" not in str(site.engine.posted)
    reply = await site.complete()
    assert reply.headers["x-request-id"] == reply.json()["id"]
