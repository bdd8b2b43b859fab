"""Routes about the server and the model: health, models, version, metrics, tokens."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

import paceline
from paceline.errors import RequestError
from paceline.server.access import public, user
from paceline.server.body import read_object
from paceline.server.openai_routes import check_model
from paceline.server.prompts import chat_prompt, encode
from paceline.server.protocol import DetokenizeRequest, TokenizeRequest, parse
from paceline.server.state import Served, ServerState


def json_response(value: Any) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def health_routes(state: ServerState) -> APIRouter:
    """Open to load balancers: no key needed, nothing secret told."""
    router = APIRouter()

    @router.get("/health")
    @router.get("/health/ready")
    @router.get("/ping")
    @public
    async def ready() -> Response:
        """200 when requests are served, else 503 with the reason."""
        state.require_ready()
        return json_response({"status": "ok"})

    @router.get("/health/live")
    @public
    async def live() -> Response:
        """200 as long as the event loop answers."""
        return json_response({"status": "ok"})

    @router.get("/version")
    @public
    async def version() -> Response:
        return json_response({"version": paceline.__version__})

    @router.get("/metrics")
    @public
    async def metrics() -> Response:
        return Response(state.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    return router


def model_routes(state: ServerState) -> APIRouter:
    """What is served, and its tokens."""
    router = APIRouter()

    @router.get("/v1/models")
    @user
    async def models() -> Response:
        served = state.require_ready()
        return json_response({"object": "list", "data": [_card(name, served, state) for name in served.names]})

    @router.get("/v1/models/{model:path}")
    @user
    async def model(model: str) -> Response:
        served = state.require_ready()
        check_model(model, served)
        return json_response(_card(model, served, state))

    @router.post("/tokenize")
    @user
    async def tokenize(request: Request) -> Response:
        served = state.require_ready()
        body = await read_object(request, state.config.max_request_bytes)
        return json_response(await _tokenize(parse(body, TokenizeRequest, state.unknown_fields), served))

    @router.post("/detokenize")
    @user
    async def detokenize(request: Request) -> Response:
        served = state.require_ready()
        data = await read_object(request, state.config.max_request_bytes)
        body = parse(data, DetokenizeRequest, state.unknown_fields)
        check_model(body.model, served)
        return json_response({"prompt": served.tokenizer.decode(body.tokens, skip_special_tokens=False)})

    return router


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
        ids = await encode(body.prompt, served, body.add_special_tokens is not False)
    else:
        ids = await chat_prompt(body, served)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": served.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        strings = [served.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]
        answer["token_strs"] = strings
    return answer
