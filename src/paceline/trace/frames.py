"""Cuts a history into frames for whoever watches live: what is new since the frame before, and figures of the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from paceline.trace.history import History
from paceline.trace.idle import Idle
from paceline.trace.lives import RUNNING, BatchRecord, RequestRecord
from paceline.trace.use import Use, latest_use

BACKLOG_SECONDS = 60.0
BATCHES_PER_FRAME = 200
MAX_FRAMES = 20  # of one look
WINDOW_SECONDS = 10.0  # of the figures
MAX_REQUESTS = 200
DIGITS = 6  # of times: microseconds
TINY = 1e-6  # seconds

Frame = dict[str, Any]


def hello(history: History, model: str) -> Frame:
    """The first message to a watcher; `model` is the name that clients know."""
    facts = history.facts
    return {
        "stages": facts.stages,
        "depth": facts.depth,
        "layers": facts.layers,
        "num_blocks": facts.num_blocks,
        "block_size": facts.block_size,
        "model": model,
        "pacing": facts.pacing,
        "now": round(history.now, DIGITS),
        "clock_uncertainty_ms": [round(uncertainty * 1000, 3) for _, uncertainty in history.offsets],
    }


class FrameMaker:
    """Where one series of frames stands.

    Args:
        since: what was over before this moment is left out (core's clock); None: everything so far is.
    """

    def __init__(self, history: History, since: float | None = None) -> None:
        self.history = history
        batches, after = history.batches.values(), history.latest_batch + 1
        start = history.now if since is None else since
        self._made = after if since is None else next((b.number for b in batches if b.at >= start), after)
        self._done = next((b.number for b in batches if b.done is None or b.done >= start), after)
        self._window = _Window(history)
        recent = 0 if since is None else sum(idle.end >= start for idle in history.idle)
        self._idle = history.num_idle - recent

    def frames(self) -> Iterator[Frame]:
        """Everything new, oldest first, in frames of limited size; the last one has the figures and requests of now."""
        for _ in range(MAX_FRAMES):
            batches = self._new_batches()
            frame = {
                "now": round(self.history.now, DIGITS),
                "batches": [_batch(self.history, batch) for batch in batches],
                **self._passed(),
                "idle": self._new_idle(),
            }
            if self._made > self.history.latest_batch:
                break
            yield frame
        yield frame | {"tiles": tiles(self.history, self._window.use()), "requests": requests(self.history)}

    def _new_batches(self) -> list[BatchRecord]:
        known = self.history.batches
        first = max(self._made, next(iter(known), 0))
        self._made = min(first + BATCHES_PER_FRAME, self.history.latest_batch + 1)
        return [known[number] for number in range(first, self._made)]

    def _passed(self) -> Frame:
        """What the stages did with the batches that have come back."""
        known = self.history.batches
        spans: list[list[Any]] = []
        links: list[list[Any]] = []
        number = max(self._done, next(iter(known), 0))
        while number < self._made and known[number].done is not None:
            batch = known[number]
            previous = None
            for passage in batch.passages:
                started, finished = round(passage.started, DIGITS), round(passage.finished, DIGITS)
                spans.append([passage.stage, number, started, finished, batch.kind])
                if previous is not None:
                    sent, received = round(previous.sent, DIGITS), round(passage.input_received, DIGITS)
                    links.append([previous.stage, number, sent, received])
                previous = passage
            number += 1
        self._done = number
        return {"spans": spans, "links": links}

    def _new_idle(self) -> list[list[Any]]:
        """Idle intervals since the last frame; those of one cause that follow each other are one."""
        history = self.history
        new = min(history.num_idle - self._idle, len(history.idle))
        self._idle = history.num_idle
        open_ones: dict[int, Idle] = {}
        merged: list[Idle] = []
        for idle in islice(history.idle, len(history.idle) - new, None):
            last = open_ones.get(idle.stage)
            if last is not None and last.cause == idle.cause and idle.start - last.end < 1e-6:
                open_ones[idle.stage] = last._replace(end=idle.end)
                continue
            if last is not None:
                merged.append(last)
            open_ones[idle.stage] = idle
        merged += open_ones.values()
        return [[i.stage, round(i.start, DIGITS), round(i.end, DIGITS), i.cause] for i in merged]


def _batch(history: History, batch: BatchRecord) -> Frame:
    made = batch.made()
    slices = [
        [history.name(number), start, abs(length), "decode" if length == 1 else "prefill"]
        for number, start, length in zip(made.requests, made.starts, made.lengths, strict=True)
    ]
    return {"batch": batch.number, "made": round(batch.at, DIGITS), "slices": slices}


class _Window:
    """How the last seconds were used, from the sums of then and now: adding up each frame anew would cost more than all else."""

    def __init__(self, history: History) -> None:
        self._history = history
        now, use = self._sums(), latest_use(history, WINDOW_SECONDS)
        self._then: deque[Use] = deque([now.since(use)])

    def _sums(self) -> Use:
        """Since the beginning of the history."""
        history = self._history
        account = history.account
        busy, idle = ([], []) if account is None else (list(account.busy), [dict(causes) for causes in account.idle])
        return Use(history.now, busy, idle, history.num_prefill_tokens, history.num_output_tokens)

    def use(self) -> Use:
        now = self._sums()
        self._then.append(now)
        while len(self._then) > 2 and self._then[1].seconds <= now.seconds - WINDOW_SECONDS:
            self._then.popleft()
        return now.since(self._then[0])


def tiles(history: History, use: Use) -> Frame:
    """Figures of the last seconds, and where things stand."""
    return {
        "bubble": use.bubble,
        "imbalance": use.imbalance,
        "tokens_in_per_s": round(use.tokens_in / max(use.seconds, TINY), 3),
        "tokens_out_per_s": round(use.tokens_out / max(use.seconds, TINY), 3),
        "running": sum(request.status == RUNNING for request in history.live.values()),
        "waiting": sum(request.status != RUNNING for request in history.live.values()),
        "free_blocks": history.free_blocks if history.live else history.facts.num_blocks,
        "num_blocks": history.facts.num_blocks,
        "preemptions": history.num_preemptions,
        "last_step_age_s": [None if at is None else round(history.now - at, 3) for at in history.last_finished],
    }


def requests(history: History) -> list[Frame]:
    """Live requests, oldest first."""
    in_batch: dict[int, int] = {}
    for number in history.in_flight():
        in_batch |= dict.fromkeys(history.made(number).requests, number)
    return [_request(history, request, in_batch) for request in islice(history.live.values(), MAX_REQUESTS)]


def _request(history: History, request: RequestRecord, in_batch: dict[int, int]) -> Frame:
    batch = in_batch.get(request.number)
    if batch is not None:
        where = f"in the pipeline, batch {batch}"
    else:
        where = "between two batches" if request.status == RUNNING else "waiting"
    return {
        "id": request.id,
        "status": request.status,
        "where": where,
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": max(0, request.cached_tokens),
        "output_tokens": request.num_output_tokens,
        "age_s": round(history.now - request.arrived, 3),
        "label": request.label or None,
    }
