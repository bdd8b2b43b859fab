"""Routes about the server and the model: health, models, version, metrics, tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

import paceline
from paceline.errors import RequestError
from paceline.server.access import public, user
from paceline.server.body import read_object
from paceline.server.openai_routes import check_model
from paceline.server.prompts import chat_text, check_token_ids, tokens_of
from paceline.server.protocol import DetokenizeRequest, TokenizeRequest, parse
from paceline.server.state import Served, ServerState

PROBES = ["GET", "HEAD"]  # some load balancers ask by HEAD


def json_response(value: Any) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def add_health_routes(app: FastAPI, state: ServerState) -> None:
    """Add what is open to load balancers: no key needed, nothing secret told."""

    @app.api_route("/health", methods=PROBES)
    @app.api_route("/health/ready", methods=PROBES)
    @app.api_route("/ping", methods=PROBES)
    @public
    async def ready() -> Response:
        """200 when requests are served, else 503 with the reason."""
        state.require_ready()
        return json_response({"status": "ok"})

    @app.api_route("/health/live", methods=PROBES)
    @public
    async def live() -> Response:
        """200 as long as the event loop answers."""
        return json_response({"status": "ok"})

    @app.get("/version")
    @public
    async def version() -> Response:
        return json_response({"version": paceline.__version__})

    @app.get("/metrics")
    @public
    async def metrics() -> Response:
        await state.follow_pipeline()
        return Response(state.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})


def add_model_routes(app: FastAPI, state: ServerState) -> None:
    """Add what is served, and its tokens."""

    @app.get("/v1/models")
    @user
    async def models() -> Response:
        served = state.require_ready()
        return json_response({"object": "list", "data": [_card(name, served, state) for name in served.names]})

    @app.get("/v1/models/{model:path}")
    @user
    async def model(model: str) -> Response:
        served = state.require_ready()
        check_model(model, served)
        return json_response(_card(model, served, state))

    @app.post("/tokenize")
    @user
    async def tokenize(request: Request) -> Response:
        served = state.require_ready()
        body = await read_object(request, state.config.max_request_bytes)
        return json_response(await _tokenize(parse(body, TokenizeRequest, state.unknown_fields), served))

    @app.post("/detokenize")
    @user
    async def detokenize(request: Request) -> Response:
        served = state.require_ready()
        data = await read_object(request, state.config.max_request_bytes)
        body = parse(data, DetokenizeRequest, state.unknown_fields)
        check_model(body.model, served)
        check_token_ids(body.tokens, served, "tokens")
        # In a thread: however long it is, other requests go on meanwhile.
        text = await asyncio.to_thread(served.tokenizer.decode, body.tokens, skip_special_tokens=False)
        return json_response({"prompt": text})


def _card(name: str, served: Served, state: ServerState) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "paceline",
        "root": served.names[0],
        "max_model_len": served.info.max_model_len,
        "default_sampling_params": served.defaults,
    }


async def _tokenize(body: TokenizeRequest, served: Served) -> dict[str, Any]:
    check_model(body.model, served)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Give either prompt or messages.", param="prompt")
    if body.prompt is not None:
        ids = await tokens_of(body.prompt, served, body.add_special_tokens is not False, "prompt")
    else:
        ids = await tokens_of(await chat_text(body, served), served, bool(body.add_special_tokens), "messages")
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": served.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        strings = [served.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]
        answer["token_strs"] = strings
    return answer
