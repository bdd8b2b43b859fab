"""The program that renders chat templates, apart from the server so that it can be killed.

A template comes from a model's files, or, where that is switched on, from a client. Jinja's sandbox keeps it
from Python's insides, not from looping for ever or filling the memory. So it runs in here, with limits on CPU
time, memory and output, and whoever waits for it kills it when it is late.

Protocol on stdin and stdout: a 4-byte big-endian length, then that much JSON. A request is rendered and
answered before the next is read; end of input ends the program.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT_CHARACTERS = 32 * 1024 * 1024
EXTRA_MEMORY_BYTES = 512 * 1024 * 1024
CPU_SECONDS = 10
_LENGTH = struct.Struct(">I")
_ADDRESS = re.compile(r"0x[0-9A-Fa-f]{6,}")


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's words for training; here it is no more than a block."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter: no HTML escapes, since a prompt is no page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    """The dialect that Hugging Face's templates are written in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


_ENVIRONMENT = _environment()


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)


def render(source: str, variables: dict[str, Any]) -> str:
    """Render a template.

    Raises:
        jinja2.TemplateError: bad syntax, an operation the sandbox forbids, too much output, or the template's own
            ``raise_exception``.
    """
    pieces: list[str] = []
    size = 0
    for piece in _compiled(source).generate(variables):
        size += len(piece)
        if size > MAX_OUTPUT_CHARACTERS:
            raise jinja2.TemplateError(f"the prompt is longer than {MAX_OUTPUT_CHARACTERS} characters")
        pieces.append(piece)
    return "".join(pieces)


def answer(request: bytes) -> bytes:
    """One request in, one answer out: ``{"text": …}`` or ``{"error": …}``."""
    try:
        asked = json.loads(request)
        reply = {"text": render(asked["template"], asked["variables"])}
    except jinja2.TemplateError as error:
        reply = {"error": error.message or type(error).__name__}
    except MemoryError:
        reply = {"error": "it needs too much memory"}
    except Exception as error:
        # Mostly a conversation that the template is not made for, such as content that is no text.
        reply = {"error": f"{type(error).__name__}: {error}"}
    if "error" in reply:
        reply["error"] = _ADDRESS.sub("0x…", reply["error"])[:500]
    return json.dumps(reply).encode("ascii")


def read_frame(read_exactly: Callable[[int], bytes]) -> bytes:
    """Read one frame; `read_exactly(n)` returns n bytes or raises EOFError."""
    (length,) = _LENGTH.unpack(read_exactly(_LENGTH.size))
    return read_exactly(length)


def frame(payload: bytes) -> bytes:
    """The payload with its length before it."""
    return _LENGTH.pack(len(payload)) + payload


def _limit_memory() -> None:
    import resource

    with suppress(OSError, ValueError):
        with open("/proc/self/statm", "rb") as statm:
            pages = int(statm.read().split()[0])
        limit = pages * resource.getpagesize() + EXTRA_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_cpu() -> None:
    """Allow this much CPU from now on: a last resort, should nobody be left to kill this program."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + CPU_SECONDS + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """Serve until the input ends."""

    def read_exactly(size: int) -> bytes:
        data = source.read(size)
        if len(data) < size:
            raise EOFError
        return data

    _limit_memory()
    with suppress(EOFError):
        while True:
            request = read_frame(read_exactly)
            _limit_cpu()
            sink.write(frame(answer(request)))
            sink.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
