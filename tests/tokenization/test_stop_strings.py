"""Stop strings against an oracle that looks at the whole text after every character."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tokenization.stop_strings import StopStrings

TEXT = st.text(alphabet="abé😀", max_size=40)
STOPS = st.lists(st.text(alphabet="abé😀", min_size=1, max_size=5), min_size=1, max_size=5)


def first_match(text: str, stops: Sequence[str]) -> tuple[str, int] | None:
    """The longest of the stop strings that end first, and where they end."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return max(found, key=len), end
    return None


def longest_beginning(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of the text that is a proper beginning of a stop string."""
    lengths = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


@settings(max_examples=500, deadline=None)
@given(TEXT, STOPS, st.lists(st.integers(0, 40), max_size=5))
def test_any_cut_of_the_text_finds_the_same_match(text: str, stops: list[str], cuts: list[int]) -> None:
    automaton = StopStrings(stops)
    places = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    state, found = 0, None
    for start, end in itertools.pairwise(places):
        state, match = automaton.feed(state, text[start:end])
        if match is not None:
            found = (match.stop, start + match.end)
            break
        assert automaton.held_back(state) == longest_beginning(text[:end], stops)
    assert found == first_match(text, stops)


def test_empty_strings_stop_nothing() -> None:
    assert StopStrings(["", "b"]).feed(0, "aaa") == (0, None)


def test_time_grows_with_the_text_alone() -> None:
    # The worst case of a naive search: every beginning of the text almost matches. Steps are counted, not timed.
    size = 2000
    automaton = StopStrings(["a" * size + "b"])
    steps = 0

    class Counted(dict[str, int]):
        def __contains__(self, key: object) -> bool:
            nonlocal steps
            steps += 1
            return super().__contains__(key)

    automaton._next = [Counted(entry) for entry in automaton._next]
    state = 0
    for _ in range(10):
        state, match = automaton.feed(state, "a" * size + "c")
        assert match is None
    assert steps <= 3 * 10 * (size + 1)
