"""`paceline top`: the live pipeline of a running server, in a terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline.cli.monitor_stream import KEPT_SECONDS, Hello, Record, Refused, read
from paceline.cli.talk import DEFAULT_URL, ServerError
from paceline.cli.top_view import picture
from paceline.cli.values import number

LEAST_SECONDS = 0.1  # that the lanes show
_AGAIN_SECONDS = 1.0
_WIDTH_WITHOUT_TERMINAL = 100
_HEIGHT_WITHOUT_TERMINAL = 60


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "top", help="watch the pipeline of a running server in the terminal", description=__doc__
    )
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's address [%(default)s]")
    key = os.environ.get("PACELINE_ADMIN_API_KEY")
    parser.add_argument("--api-key", default=key, help="the admin key, or PACELINE_ADMIN_API_KEY")
    parser.add_argument("--seconds", metavar="N", default="2", help="how much time the lanes show [%(default)s]")
    parser.add_argument("--once", action="store_true", help="print one picture and end; so it is without a terminal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Watch until told to stop.

    Raises:
        ConfigError: the seconds are no such number.
        ServerError: with `--once`, when there is no such server.
        Refused: the server wants another key.
    """
    url = args.url.rstrip("/").removesuffix("/v1")
    top = _Top(url, args.api_key, number("seconds", args.seconds, LEAST_SECONDS, KEPT_SECONDS))
    if args.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        asyncio.run(top.once())
    else:
        asyncio.run(top.watch())
    return 0


class _Top:
    def __init__(self, url: str, key: str | None, seconds: float) -> None:
        self._url, self._key, self._seconds = url, key, seconds
        self._record: Record | None = None
        self._paused = False
        self._state = f"connecting to {url}"
        self._quit = asyncio.Event()
        self._changed = asyncio.Event()

    async def once(self) -> None:
        """Print what the first frames tell: they hold the minute before."""
        record: Record | None = None
        async for event in read(self._url, self._key):
            if isinstance(event, Hello):
                record = Record(event)
            elif record is not None:
                record.add(event)
                if event.tiles is not None and event.now >= record.hello.now:  # the minute before is told
                    break
        if record is None or record.tiles is None:
            raise ServerError(f"{self._url} told nothing")
        console = Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
        console.print(picture(record, console.width, _HEIGHT_WITHOUT_TERMINAL, self._seconds, self._url))

    async def watch(self) -> None:
        """Draw each frame until the reader quits."""
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signal_number, self._quit.set)
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        console = Console()
        with _keys_at_once(), Live(Text(self._state), console=console, screen=True, auto_refresh=False) as live:
            loop.add_reader(sys.stdin, self._on_key)
            listening = asyncio.create_task(self._listen())
            drawing = asyncio.create_task(self._draw(console, live))
            quitting = asyncio.create_task(self._quit.wait())
            tasks = {listening, drawing, quitting}
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                loop.remove_reader(sys.stdin)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # raises what made it end

    async def _listen(self) -> None:
        """Read the server's stream, again and again."""
        while True:
            record: Record | None = None
            try:
                async for event in read(self._url, self._key):
                    if isinstance(event, Hello):
                        record = Record(event)
                    elif record is not None:
                        record.add(event)
                    if not self._paused:
                        self._record, self._state = record, "live"
                        self._changed.set()
                self._state = f"{self._url} has ended the stream"
            except ServerError as error:
                self._state = str(error)
            self._changed.set()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _draw(self, console: Console, live: Live) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            state = "paused" if self._paused else self._state
            if self._record is None:
                live.update(Text(state), refresh=True)
            else:
                width, height = console.size
                live.update(picture(self._record, width, height, self._seconds, state), refresh=True)

    def _on_key(self) -> None:
        keys = os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace")
        for key in keys or "q":  # the terminal is gone
            if key in "qQ\x03\x04":
                self._quit.set()
            elif key == " ":
                self._paused = not self._paused
            elif key in "+=":
                self._seconds = max(self._seconds / 2, LEAST_SECONDS)
            elif key in "-−":
                self._seconds = min(self._seconds * 2, KEPT_SECONDS)
        self._changed.set()


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Keys arrive without Enter and are not shown; afterwards the terminal is as before."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


__all__ = ["Refused", "add_parser", "run"]
