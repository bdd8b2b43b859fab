"""Starts `paceline serve` as a user would, and ends it by its process id."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

START_SECONDS = 120.0


class Server:
    """A running server: its address, its process and what it has logged so far."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", "serve", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        self.log = ""
        self.url = ""

    def read_until(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        """Wait for a line of the log.

        Raises:
            AssertionError: the server ended first, or the time is over.
        """
        assert self.process.stderr is not None
        descriptor = self.process.stderr.fileno()
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.log)) is None:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} within {seconds} s:\n{self.log}"
            data = os.read(descriptor, 65536)
            assert data, f"the server ended before {pattern!r}:\n{self.log}"
            self.log += data.decode()
        return found

    def wait(self, seconds: float = 30.0) -> int:
        """Its exit code; reads the rest of the log."""
        assert self.process.stderr is not None
        code = self.process.wait(seconds)
        self.log += self.process.stderr.read().decode()
        return code


@contextmanager
def serve(*arguments: str, ready: bool = True) -> Iterator[Server]:
    """A server with these options; when the block ends it is told to stop, and nothing of it may be left."""
    server = Server([*arguments])
    try:
        if ready:
            server.url = server.read_until(r"Paceline is ready: (\S+)/v1").group(1)
        yield server
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGTERM)
            try:
                server.process.wait(20)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
        assert server.process.stderr is not None
        server.process.stderr.close()
