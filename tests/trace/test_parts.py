"""A request's time, split by hand."""

from __future__ import annotations

import pytest

from paceline.trace.events import Made
from paceline.trace.idle import Passage
from paceline.trace.lives import BatchRecord, RequestRecord
from paceline.trace.parts import PARTS, spans_of, split


def batch(number: int, at: float, done: float, sent: float, work: list[tuple[float, float]]) -> BatchRecord:
    passages = [Passage(s, at, a, a, b, b) for s, (a, b) in enumerate(work)]
    return BatchRecord(number, number, at, "mixed", 1, b"", done=done, sent=sent, passages=passages)


def made(number: int, at: float, length: int, letter: str = "") -> Made:
    """Of request 0 alone: in it with so many tokens, or left out with a reason."""
    within = ([0], [0], [length], [], [], "") if length else ([], [], [], [], [0], letter)
    return Made(at, number, *within, 1, 0, 9, 1)


def test_two_chunks_that_overlap_a_wait_for_pace_and_a_decode() -> None:
    request = RequestRecord(0, "r", 0.0, 20, first_token_batch=1, last_token_batch=3)
    during = [
        (batch(0, 1.0, 6.0, 6.0, [(1.5, 3.0), (3.0, 5.0)]), made(0, 1.0, -10)),
        (batch(1, 2.0, 9.0, 9.5, [(3.0, 4.0), (6.0, 8.5)]), made(1, 2.0, 10)),
        (batch(2, 10.0, 12.0, 12.0, [(10.0, 11.0), (11.0, 12.0)]), made(2, 10.0, 0, "H")),
        (batch(3, 13.0, 16.0, 17.0, [(13.5, 14.0), (14.0, 15.0)]), made(3, 13.0, 1)),
    ]
    first, first_parts = split(list(spans_of(during, request)), 0.0, 9.5)
    assert first == 9.5
    assert first_parts == {
        "queued": 1.0,
        "waiting_in_pipeline": 0.5 + 1.0,
        "prefill_compute": 3.5 + 2.5,
        "delivery": 1.0,
        "decode_compute": 0.0,
        "held_by_pace": 0.0,
    }
    total, parts = split(list(spans_of(during, request)), 0.0, 17.0)
    assert total == 17.0
    assert parts is not None
    assert parts == pytest.approx(
        first_parts
        | {
            "queued": 1.0 + 0.5,
            "held_by_pace": 3.0,
            "waiting_in_pipeline": 1.5 + 0.5,
            "decode_compute": 1.5,
            "delivery": 1.0 + 2.0,
        }
    )
    assert sum(parts.values()) == total


def test_what_is_not_over_has_no_parts_and_what_took_no_time_has_none_either() -> None:
    assert split([], 1.0, None) == (None, None)
    assert split([], 1.0, 1.0) == (0.0, dict.fromkeys(PARTS, 0.0))
