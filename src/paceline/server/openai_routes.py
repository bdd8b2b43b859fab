"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import time

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from paceline.engine.choice import Choice
from paceline.errors import RequestError
from paceline.server.access import user
from paceline.server.answer import Answer, Sender, send_stream, send_whole
from paceline.server.body import label_of, read_object, timeout_of
from paceline.server.generation import Generation, Origin
from paceline.server.logprobs import TokenNames
from paceline.server.prompts import chat_prompt, completion_prompts
from paceline.server.protocol import ChatRequest, CompletionRequest, parse
from paceline.server.sampling import sampling_for
from paceline.server.shapes import ChatShape, CompletionShape, Shape
from paceline.server.spans import traced
from paceline.server.state import Served, ServerState

Body = CompletionRequest | ChatRequest


def add_openai_routes(app: FastAPI, state: ServerState) -> None:
    """Add the routes that generate text."""

    @app.post("/v1/completions")
    @user
    async def completions(request: Request) -> Response:
        return await _answer(state, request, CompletionRequest, CompletionShape)

    @app.post("/v1/chat/completions")
    @user
    async def chat_completions(request: Request) -> Response:
        return await _answer(state, request, ChatRequest, ChatShape)


async def _answer(state: ServerState, request: Request, kind: type[Body], shape_kind: type[Shape]) -> Response:
    arrival, timeout = time.perf_counter(), timeout_of(request)
    deadline = None if timeout is None else arrival + timeout
    served = state.require_ready()
    body = parse(await read_object(request, state.config.max_request_bytes), kind, state.unknown_fields)
    check_model(body.model, served)
    _check_options(state, body)
    names = TokenNames(served.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
    shape = shape_kind(body, served.names[0], names, state.config.enable_force_include_usage)

    async def work(sender: Sender) -> None:
        served.engine.check_queue()  # before any work is spent on it
        choices = await _choices(body, served, shape.id, state.engine_config.max_num_queued_reqs)
        state.require_ready()  # reading and tokenizing took time
        origin = Origin(body.priority or 0, _cache_salt(request, body), label_of(request), request.state.caller.owner)
        generation = Generation(state, choices, origin, deadline)
        trace = served.engine.trace
        async with traced(state.spans, request.headers, arrival, shape.id, served.names[0], generation, trace):
            if body.stream:
                await send_stream(sender, generation, shape, state.config.sse_keep_alive)
            else:
                await send_whole(sender, generation, shape)

    return Answer(state, shape.id, label_of(request), work)


async def _choices(body: Body, served: Served, request_id: str, queue_size: int) -> list[Choice]:
    """One choice per prompt, everything about it checked.

    Raises:
        RequestError: whatever is wrong with the request.
    """
    if isinstance(body, CompletionRequest):
        prompts = await completion_prompts(body, served)
    else:
        prompts = [await chat_prompt(body, served)]
    if len(prompts) > queue_size:
        raise RequestError(
            f"prompt has {len(prompts)} items, and the queue has room for {queue_size}.",
            code="out_of_range",
            param="prompt",
        )
    return [
        Choice(
            index,
            request_id if len(prompts) == 1 else f"{request_id}-{index}",
            prompt,
            sampling_for(body, served.defaults, served.info, served.vocab_size, len(prompt)),
            served.tokenizer,
        )
        for index, prompt in enumerate(prompts)
    ]


def check_model(model: str | None, served: Served) -> None:
    """A request may leave the model out, but not ask for another one.

    Raises:
        RequestError: 404.
    """
    if model is not None and model not in served.names:
        raise RequestError(
            f"This model is not served here; served: {', '.join(served.names)}.",
            status=404,
            code="model_not_found",
            param="model",
        )


def _check_options(state: ServerState, body: Body) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true.", param="stream_options")
    if body.priority and state.engine_config.scheduling_policy != "priority":
        raise RequestError(
            "priority needs a server with --scheduling-policy priority.", code="unsupported", param="priority"
        )


def _cache_salt(request: Request, body: Body) -> str:
    """Requests share cached prefixes only within one salt."""
    scope, salt = request.state.caller.key_scope, body.cache_salt or ""
    return f"{scope}:{salt}" if scope else salt
