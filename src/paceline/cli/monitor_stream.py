"""What a server tells of its pipeline by ``GET /monitor/stream``: read, typed, and kept for a minute."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec

from paceline.cli.talk import ServerError
from paceline.errors import PacelineError

KEPT_SECONDS = 60.0
_SILENCE_SECONDS = 10.0  # the server says something every second


class Hello(msgspec.Struct):
    """The first event: how the pipeline is made. `layers` per stage."""

    stages: int
    layers: list[int]
    model: str
    pacing: str
    now: float


class Tiles(msgspec.Struct):
    """Figures of the whole pipeline; rates per second, ages in seconds per stage."""

    bubble: float | None
    imbalance: float | None
    tokens_in_per_s: float
    tokens_out_per_s: float
    running: int
    waiting: int
    free_blocks: int
    num_blocks: int
    preemptions: int
    last_step_age_s: list[float | None]


class LiveRequest(msgspec.Struct):
    """One unfinished request."""

    id: str
    status: str
    where: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    age_s: float
    label: str | None = None


Span = tuple[int, int, float, float, str]  # stage, batch, start, end, kind
Idle = tuple[int, float, float, str]  # stage, start, end, cause


class Frame(msgspec.Struct):
    """News since the frame before; figures and requests are in the last of several. Times in seconds of the core's clock."""

    now: float
    spans: list[Span] = []
    idle: list[Idle] = []
    tiles: Tiles | None = None
    requests: list[LiveRequest] | None = None
    dropped: int = 0


class Record:
    """The last minute as far as a terminal shows it.

    Attributes:
        spans, idle: by stage, in order of arrival.
        now: of the newest frame.
        tiles, requests, dropped: the newest ones; no tiles before there are any.
    """

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.now = hello.now
        self.tiles: Tiles | None = None
        self.requests: list[LiveRequest] = []
        self.dropped = 0
        self.spans: list[list[Span]] = [[] for _ in range(hello.stages)]
        self.idle: list[list[Idle]] = [[] for _ in range(hello.stages)]

    def add(self, frame: Frame) -> None:
        """Take in a frame, and forget what is older than a minute."""
        self.now, self.dropped = frame.now, frame.dropped
        self.tiles = frame.tiles or self.tiles
        self.requests = self.requests if frame.requests is None else frame.requests
        for span in frame.spans:
            self.spans[span[0]].append(span)
        for idle in frame.idle:
            self.idle[idle[0]].append(idle)
        oldest = frame.now - KEPT_SECONDS
        self.spans = [[span for span in spans if span[3] >= oldest] for spans in self.spans]
        self.idle = [[idle for idle in times if idle[2] >= oldest] for times in self.idle]


async def read(url: str, key: str | None) -> AsyncIterator[Hello | Frame]:
    """The events of one connection, until it ends.

    Raises:
        ServerError: it cannot be reached, refuses, or says what nobody understands.
        Refused: it is there, but not for this key.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(_SILENCE_SECONDS, connect=5.0)
    try:
        async with (
            httpx.AsyncClient(timeout=timeout, headers=headers) as client,
            client.stream("GET", f"{url}/monitor/stream") as reply,
        ):
            if reply.status_code != 200:
                raise _refusal(reply.status_code, await reply.aread())
            kind = ""
            async for line in reply.aiter_lines():
                name, _, value = line.partition(":")
                if name == "event":
                    kind = value.strip()
                elif name == "data" and kind in _TYPES:
                    yield msgspec.json.decode(value, type=_TYPES[kind])
    except httpx.HTTPError as error:
        raise ServerError(f"no answer from {url} ({type(error).__name__}: {error})") from error
    except msgspec.DecodeError as error:
        raise ServerError(f"{url} speaks of its pipeline in another way than this version reads ({error})") from error


_TYPES: dict[str, Any] = {"hello": Hello, "frame": Frame}


class Refused(PacelineError):
    """Asking again would not help."""


def _refusal(status: int, body: bytes) -> PacelineError:
    try:
        text = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        text = f"status {status}"
    if status in (401, 403):
        return Refused(f"{text} Give the server's admin key with --api-key or PACELINE_ADMIN_API_KEY.")
    return ServerError(text) if status == 503 else Refused(text)
