"""What the record of a running engine says for a simulation: how long things really took, and the load that came.

A profile measures stages that have a machine for themselves. While serving, the HTTP server, the engine core and perhaps
the clients share it: batches take longer, some of them much longer, and the core is not always there at once. Two late
results that the core finds together end up in one batch, so it is not enough to know the mean.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import msgspec

from paceline.messages import Slice
from paceline.scheduling.cost_fit import CostFit, PriceFit
from paceline.scheduling.cost_model import CostModel, LinkCost, StageCost, Work, uniform, work_of
from paceline.simulate.loads import SimulatedRequest
from paceline.simulate.presets import PRESETS
from paceline.trace.history import History
from paceline.trace.lives import BatchRecord

FEWEST_BATCHES = 32
NEIGHBOURS = 64  # a draw is among so many batches of about the same size


class Spread:
    """Values that were seen at certain sizes; draws one that was seen near the size asked for.

    Args:
        seen: (size, value) pairs, at least one.
    """

    def __init__(self, seen: Sequence[tuple[float, float]]) -> None:
        pairs = sorted(seen)
        self._sizes = [size for size, _ in pairs]
        self._values = [value for _, value in pairs]

    def draw(self, size: float, random_number: Callable[[], float]) -> float:
        """A value; `random_number` gives one from 0 to 1, 1 excluded."""
        first = bisect_left(self._sizes, size) - NEIGHBOURS // 2
        first = max(0, min(first, len(self._sizes) - NEIGHBOURS))
        return self._values[first + int(random_number() * min(NEIGHBOURS, len(self._values)))]


@dataclass(frozen=True)
class Served:
    """How long things took, as far as a record tells.

    Attributes:
        cost: prices fitted to it.
        stages: per stage, what batches took in relation to their price, by that price.
        plans, links, results: seconds of transfers by the batch's tokens: see :class:`paceline.pipeline.timing.Timing`.
    """

    cost: CostModel
    stages: list[Spread]
    plans: Spread
    links: Spread
    results: Spread


class ServedTiming:
    """The prices of a record with the spread around them, drawn by seed."""

    def __init__(self, served: Served, seed: int = 0) -> None:
        self.num_stages = len(served.stages)
        self._served = served
        self._random = random.Random(seed).random

    def stage(self, stage: int, work: Work) -> float:
        price = self._served.cost.time(stage, work)
        return price * self._served.stages[stage].draw(price, self._random)

    def plan(self, work: Work) -> float:
        return self._served.plans.draw(work.token, self._random)

    def link(self, work: Work) -> float:
        return self._served.links.draw(work.token, self._random)

    def result(self, work: Work) -> float:
        return self._served.results.draw(work.token, self._random)


def served(history: History) -> Served:
    """Fit prices to every batch on record, and keep what lies around them.

    Raises:
        ValueError: there are too few batches for it.
    """
    batches = [batch for batch in history.batches.values() if len(batch.passages) == history.facts.stages]
    if len(batches) < FEWEST_BATCHES:
        raise ValueError(f"has {len(batches)} whole batches on record, and a simulation needs {FEWEST_BATCHES} or more")
    works = [work_of(_slices(batch)) for batch in batches]
    stages = _fit(works, [[passage.finished - passage.started for passage in batch.passages] for batch in batches])
    spreads = [
        Spread(
            [
                (price, (passages[i].finished - passages[i].started) / price)
                for work, passages in zip(works, (batch.passages for batch in batches), strict=True)
                if (price := stage.time(work)) > 0.0
            ]
        )
        for i, stage in enumerate(stages)
    ]
    links = list(_links(batches))
    fixed = sum(seconds for _, seconds in links) / len(links)
    results = [(batch.num_tokens, max(0.0, (batch.done or 0.0) - batch.passages[-1].finished)) for batch in batches]
    plans = list(_plans(history, batches))
    cost = CostModel(tuple(stages), LinkCost(fixed=fixed))
    return Served(cost, spreads, Spread(plans), Spread(links), Spread(results))


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


def _fit(works: list[Work], seconds: list[list[float]]) -> list[StageCost]:
    # Where it begins hardly matters after so many batches: the proportions of any model.
    fit = CostFit(uniform(len(seconds[0]), PRESETS["cpu-2"].stages[0]), calibrated=False)
    for work, of_stages in zip(works, seconds, strict=True):
        fit.add(work, of_stages)
    fit.fit()
    stages = []
    for i, start in enumerate(fit.model.stages):  # once more over all, now that outliers are known
        again = PriceFit(msgspec.structs.astuple(start))
        again.add(works, [of_stages[i] for of_stages in seconds])
        stages.append(StageCost(*again.prices.tolist()))
    return stages


def _links(batches: list[BatchRecord]) -> Iterator[tuple[float, float]]:
    """Tokens and seconds from the end of a batch on one stage to its start on the next, where that had nothing else to do."""
    for before, batch in pairwise(batches):
        for sender, receiver in pairwise(batch.passages):
            if before.passages[receiver.stage].finished < sender.finished:
                yield batch.num_tokens, max(0.0, receiver.started - sender.finished)


def _plans(history: History, batches: list[BatchRecord]) -> Iterator[tuple[float, float]]:
    """Tokens and seconds from what let the core make a batch (a result, a request) until an idle stage 0 has its plan."""
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
    for batch in batches:
        since = moments[max(0, bisect_left(moments, batch.at) - 1)]
        yield batch.num_tokens, max(0.0, batch.at - since) + hop
