"""Reading a request's body: JSON, bounded, and nothing else."""

from __future__ import annotations

import math
from typing import Any

from starlette.requests import ClientDisconnect, Request

from paceline.errors import RequestError
from paceline.sampling_params import LIMITS
from paceline.server.protocol import decode_object

_LABEL_LENGTH = 64


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object in the body, of at most `limit` bytes.

    Raises:
        RequestError: 415 for another content type or a content encoding, 413 when too large, 400 for bad JSON.
    """
    # Web pages can post other content types across sites without asking; nobody else needs to.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError("Content-Type must be application/json.", status=415, code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError("Content-Encoding is not accepted.", status=415, code="unsupported_media_type")
    too_large = RequestError(
        f"The body is larger than {limit} bytes (--max-request-bytes).", status=413, code="request_too_large"
    )
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise too_large
            parts.append(part)
    except ClientDisconnect:
        raise RequestError("The client went away.", status=400) from None
    return decode_object(b"".join(parts))


def timeout_of(request: Request) -> float | None:
    """Seconds that the client gives the whole request, by its header `X-Request-Timeout`; None: no limit.

    Raises:
        RequestError: no such number.
    """
    given = request.headers.get("x-request-timeout")
    if given is None:
        return None
    limit = LIMITS["timeout"]
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not limit.low <= seconds <= limit.high:
        raise RequestError(
            f"X-Request-Timeout must be a number of seconds from {limit.low:g} to {limit.high:g}.",
            code="out_of_range",
            param="X-Request-Timeout",
        )
    return seconds


def label_of(request: Request) -> str:
    """The client's own name for the request, for logs; never used to find anything."""
    given = request.headers.get("x-request-id", "")[:_LABEL_LENGTH]
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in given)
