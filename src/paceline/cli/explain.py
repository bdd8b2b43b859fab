"""`paceline explain`: what happened to a request, or what was in a batch and why the rest was not.

The record is asked of a running server, or read from the file that `--trace-file` wrote. Requests are named by the id that
their response carries.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from paceline.cli.talk import DEFAULT_URL, ServerError
from paceline.cli.values import count
from paceline.errors import ConfigError, PacelineError
from paceline.trace.answers import answer_batch, answer_request
from paceline.trace.file import read_history


class NotOnRecord(PacelineError):
    """What was asked about is not there (any more)."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "explain", help="tell what happened to a request, or what was in a batch", description=__doc__
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--request", metavar="ID", help="the id that its response carries")
    what.add_argument("--batch", metavar="N", help="the batch's number, from 0")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", default=DEFAULT_URL, help="the server's address [%(default)s]")
    where.add_argument("--trace", metavar="FILE", type=Path, help="a file written by --trace-file")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("PACELINE_ADMIN_API_KEY") or os.environ.get("PACELINE_API_KEY"),
        help="the server's admin key, or one's own (or PACELINE_ADMIN_API_KEY, PACELINE_API_KEY)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the answer.

    Raises:
        ConfigError: that can be the name of no request, or the number of no batch.
        PacelineError: there is no record where it was looked for, or nothing of that name on it.
    """
    if args.batch is not None:
        args.batch = count("batch", args.batch, low=0)
    elif not args.request.strip():
        raise ConfigError("request", args.request, "is empty", "Give the id that a response carries.")
    answer = _from_file(args) if args.trace is not None else _from_server(args)
    text = answer.pop("text")
    if args.json:
        text = msgspec.json.format(msgspec.json.encode(answer)).decode()
    sys.stdout.write(text + "\n")
    return 0


def _from_file(args: argparse.Namespace) -> dict[str, Any]:
    history = read_history(args.trace)
    if args.batch is not None:
        answer: Any = answer_batch(history, args.batch, lambda owner: True)
    else:
        answer = answer_request(history, args.request, lambda owner: True)
    if answer is None:
        raise NotOnRecord(f"{args.trace} has no such {'batch' if args.batch is not None else 'request'}")
    result: dict[str, Any] = msgspec.to_builtins(answer)
    return result


def _from_server(args: argparse.Namespace) -> dict[str, Any]:
    base = args.url.rstrip("/").removesuffix("/v1")
    path = (
        f"/batches/{args.batch}" if args.batch is not None else f"/v1/requests/{quote(args.request, safe='')}/timeline"
    )
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    try:
        reply = httpx.get(base + path, headers=headers, timeout=60)
        answer: dict[str, Any] = reply.json()
    except (httpx.HTTPError, ValueError) as error:
        raise ServerError(f"no Paceline server at {base} ({error}); give its --url, or a --trace file") from error
    if reply.status_code != 200:
        raise NotOnRecord(str(answer["error"]["message"]))
    return answer
