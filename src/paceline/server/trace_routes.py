"""Routes that answer from the record: what a batch held, how a request fared, what happens now; and one that ends a request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from itertools import islice

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from paceline.errors import RequestError
from paceline.server.access import Caller, admin, owner
from paceline.server.service_routes import json_response
from paceline.server.state import Served, ServerState
from paceline.trace.answers import answer_batch, answer_request
from paceline.trace.perfetto import MAX_SECONDS, trace_json

MAX_DIGITS = 18  # of a batch number; Python refuses to read very long ones with an error of its own
PIECES_AT_ONCE = 200  # events, about a millisecond of work

_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def add_trace_routes(app: FastAPI, state: ServerState) -> None:
    """Add them; an API key finds only its own requests."""

    @app.get("/v1/requests/{request_id}/timeline")
    @owner
    async def timeline(request: Request, request_id: str) -> Response:
        served, caller = state.require_ready(), _caller(request)
        history = await served.engine.trace.catch_up()
        answer = answer_request(history, request_id, caller.may_see, lambda ids: _text(served, list(ids)))
        if answer is None:
            raise _unknown("There is no request of this id on record.")
        return json_response(answer)

    @app.get("/batches/{number}")
    @owner
    async def batch(request: Request, number: str) -> Response:
        served, caller = state.require_ready(), _caller(request)
        history = await served.engine.trace.catch_up()
        is_number = number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS
        answer = answer_batch(history, int(number), caller.may_see) if is_number else None
        if answer is None:
            raise _unknown("There is no batch of this number on record.")
        return json_response(answer)

    @app.get("/trace")
    @admin
    async def trace(request: Request) -> Response:
        seconds = _seconds(request)
        history = await state.require_ready().engine.trace.catch_up()
        headers = {"content-disposition": 'attachment; filename="paceline-trace.json"'}
        return StreamingResponse(
            _yielding(trace_json(history, seconds)), media_type="application/json", headers=headers
        )

    @app.post("/v1/requests/{request_id}/abort")
    @owner
    async def abort(request: Request, request_id: str) -> Response:
        served, caller = state.require_ready(), _caller(request)
        live = [name for name in state.engine_ids if name == request_id or name.rpartition("-")[0] == request_id]
        mine = [name for name in live if caller.may_see(state.engine_ids[name])]
        if not mine:
            raise _unknown("There is no such request, or it has ended.")
        served.engine.abort(mine)
        return json_response({"id": request_id, "aborted": True})

    @app.get("/monitor/stream")
    @admin
    async def monitor() -> Response:
        served = state.require_ready()
        events = state.monitor.watch(served.engine.trace, served.names[0])
        first = await anext(events)  # what can be refused has a status of its own

        async def stream() -> AsyncGenerator[bytes, None]:
            yield first
            async with aclosing(events):
                async for data in events:
                    yield data

        return StreamingResponse(stream(), media_type="text/event-stream", headers=_STREAM_HEADERS)


def _seconds(request: Request) -> float:
    given = request.query_params.get("seconds", "10")
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_SECONDS:
        raise RequestError(
            f"seconds must be a number above 0, at most {MAX_SECONDS:g}.", code="out_of_range", param="seconds"
        )
    return seconds


async def _yielding(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Some pieces at a time, so that streams of tokens go on in between."""
    for some in batched(pieces, PIECES_AT_ONCE):
        yield b"".join(some)
        await asyncio.sleep(0)


def batched(pieces: Iterator[bytes], count: int) -> Iterator[list[bytes]]:
    """Lists of `count` pieces; the last may be shorter."""
    while some := list(islice(pieces, count)):
        yield some


def _caller(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def _text(served: Served, ids: list[int]) -> str:
    return served.tokenizer.decode(ids, skip_special_tokens=False)


def _unknown(text: str) -> RequestError:
    return RequestError(text, status=404, code="not_found")
