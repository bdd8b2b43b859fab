"""What `paceline complete` and `paceline chat` share: a streamed answer from a running server, printed as it comes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from paceline.cli.values import count, number
from paceline.errors import PacelineError

DEFAULT_URL = "http://127.0.0.1:8000"


class ServerError(PacelineError):
    """The server cannot be reached, or refused the request."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", "-q", metavar="TEXT", help="send this text, print the answer, and end")
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's address [%(default)s]")
    parser.add_argument("--model", help="which model; not given: the first that the server names")
    parser.add_argument("--api-key", default=os.environ.get("PACELINE_API_KEY"), help="or PACELINE_API_KEY")
    parser.add_argument("--max-tokens", metavar="N", default="256", help="most tokens of an answer [%(default)s]")
    parser.add_argument("--temperature", metavar="X", help="0: always the most likely token")


class Talk:
    """One conversation with a server.

    Raises:
        ConfigError: an option is no such number.
        ServerError: from every method.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        base = args.url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
        self.url = base
        self._client = httpx.Client(base_url=base, headers=headers, timeout=httpx.Timeout(None, connect=5.0))
        self._fields: dict[str, Any] = {"max_tokens": count("max_tokens", args.max_tokens), "stream": True}
        if args.temperature is not None:
            self._fields["temperature"] = number("temperature", args.temperature, 0)
        self._fields["model"] = args.model or self._first_model()

    def _first_model(self) -> str:
        try:
            reply = self._client.get("/v1/models")
        except httpx.HTTPError as error:
            raise ServerError(
                f"no server at {self.url} ({error}); start one with `paceline serve`, or give its --url"
            ) from error
        if reply.status_code != 200:
            raise ServerError(_message(reply.text))
        return str(reply.json()["data"][0]["id"])

    def answer(self, path: str, **fields: Any) -> Iterator[str]:
        """The pieces of one streamed answer."""
        try:
            with self._client.stream("POST", path, json=self._fields | fields) as reply:
                if reply.status_code != 200:
                    raise ServerError(_message(reply.read().decode()))
                for line in reply.iter_lines():
                    if line.startswith("data:") and line != "data: [DONE]":
                        yield _text(json.loads(line[5:]))
        except httpx.HTTPError as error:
            raise ServerError(f"the server at {self.url} went away ({error})") from error

    def print_answer(self, path: str, **fields: Any) -> str:
        """Print an answer as it comes; returns the whole of it."""
        pieces = []
        for piece in self.answer(path, **fields):
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        return "".join(pieces)


def _text(event: dict[str, Any]) -> str:
    if "error" in event:
        raise ServerError(event["error"]["message"])
    choice = event["choices"][0] if event.get("choices") else {}
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:500]


def lines(prompt: str) -> Iterator[str]:
    """What the user types, line by line, until end of input."""
    while True:
        try:
            line = input(prompt if sys.stdin.isatty() else "")
        except EOFError:
            return
        if line.strip():
            yield line
