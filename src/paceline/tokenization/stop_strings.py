"""Finds the end of the first stop string in a text that arrives piece by piece, one step per character.

The automaton of Aho and Corasick ("Efficient string matching", 1975): its state is the longest end of the text so
far that begins some stop string. That is also exactly the part of the text that cannot be sent yet, and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


class Match(NamedTuple):
    """A stop string that has just been completed by a character."""

    stop: str
    end: int  # index in the fed text, just after the stop string's last character


class StopStrings:
    """The automaton for a set of stop strings; holds no text, so that requests can share it."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Empty strings are left out: they occur everywhere and stop nothing."""
        self._next: list[dict[str, int]] = [{}]
        self._fail: list[int] = [0]
        self._depth: list[int] = [0]
        # The longest stop string that ends in each state; longest, so that no part of any stop string is sent.
        self._ending: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()

    def _insert(self, stop: str) -> None:
        if not stop:
            return
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[state] + 1)
                self._ending.append(None)
            state = self._next[state][character]
        self._ending[state] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            if self._ending[state] is None:
                self._ending[state] = self._ending[self._fail[state]]
            for character, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], character)
                queue.append(child)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)

    def feed(self, state: int, text: str) -> tuple[int, Match | None]:
        """Go on from `state` (0 at first) with `text`, up to the first character that completes a stop string.

        Returns:
            The new state, and the match if there is one: of those that end there, the longest.
        """
        for index, character in enumerate(text):
            state = self._step(state, character)
            stop = self._ending[state]
            if stop is not None:
                return state, Match(stop, index + 1)
        return state, None

    def held_back(self, state: int) -> int:
        """How many characters at the end of the text may yet become part of a stop string."""
        return self._depth[state]


@lru_cache(maxsize=64)
def stop_strings(stops: tuple[str, ...]) -> StopStrings:
    """The automaton, built once for requests that share their stop strings."""
    return StopStrings(stops)
