"""A record that `--trace-file` wrote, as something to simulate by: its times, its requests, its server's options."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path

from paceline.errors import ConfigError
from paceline.simulate.loads import SimulatedRequest
from paceline.simulate.served import Served, served, served_load
from paceline.trace.events import Facts
from paceline.trace.file import read_history


class Record:
    """A trace file and its older part.

    Raises:
        TraceFileError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._history = read_history(path)

    @property
    def facts(self) -> Facts:
        """How the server was set up."""
        return self._history.facts

    @property
    def loops_back(self) -> bool:
        return self.facts.depth > self.facts.stages

    @cached_property
    def served(self) -> Served:
        """How long things took.

        Raises:
            ConfigError: too little is on record.
        """
        try:
            return served(self._history)
        except ValueError as error:
            raise ConfigError("cost", str(self._path), str(error), "Serve for longer with --trace-file.") from None

    @cached_property
    def load(self) -> list[SimulatedRequest]:
        """The requests that came and ended.

        Raises:
            ConfigError: there are none.
        """
        if not (requests := served_load(self._history)):
            problem = "has no request on record that ended"
            raise ConfigError("load", str(self._path), problem, "Serve for longer with --trace-file.")
        return requests


@cache
def read_record(path: Path) -> Record:
    """Read it once, however many options name it."""
    return Record(path)


def is_record(path: Path) -> bool:
    """Whether the file begins as a record does, with an array; profiles and loads begin with an object."""
    try:
        with path.open("rb") as file:
            return file.read(1) == b"["
    except OSError:
        return False
