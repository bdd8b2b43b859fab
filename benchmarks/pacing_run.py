"""One run of the real part of `benchmarks/pacing.py`: what is read off its figures and the record of its pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median
from typing import Any

import numpy as np
from benchmarks.timeline import Span

from paceline.simulate.served import Served, served
from paceline.trace.history import History

STAGES = 2
MANY = 2 * (STAGES + 1)  # running requests: two for each batch that can be in flight
PICTURE_BEGIN, PICTURE_SECONDS = 4.0, 1.5


@dataclass(frozen=True)
class Run:
    """One load on one server.

    Attributes:
        figures: of `paceline bench serve`, with times and lengths of every request.
        history: the record of the pipeline.
    """

    figures: dict[str, Any]
    history: History

    @cached_property
    def first(self) -> float:
        """When the first batch was made, by the core's clock."""
        return next(iter(self.history.batches.values())).at

    @cached_property
    def many_run(self) -> tuple[float, float]:
        """From when until when at least `MANY` requests are running, by the core's clock."""
        enough = [batch.at for batch in self.history.batches.values() if batch.made().running >= MANY]
        return (enough[0], enough[-1]) if enough else (self.first, self.first)

    @property
    def busy(self) -> float:
        """Mean busy fraction of the stages in that time."""
        begin, end = self.many_run
        seconds = sum(
            max(0.0, min(passage.finished, end) - max(passage.started, begin))
            for batch in self.history.batches.values()
            for passage in batch.passages
        )
        return seconds / (self.history.facts.stages * (end - begin)) if end > begin else 0.0

    @property
    def spans(self) -> list[Span]:
        """What the picture shows."""
        return [
            Span(passage.stage, passage.started - self.first, passage.finished - self.first, batch.kind)
            for batch in self.history.batches.values()
            for passage in batch.passages
            if PICTURE_BEGIN - 1.0 < passage.started - self.first < PICTURE_BEGIN + PICTURE_SECONDS + 1.0
        ]

    @cached_property
    def served(self) -> Served:
        """How long things took."""
        return served(self.history)

    @property
    def window(self) -> tuple[float, float]:
        """Seconds between which a run is steady: while requests arrive, without the first tenth; of a burst, while many run."""
        last = max(self.figures["start_times"])
        return (0.1 * last, last) if last > 1.0 else (0.0, self.many_run[1] - self.first)

    @property
    def output_rate(self) -> float:
        """Output tokens per second in the window."""
        begin, end = self.window
        return sum(begin <= moment < end for moment in output_moments(self.figures)) / (end - begin)

    def _of_window(self, values: Sequence[float]) -> list[float]:
        begin, end = self.window
        starts = self.figures["start_times"]
        return [value for start, value in zip(starts, values, strict=True) if begin <= start <= end]

    @property
    def tpot(self) -> tuple[float, float]:
        """Median and 99th percentile over the requests sent in the window, in milliseconds."""
        each = [1e3 * mean(gaps) if gaps else 0.0 for gaps in self.figures["itls"]]
        values = [value for value in self._of_window(each) if value > 0.0]
        return median(values), float(np.percentile(values, 99))

    @property
    def ttft(self) -> float:
        """Median, in milliseconds."""
        return 1e3 * median(self._of_window(self.figures["ttfts"]))


def output_moments(figures: dict[str, Any]) -> Iterator[float]:
    """When each output token came, in seconds since the first request was sent."""
    for start, ttft, gaps in zip(figures["start_times"], figures["ttfts"], figures["itls"], strict=True):
        yield from np.cumsum([start + ttft, *gaps]).tolist()
