"""How a stretch of the stages' time was used, and the two figures that say whether that was good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.trace.events import NO_WORK
from paceline.trace.idle import STARTUP

if TYPE_CHECKING:
    from paceline.trace.history import History

_NO_BUBBLE = (NO_WORK, STARTUP)


@dataclass(slots=True)
class Use:
    """How a stretch of time was used, `seconds` long.

    Attributes:
        busy: per stage, seconds in which it computed.
        idle: per stage, idle seconds by cause.
        tokens_in, tokens_out: prefill tokens computed, and tokens delivered.
    """

    seconds: float
    busy: list[float]
    idle: list[dict[str, float]]
    tokens_in: int = 0
    tokens_out: int = 0

    def since(self, before: Use) -> Use:
        """Of two sums from the same beginning: what came after the earlier one."""
        return Use(
            self.seconds - before.seconds,
            [a - b for a, b in zip(self.busy, before.busy, strict=True)],
            [
                {cause: seconds - then.get(cause, 0.0) for cause, seconds in now.items()}
                for now, then in zip(self.idle, before.idle, strict=True)
            ],
            self.tokens_in - before.tokens_in,
            self.tokens_out - before.tokens_out,
        )

    @property
    def bubble(self) -> float | None:
        """Part of the stages' time in which they idled although there was work; None if there was none."""
        lost = sum(seconds for idle in self.idle for cause, seconds in idle.items() if cause not in _NO_BUBBLE)
        busy = sum(self.busy)
        return round(lost / (lost + busy), 4) if busy > 1e-9 else None

    @property
    def imbalance(self) -> float | None:
        """The busiest stage's time over the mean of all; None if none was busy."""
        mean = sum(self.busy) / len(self.busy) if self.busy else 0.0
        return round(max(self.busy) / mean, 4) if mean > 1e-9 else None


def latest_use(history: History, seconds: float) -> Use:
    """How the last so many seconds were used."""
    since = max(history.now - seconds, history.facts.ready)
    stages = range(history.facts.stages if history.account is not None else 0)
    use = Use(max(history.now - since, 1e-9), [0.0 for _ in stages], [{} for _ in stages])
    for batch in reversed(history.batches.values()):
        if batch.done is None:
            continue
        if batch.done < since:
            break
        use.tokens_in += batch.num_tokens - batch.num_decodes
        use.tokens_out += len(batch.delivered)
        for passage in batch.passages:
            use.busy[passage.stage] += max(0.0, passage.finished - max(passage.started, since))
    open_stages = set(stages)
    for idle in reversed(history.idle):
        if idle.end > since:
            causes = use.idle[idle.stage]
            causes[idle.cause] = causes.get(idle.cause, 0.0) + idle.end - max(idle.start, since)
        else:  # intervals of one stage are in order
            open_stages.discard(idle.stage)
            if not open_stages:
                break
    return use
