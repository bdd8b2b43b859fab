"""Where the time of a stage's steps goes: kept only under ``--profile``."""

from __future__ import annotations

import time
from collections.abc import Iterable


class Laps:
    """Nanoseconds per named part, over all steps of a stage.

    Attributes:
        steps: how many were begun.
        rows: tokens over all steps.
        nanoseconds: of each part.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.rows = 0
        self.nanoseconds: dict[str, int] = {}
        self._last = 0

    def begin(self, rows: int) -> None:
        self.steps += 1
        self.rows += rows
        self._last = time.perf_counter_ns()

    def lap(self, name: str, parts: Iterable[tuple[str, int]] = ()) -> None:
        """What has passed since the last lap was `name`, apart from `parts` of it that were timed by themselves."""
        now = time.perf_counter_ns()
        passed, self._last = now - self._last, now
        for part, nanoseconds in parts:
            passed -= nanoseconds
            self._add(part, nanoseconds)
        self._add(name, passed)

    def _add(self, name: str, nanoseconds: int) -> None:
        self.nanoseconds[name] = self.nanoseconds.get(name, 0) + nanoseconds

    def table(self, title: str) -> str:
        """One line per part: milliseconds per step and share of the whole."""
        whole, steps = max(sum(self.nanoseconds.values()), 1), max(self.steps, 1)
        lines = [
            f"{title}: {self.steps} steps of {self.rows / steps:.1f} rows on average",
            "  ms per step   share   part",
        ]
        for name, nanoseconds in [*self.nanoseconds.items(), ("whole step", whole)]:
            lines.append(f"  {nanoseconds / steps / 1e6:11.3f} {100 * nanoseconds / whole:6.1f}%   {name}")
        return "\n".join(lines)
