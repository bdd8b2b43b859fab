"""What the record of a running engine says for a simulation: how long things really took, and the load that came.

A profile measures stages that have a machine for themselves. While serving, the HTTP server, the engine core and perhaps
the clients share it: batches take longer, some of them much longer, and the core is not always there at once. Two late
results that the core finds together end up in one batch, so it is not enough to know the mean.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle, pairwise
from statistics import mean, median
from typing import Generic, NamedTuple, TypeVar

from paceline.messages import Slice
from paceline.pipeline.timing import BatchTimes
from paceline.scheduling.cost_fit import fit_stages
from paceline.scheduling.cost_model import CostModel, LinkCost, Work, uniform, work_of
from paceline.simulate.loads import SimulatedRequest
from paceline.simulate.presets import PRESETS
from paceline.trace.history import History
from paceline.trace.lives import BatchRecord

FEWEST_BATCHES = 32
FEWEST_ALIKE = 32  # batches of a size class
CERTAINLY_THERE = 2e-3  # seconds; what was sent so long ago has arrived
SIZE_CLASS = 1.1  # the largest of it against the smallest, by price, where there are enough

T = TypeVar("T")


@dataclass(frozen=True)
class Seen(Generic[T]):
    """What was seen, and when, in order of time."""

    moments: list[float]
    values: list[T]

    def replay(self, since: float) -> Iterator[T]:
        """The values from that moment on, round and round."""
        first = bisect_left(self.moments, since)
        return cycle(chain(self.values[first:], self.values[:first]))


class SizeClass(NamedTuple):
    """Batches of about one size: the highest price, over all stages, and of each what its stages took against their prices."""

    most: float
    parts: Seen[list[float]]


@dataclass(frozen=True)
class Served:
    """How long things took, as far as a record tells.

    Attributes:
        cost: prices fitted to it.
        begin, end: of the record.
        classes: by size, smallest first.
        plans, turnarounds, links, results: seconds, as in :class:`paceline.pipeline.timing.BatchTimes`.
    """

    cost: CostModel
    begin: float
    end: float
    classes: list[SizeClass]
    plans: Seen[float]
    turnarounds: Seen[float]
    links: Seen[float]
    results: Seen[float]


class ServedTiming:
    """Prices of a record, times what recorded batches of about that size took against theirs.

    Slow moments of a machine last longer than a batch and slow down all stages. So nothing is drawn for a batch by itself:
    what was seen comes again in its order, from a moment that the seed decides.
    """

    def __init__(self, served: Served, seed: int = 0) -> None:
        self.num_stages = len(served.cost.stages)
        self._stages = served.cost.stages
        since = random.Random(seed).uniform(served.begin, served.end)
        self._most = [size.most for size in served.classes[:-1]]
        self._parts = [size.parts.replay(since) for size in served.classes]
        self._plans, self._turnarounds, self._links, self._results = (
            seen.replay(since) for seen in (served.plans, served.turnarounds, served.links, served.results)
        )

    def times(self, work: Work) -> BatchTimes:
        prices = [stage.time(work) for stage in self._stages]
        parts = next(self._parts[bisect_left(self._most, sum(prices))])
        stages = [price * part for price, part in zip(prices, parts, strict=True)]
        return BatchTimes(next(self._plans), stages, next(self._turnarounds), next(self._links), next(self._results))


def served(history: History) -> Served:
    """Fit prices to every batch on record, and keep what lies around them.

    Raises:
        ValueError: there are too few batches for it.
    """
    batches = [batch for batch in history.batches.values() if len(batch.passages) == history.facts.stages]
    if len(batches) < FEWEST_BATCHES:
        raise ValueError(f"has {len(batches)} whole batches on record, and a simulation needs {FEWEST_BATCHES} or more")
    works = [work_of(_slices(batch)) for batch in batches]
    seconds = [[passage.finished - passage.started for passage in batch.passages] for batch in batches]
    # Where the fit begins hardly matters after so many batches: the proportions of any model.
    stages = fit_stages(uniform(history.facts.stages, PRESETS["cpu-2"].stages[0]), works, seconds)
    nothing = [(batches[0].at, 0.0)]  # a single stage sends to none
    links, turnarounds = _seen(list(_links(batches)) or nothing), _seen(list(_turnarounds(batches)) or nothing)
    cost = CostModel(tuple(stages), LinkCost(fixed=mean(links.values)))
    classes = _size_classes(cost, batches, works, seconds)
    return Served(
        cost,
        batches[0].at,
        batches[-1].at,
        classes,
        _seen(_plans(history, batches)),
        turnarounds,
        links,
        _seen(_results(batches)),
    )


def served_load(history: History) -> list[SimulatedRequest]:
    """The requests that came and ended, with the prompt tokens that were not in the prefix cache, in order of arrival."""
    requests = [request for request in history.requests.values() if request.ended and request.num_output_tokens]
    first = min((request.arrived for request in requests), default=0.0)
    found = [
        SimulatedRequest(
            request.arrived - first, request.prompt_tokens - max(0, request.cached_tokens), request.num_output_tokens
        )
        for request in requests
    ]
    return sorted(found, key=lambda request: request.arrival)


def _slices(batch: BatchRecord) -> Iterator[Slice]:
    made = batch.made()
    for request, start, length in zip(made.requests, made.starts, made.lengths, strict=True):
        yield Slice(request, 0, start, [0] * abs(length), length > 0, 0, [])


def _size_classes(
    cost: CostModel, batches: list[BatchRecord], works: list[Work], seconds: list[list[float]]
) -> list[SizeClass]:
    """Each has enough batches, and no larger a span of prices than that takes."""
    priced = []
    for batch, work, took in zip(batches, works, seconds, strict=True):
        prices = [stage.time(work) for stage in cost.stages]
        if min(prices) > 0.0:
            priced.append((sum(prices), batch.at, [spent / price for spent, price in zip(took, prices, strict=True)]))
    priced.sort(key=lambda one: one[0])
    classes = []
    begin = 0
    for i, (price, _, _) in enumerate(priced, 1):
        is_whole = i - begin >= FEWEST_ALIKE and (i == len(priced) or priced[i][0] > SIZE_CLASS * priced[begin][0])
        if (is_whole and len(priced) - i >= FEWEST_ALIKE) or i == len(priced):
            classes.append(SizeClass(price, _seen((at, parts) for _, at, parts in priced[begin:i])))
            begin = i
    return classes


def _seen(pairs: Iterable[tuple[float, T]]) -> Seen[T]:
    in_order = sorted(pairs, key=lambda pair: pair[0])
    return Seen([at for at, _ in in_order], [value for _, value in in_order])


def _links(batches: list[BatchRecord]) -> Iterator[tuple[float, float]]:
    """When, and seconds from the end of a batch on one stage to its start on the next, where that had nothing else to do."""
    for before, batch in pairwise(batches):
        for sender, receiver in pairwise(batch.passages):
            if before.passages[receiver.stage].finished < sender.finished:
                yield sender.finished, max(0.0, receiver.started - sender.finished)


def _turnarounds(batches: list[BatchRecord]) -> Iterator[tuple[float, float]]:
    """When, and seconds from the end of a batch on a stage to the start of the next one, which was there already."""
    for before, batch in pairwise(batches):
        for sender, receiver in pairwise(batch.passages):
            free = before.passages[receiver.stage].finished
            if sender.sent + CERTAINLY_THERE < free:
                yield free, max(0.0, receiver.started - free)


def _results(batches: list[BatchRecord]) -> Iterator[tuple[float, float]]:
    """When, and seconds from the end of the last stage until the core had the result, where it had those before already."""
    known = 0.0
    for batch in batches:
        finished, done = batch.passages[-1].finished, batch.done or 0.0
        if known <= finished:
            yield finished, max(0.0, done - finished)
        known = done


def _plans(history: History, batches: list[BatchRecord]) -> Iterator[tuple[float, float]]:
    """When, and seconds from what let the core make a batch (a result, a request) until an idle stage 0 has its plan."""
    moments = sorted(
        [batch.done for batch in batches if batch.done is not None]
        + [request.arrived for request in history.requests.values()]
    )
    hops = [
        max(0.0, batch.passages[0].plan_received - batch.at)
        for before, batch in pairwise(batches)
        if before.passages[0].finished < batch.at
    ]
    hop = median(hops) if hops else 0.0
    made = 0.0
    for batch in batches:
        since = moments[max(0, bisect_right(moments, batch.at) - 1)]
        if made <= since:  # else it is the second one that the same news let the core make
            yield batch.at, max(0.0, batch.at - since) + hop
        made = batch.at
