"""The log keeps to its size, and a reader gets every line that it is still there for, once and in order."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from paceline.trace.events import Held, Sent, decode
from paceline.trace.log import PagedLog


def log_of(max_bytes: int, page_bytes: int) -> PagedLog:
    return PagedLog(max_bytes, lambda: Sent(-1.0), page_bytes)


@given(st.integers(60, 2000), st.integers(30, 400), st.integers(1, 300), st.integers(0, 2**32))
def test_a_reader_that_keeps_up_reads_every_line_once(
    max_bytes: int, page_bytes: int, chunk_bytes: int, seed: int
) -> None:
    log, rng = log_of(max_bytes, page_bytes), random.Random(seed)
    read, lines, written = 0, b"", 0
    for i in range(200):
        log.append(Held(float(i), "x" * rng.randrange(20)))
        written += 1
        while rng.random() < 0.9 and read < log.total:
            chunk = log.read(read, chunk_bytes)
            if chunk.begin != read:  # fell behind by more than the log keeps
                lines, written = b"", -1
            assert chunk.lines
            assert chunk.lines.endswith(b"\n")
            assert chunk.end - chunk.begin == len(chunk.lines)
            lines += chunk.lines
            read = chunk.end
        assert log.total - log.begin <= max_bytes + page_bytes + 60
        if written < 0:
            return
    while read < log.total:
        chunk = log.read(read, chunk_bytes)
        if chunk.begin != read:
            return
        lines, read = lines + chunk.lines, chunk.end
    events = [decode(line) for line in lines.splitlines()]
    assert [event.at for event in events if isinstance(event, Held)] == [float(i) for i in range(200)]


def test_every_page_can_be_read_on_its_own() -> None:
    log = log_of(1000, 200)
    for i in range(100):
        log.append(Held(float(i), "pace"))
    chunk = log.read(0, 10**6)
    assert chunk.begin == log.begin > 0
    assert isinstance(decode(chunk.lines.splitlines()[0]), Sent), "the first line of a page"


def test_a_reader_that_names_a_byte_from_elsewhere_starts_at_the_oldest_page() -> None:
    log = log_of(1000, 200)
    log.append(Held(0.0, "pace"))
    assert log.read(10**9, 100).begin == 0
    assert log.read(-5, 100).begin == 0
    assert log_of(1000, 200).read(0, 100) == (0, 0, 0, b"")


def test_lines_are_json() -> None:
    log = log_of(1000, 200)
    log.append(Held(1.5, "pace"))
    assert [msgspec.json.decode(line) for line in log.read(0, 1000).lines.splitlines()][1] == ["held", 1.5, "pace"]
