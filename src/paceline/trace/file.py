"""`--trace-file`: the record on disk, one event per line, in two files of limited size that take turns."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline.errors import ConfigError, PacelineError
from paceline.trace.history import History

logger = logging.getLogger(__name__)


class TraceFileError(PacelineError):
    """A trace file cannot be read."""


class TraceFile:
    """Appends to PATH; when it has reached its size it becomes PATH.1, and a new PATH begins at a page of the record.

    What was written is with the operating system: it survives the end of this process, however that comes. A disk that
    fails ends the file, never the engine.

    Args:
        max_bytes: about how large each of the two files gets.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._size = 0
        self._fd: int | None = None
        if path.exists() and not path.is_file():  # a folder or a device would be moved away
            raise ConfigError("trace_file", str(path), "is no regular file", "Name another file.")
        try:
            if path.exists():  # of an earlier run, which may be the interesting one
                path.replace(older(path))
            self._open()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError("trace_file", str(path), f"cannot be written: {reason}", "Name another file.") from error

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)  # it tells who asked what when
        self._size = 0

    def write(self, lines: bytes) -> None:
        """Append whole lines."""
        view = memoryview(lines)
        while view and self._fd is not None:
            try:
                written = os.write(self._fd, view)
            except OSError as error:
                logger.error("the trace file %s ends here: %s", self.path, error.strerror)
                self.close()
                return
            self._size += written
            view = view[written:]

    def end_page(self) -> None:
        """A page of the record is complete: the files may take turns here."""
        if self._fd is None or self._size < self._max_bytes:
            return
        self.close()
        try:
            self.path.replace(older(self.path))
            self._open()
        except OSError as error:
            logger.error("the trace file %s ends here: %s", self.path, error.strerror)

    def close(self) -> None:
        """May be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def older(path: Path) -> Path:
    """Where the part of the record before that in `path` is."""
    return Path(f"{path}.1")


def read_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a trace file and of its older part. A last line without its end, as a crash leaves it, is left out.

    Raises:
        TraceFileError: it cannot be read.
    """
    try:
        for part in (older(path), path):
            if part == path or part.exists():
                with part.open("rb") as file:
                    yield from (line for line in file if line.endswith(b"\n"))
    except OSError as error:
        raise TraceFileError(f"{path}: {error.strerror}") from error


def read_history(path: Path) -> History:
    """All that a trace file and its older part tell.

    Raises:
        TraceFileError: it cannot be read, is of another kind or version, or is empty.
    """
    history = History(max_bytes=sys.maxsize)
    try:
        history.feed(read_lines(path))
    except msgspec.MsgspecError as error:
        raise TraceFileError(f"{path} is no trace file of this version: {error}") from error
    if history.num_events == 0:
        raise TraceFileError(f"{path} holds no record; give the file that --trace-file names")
    return history
