"""The HTTP application: routes, access and one way of telling errors."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import paceline
from paceline.errors import EngineDeadError, RequestError
from paceline.server.access import HostGuard, Keys
from paceline.server.errors import as_request_error, error_body, error_headers
from paceline.server.http_metrics import HttpMetrics
from paceline.server.openai_routes import add_openai_routes
from paceline.server.page_routes import add_page_routes
from paceline.server.service_routes import add_health_routes, add_model_routes
from paceline.server.state import ServerState
from paceline.server.trace_routes import add_trace_routes


def build_app(state: ServerState) -> FastAPI:
    """The application over `state`. No pages made by the framework: they would load scripts from elsewhere."""
    keys = Keys(state.config.api_key, state.config.admin_api_key)
    app = FastAPI(
        title="Paceline",
        version=paceline.__version__,
        openapi_url=None,
        dependencies=[Depends(keys.require)],
        redirect_slashes=False,
    )
    for add_routes in (add_openai_routes, add_health_routes, add_model_routes, add_trace_routes):
        add_routes(app, state)
    add_page_routes(app)
    for kind in (RequestError, EngineDeadError, Exception):
        app.add_exception_handler(kind, _tell)
    app.add_exception_handler(HTTPException, _tell_http)
    app.add_middleware(HostGuard, host=state.config.host, allowed=state.config.allowed_hosts)
    app.add_middleware(HttpMetrics, metrics=state.metrics)  # the outermost: it also sees what the guard refuses
    return app


async def _tell(_: Request, error: Exception) -> Response:
    told = as_request_error(error)
    return Response(error_body(told), told.status, error_headers(told.status))


async def _tell_http(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such path, wrong method."""
    assert isinstance(error, HTTPException)
    texts = {404: "There is no such endpoint.", 405: "This endpoint does not take this method."}
    codes = {404: "not_found", 405: "method_not_allowed"}
    status = error.status_code
    return await _tell(
        request,
        RequestError(
            texts.get(status, "The request cannot be served."), status=status, code=codes.get(status, "invalid_request")
        ),
    )
