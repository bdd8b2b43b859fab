"""Fits a cost model to measured steps, at once or while an engine runs.

Least squares with prices of 0 or more, on relative errors: a batch of a few decodes counts as much as one with a long
prompt. Only sums over the measured steps are kept, and older ones fade, so memory is bounded and the model follows a
machine that changes. A step far from its prediction (its process was descheduled) counts less, as in Huber's method.
Terms that the steps so far do not tell apart, such as tokens and sequences while there are only decodes, stay as near to
the model that the fit began with as the measurements allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.scheduling.cost_model import CostModel, StageCost, Work

Array = NDArray[np.float64]

TRUSTED_ERROR = 0.3  # relative; a step farther off counts in inverse proportion
PRIOR_STEPS = 1.0  # how many steps' worth of evidence the starting model is
STEPS_PER_FIT = 32
MEMORY_STEPS = 2000.0  # after about so many steps, older ones have faded to a third
ERRORS_KEPT = 512  # per kind of batch
MAX_TERM_RATIO = 1e6  # of a fitted price to where the fit began; keeps a degenerate fit finite

KINDS = ("prefill", "decode", "mixed")


def non_negative_least_squares(gram: Array, moment: Array) -> Array:
    """The x >= 0 that minimises x'Gx - 2m'x, by Lawson's and Hanson's active set (Solving Least Squares Problems, 1974).

    Args:
        gram: [n, n], symmetric and positive definite.
        moment: [n].
    """
    n = len(moment)
    x = np.zeros(n)
    free = np.zeros(n, dtype=bool)
    tolerance = 1e-12 * float(np.abs(moment).max(initial=0.0))
    for _ in range(3 * n):
        gradient = moment - gram @ x
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= tolerance:
            break
        free[best] = True
        while free.any():
            candidate = np.zeros(n)
            candidate[free] = np.linalg.solve(gram[np.ix_(free, free)], moment[free])
            if (candidate[free] > 0.0).all():
                x = candidate
                break
            shrinking = free & (candidate <= 0.0)
            steps = x[shrinking] / (x[shrinking] - candidate[shrinking])
            x = x + float(steps.min()) * (candidate - x)
            free &= x > 1e-15 * float(x.max(initial=0.0))
            x[~free] = 0.0
    return x


class PriceFit:
    """Prices of terms, from what batches took whose amounts of each term are known.

    Args:
        start: [terms], the prices to begin with; their order of magnitude gives the scale of each term.

    Attributes:
        prices: [terms], seconds per unit; none is negative.
    """

    def __init__(self, start: Sequence[float]) -> None:
        self.prices = np.array(start, dtype=np.float64)
        positive = self.prices > 0.0
        # In units of the starting prices every term is of order 1; one that starts at 0 gets a small unit of its own.
        smallest = float(self.prices[positive].min(initial=1e-6))
        self._unit = np.where(positive, self.prices, max(smallest, 1e-12) * 1e-3)
        self._start = np.where(positive, 1.0, 0.0)
        self._gram = np.zeros((len(self.prices), len(self.prices)))
        self._moment = np.zeros(len(self.prices))

    def add(self, amounts: Sequence[Sequence[float]] | Array, seconds: Sequence[float], fade: float = 1.0) -> None:
        """Take in measured steps and fit anew; what was known before counts `fade` times as much as so far.

        Args:
            amounts: [steps, terms].
            seconds: [steps].
        """
        rows = np.array(amounts, dtype=np.float64)
        predicted = np.maximum(rows @ self.prices, 1e-12)
        measured = np.array(seconds, dtype=np.float64)
        error = np.abs(measured - predicted) / predicted
        weight = np.minimum(1.0, TRUSTED_ERROR / np.maximum(error, 1e-12))
        scale = np.sqrt(weight) / predicted
        rows, measured = rows * self._unit * scale[:, None], measured * scale
        self._gram = self._gram * fade + rows.T @ rows
        self._moment = self._moment * fade + rows.T @ measured
        self._solve()

    def rescale(self, factor: float) -> None:
        """The starting prices are all off by this factor; only before any step was added."""
        self.prices = self.prices * factor
        self._unit = self._unit * factor

    def _solve(self) -> None:
        # Each term is held to its start in proportion to what it contributes to the steps, so only the terms that the
        # steps do not tell apart are decided by it.
        total = max(float(np.trace(self._gram)), 1e-300)
        terms = len(self.prices)
        hold = np.full(terms, PRIOR_STEPS * 1e-4 * total / terms)
        hold = np.minimum(hold, np.maximum(1e-3 * np.diag(self._gram), 1e-9 * total))
        gram = self._gram + np.diag(hold)
        x = non_negative_least_squares(gram, self._moment + hold * self._start)
        self.prices = np.minimum(x, MAX_TERM_RATIO) * self._unit


class CostFit:
    """A cost model that follows the steps that an engine measures.

    Args:
        start: the model to begin with.
        calibrated: its figures are seconds of this machine. If not, only their proportions count, and the first
            measured steps give the scale.

    Attributes:
        model: changes after every few batches.
        calibrated: whether its figures are seconds by now.
        num_steps: how many batches were taken in.
    """

    def __init__(self, start: CostModel, *, calibrated: bool) -> None:
        self.model = start
        self.num_steps = 0
        self.calibrated = calibrated
        self._stages = [PriceFit(msgspec.structs.astuple(stage)) for stage in start.stages]
        self._works: list[Work] = []
        self._seconds: list[list[float]] = []
        self._errors: dict[str, deque[float]] = {kind: deque(maxlen=ERRORS_KEPT) for kind in KINDS}

    def add(self, work: Work, seconds: Sequence[float]) -> None:
        """Take in one batch: what it asked, and how long each stage took for it.

        Every so many batches the model is fitted anew; until then a batch is not part of the fit, so the errors
        reported are those of predictions, not of the fit itself.
        """
        if self.calibrated:
            errors = self._errors[work.kind]
            for stage, measured in zip(self.model.stages, seconds, strict=True):
                if measured > 0.0:
                    errors.append(abs(stage.time(work) - measured) / measured)
        self._works.append(work)
        self._seconds.append(list(seconds))
        self.num_steps += 1
        if len(self._works) >= (STEPS_PER_FIT if self.calibrated else STEPS_PER_FIT // 4):
            self.fit()

    def fit(self) -> None:
        """Fit to what was added since the last time."""
        if not self._works:
            return
        columns = list(zip(*self._seconds, strict=True))
        if not self.calibrated:
            self._calibrate(columns)
        fade = 1.0 - min(1.0, len(self._works) / MEMORY_STEPS)
        for stage, seconds in zip(self._stages, columns, strict=True):
            stage.add(self._works, seconds, fade)
        self.model = msgspec.structs.replace(self.model, stages=tuple(_as_cost(fit) for fit in self._stages))
        self._works, self._seconds = [], []

    def _calibrate(self, columns: Iterable[Sequence[float]]) -> None:
        ratios = [
            measured / stage.time(work)
            for stage, seconds in zip(self.model.stages, columns, strict=True)
            for work, measured in zip(self._works, seconds, strict=True)
        ]
        factor = median(ratios)
        if factor > 0.0:
            for stage in self._stages:
                stage.rescale(factor)
        self.calibrated = True

    def errors(self) -> dict[str, float]:
        """Median absolute error of the predictions, relative to what was measured, per kind of batch seen so far."""
        return {kind: median(errors) for kind, errors in self._errors.items() if errors}


def fit_stages(start: CostModel, works: Sequence[Work], seconds: Sequence[Sequence[float]]) -> list[StageCost]:
    """Prices of each stage by itself, from many batches at once.

    Args:
        start: only its proportions count.
        works: what each batch asked.
        seconds: [batches, stages], what each stage took for it.
    """
    fit = CostFit(start, calibrated=False)
    for work, of_stages in zip(works, seconds, strict=True):
        fit.add(work, of_stages)
    fit.fit()
    stages = []
    for i, cost in enumerate(fit.model.stages):  # once more over all, now that outliers are known
        again = PriceFit(msgspec.structs.astuple(cost))
        again.add(works, [of_stages[i] for of_stages in seconds])
        stages.append(_as_cost(again))
    return stages


def _as_cost(fit: PriceFit) -> StageCost:
    return StageCost(*fit.prices.tolist())
