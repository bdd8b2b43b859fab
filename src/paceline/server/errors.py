"""One renderer for every error that a client sees."""

from __future__ import annotations

import logging
import secrets

import msgspec

from paceline.errors import EngineDeadError, RequestError

logger = logging.getLogger(__name__)

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "TimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}
# Clients wait this many seconds before they try again.
RETRY_AFTER = {429: "1", 503: "2"}


def as_request_error(error: BaseException) -> RequestError:
    """What a client is told of `error`. Unexpected ones get a fixed text and an id that the log explains."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineDeadError):
        return RequestError("The engine has stopped; the server ends.", status=503, code="engine_dead")
    error_id = secrets.token_hex(4)
    logger.error("error %s: %s", error_id, type(error).__name__, exc_info=error)
    return RequestError(f"Internal error {error_id}; the server's log explains it.", status=500, code="engine_error")


def deadline_passed() -> RequestError:
    """The answer to a request whose time was over before the client saw anything of it."""
    return RequestError("The deadline passed.", status=408, code="deadline_exceeded")


def error_body(error: RequestError) -> bytes:
    """The JSON object of an error."""
    return msgspec.json.encode(
        {
            "error": {
                "message": str(error),
                "type": _TYPES.get(error.status, "InternalServerError"),
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_headers(status: int) -> dict[str, str]:
    """Headers that go with an error of this status."""
    headers = {"content-type": "application/json"}
    if status in RETRY_AFTER:
        headers["retry-after"] = RETRY_AFTER[status]
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def error_events(error: RequestError) -> bytes:
    """An error inside a stream, and the stream's end."""
    return b"data: " + error_body(error) + b"\n\ndata: [DONE]\n\n"
