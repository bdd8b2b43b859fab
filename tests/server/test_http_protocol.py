"""Bytes on a real connection."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from paceline.server.http_protocol import MAX_HEAD_BYTES
from tests.server.fakes import Site
from tests.server.running import Running


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    running = Running(Site())
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as client:
        yield client
    running.stop()


def send_all(connection: socket.socket, parts: list[bytes]) -> bytes:
    """Send until the other side closes; returns all that it said."""
    try:
        for part in parts:
            connection.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        pass
    said = b""
    try:
        while data := connection.recv(65536):
            said += data
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize(
    "start", [b"GET /", b"GET / HTTP/1.1\r\nX-", b"GET / HTTP/1.1\r\nX: "], ids=["path", "header name", "header value"]
)
def test_a_head_without_end_is_cut_off(connection: socket.socket, start: bytes) -> None:
    send_all(connection, [start, *[b"x" * 65536] * 100])  # the server closes: else this would wait for ever


def test_many_headers_are_cut_off(connection: socket.socket) -> None:
    lines = b"".join(b"X-%d: y\r\n" % n for n in range(1000))
    send_all(connection, [b"GET / HTTP/1.1\r\n", *[lines] * 200])


def request(path: str, body: dict[str, object], *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


def test_large_bodies_and_several_requests_on_one_connection_pass(connection: socket.socket) -> None:
    large = request("/tokenize", {"prompt": "x", "user": "x" * (3 * MAX_HEAD_BYTES)})
    last = request("/tokenize", {"prompt": "x"}, "Connection: close")
    said = send_all(connection, [large, large, last])
    assert said.count(b"HTTP/1.1 200 OK") == 3


def test_one_write_per_token_and_nothing_after_done(connection: socket.socket) -> None:
    said = send_all(connection, [request("/v1/completions", {"prompt": "x", "stream": True}, "Connection: close")])
    assert b"transfer-encoding: chunked" in said.lower()
    assert said.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
