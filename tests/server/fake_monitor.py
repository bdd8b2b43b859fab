"""A server that tells of a made-up pipeline, in the words of the real one: the pages over it are always the same."""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from paceline.server.access import public
from paceline.server.page_routes import add_page_routes

BACKLOG = 20.0  # seconds that were before the first reader
FRAME = 0.2
LINK = 0.002
REQUESTS = [
    f"cmpl-{place:02x}{0x9E3779B97F4A7C15F39CC0605CEDC8 * place % 16**30:030x}-0" for place in range(0xA0, 0xA6)
]
Event = tuple[float, str, Any]  # when it is told, key of the frame, item


@cache
def story(stages: int) -> list[Event]:
    """About 80 s of a pipeline with two batches in flight: prompts in chunks, then decodes; idle causes in turn."""
    events: list[Event] = []
    free = [0.0] * stages
    done = [0.0, 0.0]
    causes = ("starved", "tokens_in_flight", "core", "link", "blocks", "pace", "startup", "unattributed")
    for batch in range(1600):
        made = max(free[0], done[batch % 2])
        kind = ("prefill", "decode", "decode", "mixed", "decode")[batch % 5]
        tokens = {"prefill": 64, "decode": 1, "mixed": 32}[kind]
        slices = [
            [name, batch * 2, 1 if kind == "mixed" and place else tokens, "decode" if tokens == 1 or place else kind]
            for place, name in enumerate(REQUESTS[batch % 2 :: 2])
        ]
        slices = [[name, first, n, "prefill" if k == "mixed" else k] for name, first, n, k in slices]
        events.append((made, "batches", {"batch": batch, "made": made, "slices": slices}))
        ready = made
        for stage in range(stages):
            start = max(ready, free[stage])
            if start > free[stage]:
                cause = "no_work" if batch % 40 == 39 else causes[(batch + stage) % len(causes)]
                events.append((start, "idle", [stage, free[stage], start, cause]))
            work = (0.022 + 0.0004 * tokens) * (1 - 0.25 * stage / stages)
            end = free[stage] = start + work
            events.append((end, "spans", [stage, batch, start, end, kind]))
            ready = end + LINK
            if stage + 1 < stages:
                events.append((ready, "links", [stage, batch, end, ready]))
        done[batch % 2] = ready + (0.4 if batch % 40 == 38 else 0.004)
    return sorted(events, key=lambda event: event[0])


class FakeMonitor:
    """The application; interface of :class:`tests.server.fakes.Site` as far as `Running` needs it.

    Attributes:
        key: what readers must send, if anything.
        aborted: ids that a reader aborted.
        opened, closed: an item per stream that was opened or closed.
        break_off: ends the streams once.
    """

    def __init__(self, stages: int = 2, key: str = "", empty: bool = False) -> None:
        self.stages, self.key = stages, key
        self.aborted: list[str] = []
        self.sampled: list[dict[str, Any]] = []
        self.opened: queue.Queue[None] = queue.Queue()
        self.closed: queue.Queue[None] = queue.Queue()
        self.break_off = False
        self._events = [] if empty else story(stages)
        self._began = time.monotonic() - BACKLOG
        self.app = FastAPI(openapi_url=None)
        add_page_routes(self.app)
        self._add_routes()

    def _add_routes(self) -> None:
        app = self.app

        @app.get("/monitor/stream")
        @public
        async def stream(request: Request) -> Response:
            if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
                return _error(401, "invalid_api_key", "The API key is missing or wrong.")
            return StreamingResponse(self._frames(), media_type="text/event-stream")

        @app.get("/v1/requests/{name}/timeline")
        async def timeline(name: str) -> Response:
            if not name.startswith("cmpl-"):
                return _error(404, "not_found", "There is no such request.")
            return JSONResponse(
                {"id": name, "error": "", "text": f"{name} arrived and waited 2 ms.\nBatch 1 computed it."}
            )

        @app.get("/batches/{number}")
        async def batch(number: int) -> Response:
            other = REQUESTS[(number + 1) % 2]
            told = {"status": {other: "RUNNING"}, "why_not": {other: "IN_FLIGHT"}, "in_flight_in": {other: number - 1}}
            return JSONResponse({"batch": number, "slices": {}} | told)

        @app.post("/v1/requests/{name}/abort")
        async def abort(name: str) -> Response:
            self.aborted.append(name)
            return JSONResponse({"id": name, "aborted": True})

        @app.post("/v1/completions")
        async def completions(request: Request) -> Response:
            self.sampled.append(await request.json())
            return JSONResponse({"choices": []})

        @app.get("/trace")
        async def trace(seconds: int) -> Response:
            return JSONResponse({"traceEvents": [], "seconds": seconds})

    async def _frames(self) -> AsyncIterator[str]:
        self.opened.put(None)
        try:
            layers = [30 // self.stages] * self.stages
            hello = {"stages": self.stages, "depth": 2, "layers": layers, "num_blocks": 512, "block_size": 16}
            hello |= {"model": "Fake-135M", "pacing": "greedy", "now": self._now(), "clock_uncertainty_ms": [0.1]}
            yield _event("hello", hello)
            told, place = max(0.0, self._now() - 60), 0
            while not self.break_off:
                now = self._now()
                while told < now:
                    told = min(told + 5.0, now)  # the backlog comes in several frames
                    frame: dict[str, Any] = {"batches": [], "spans": [], "links": [], "idle": []}
                    while place < len(self._events) and self._events[place][0] <= told:
                        _, key, item = self._events[place]
                        frame[key].append(item)
                        place += 1
                    last = told == now
                    yield _event("frame", frame | {"now": now} | (self._facts(now) if last else {}))
                await asyncio.sleep(FRAME)
            self.break_off = False
        finally:
            self.closed.put(None)

    def _facts(self, now: float) -> dict[str, Any]:
        wave = now % 7 / 7
        tiles = {"bubble": 0.1 + 0.1 * wave, "imbalance": 1.18, "tokens_in_per_s": 900 * wave, "running": 6}
        tiles |= {"tokens_out_per_s": 90 + 20 * wave, "waiting": int(4 * wave), "free_blocks": 500 - int(90 * wave)}
        tiles |= {"num_blocks": 512, "preemptions": 2, "last_step_age_s": [0.012] * self.stages}
        requests = [
            {
                "id": name,
                "status": "RUNNING",
                "where": f"stage {place % self.stages}, batch {int(now * 10)}",
                "prompt_tokens": 64 * (place + 1),
                "cached_tokens": 16 * place,
                "output_tokens": int(now * 5) % 100,
                "age_s": now % 20,
                "label": "mine" if place == 0 else None,
            }
            for place, name in enumerate(REQUESTS if self._events else [])
            if name not in self.aborted
        ]
        return {"now": now, "tiles": tiles, "requests": requests, "dropped": 0}

    def _now(self) -> float:
        return time.monotonic() - self._began


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status)
