"""`paceline trace`: what the pipeline did, as a file for Perfetto (ui.perfetto.dev), which reads it in your browser.

The record is asked of a running server, or read from the file that `--trace-file` wrote.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec

from paceline.cli.talk import DEFAULT_URL, ServerError
from paceline.cli.values import number
from paceline.errors import ConfigError
from paceline.trace.file import read_history
from paceline.trace.perfetto import MAX_SECONDS, trace_json


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "trace", help="save what the pipeline did as a file for Perfetto", description=__doc__
    )
    parser.add_argument("--output", "-o", metavar="FILE", type=Path, required=True, help="where the trace goes")
    parser.add_argument("--seconds", metavar="N", default="10", help="how far to look back [%(default)s]")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", default=DEFAULT_URL, help="the server's address [%(default)s]")
    where.add_argument("--trace", metavar="FILE", type=Path, help="a file written by --trace-file")
    parser.add_argument(
        "--api-key", default=os.environ.get("PACELINE_ADMIN_API_KEY"), help="the admin key, or PACELINE_ADMIN_API_KEY"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file; says where it is.

    Raises:
        ConfigError: it cannot be written, or the seconds are no number.
        PacelineError: there is no record where it was looked for.
    """
    seconds = number("seconds", args.seconds, 0, MAX_SECONDS, above=True)
    with ExitStack() as stack:
        pieces = _from_file(args.trace, seconds) if args.trace else _from_server(args, seconds, stack)
        size = _write(args.output, pieces)
    sys.stdout.write(f"{args.output}: {size / 1e6:.1f} MB; open it at ui.perfetto.dev\n")
    return 0


def _from_file(path: Path, seconds: float) -> Iterator[bytes]:
    return trace_json(read_history(path), seconds)


def _from_server(args: argparse.Namespace, seconds: float, stack: ExitStack) -> Iterator[bytes]:
    base = args.url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    try:
        reply = stack.enter_context(
            httpx.stream("GET", f"{base}/trace", params={"seconds": seconds}, headers=headers, timeout=60)
        )
        if reply.status_code != 200:
            raise ServerError(f"{base} does not give its record: {_message(reply.read())}")
    except httpx.HTTPError as error:
        raise ServerError(f"no Paceline server at {base} ({error}); give its --url, or a --trace file") from error
    return reply.iter_bytes()


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _write(path: Path, pieces: Iterator[bytes]) -> int:
    """Write beside the target and move it there when it is whole; the number of bytes."""
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            size = sum(map(file.write, pieces))
        partial.replace(path)
    except OSError as error:
        raise ConfigError("output", str(path), f"cannot be written ({error.strerror})", "Name another file.") from None
    except httpx.HTTPError as error:
        raise ServerError(f"the server went away ({error})") from error
    finally:
        partial.unlink(missing_ok=True)
    return size
