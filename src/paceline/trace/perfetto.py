"""The record as a file for Perfetto, in the Trace Event Format.

One track for the engine core, one per stage, one per link (the core's own included); flows lead from batch to batch
along a request's way, and counters show what runs, what waits, free blocks and the bubble. Times are microseconds since
the start of the window, on the core's clock; the stages' clocks have been mapped to it, and `otherData` says how far
that may be off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from paceline.trace.events import NO_WORK, Made
from paceline.trace.history import History
from paceline.trace.idle import STARTUP, Idle
from paceline.trace.lives import BatchRecord, slices_of

PID = 1
CORE_TRACK = 2  # 0 is the idle thread to viewers, and PID would be the main thread
MAX_SECONDS = 3600.0
BUCKET_SECONDS = 0.5  # of the bubble's counter
MAX_NAMES = 64  # requests named in one slice; the rest are counted

Json = dict[str, Any]


class _Bar(NamedTuple):
    """One slice to be: from when to when on a track, in seconds of the core's clock."""

    track: int
    start: float
    end: float
    name: str
    category: str
    args: Json


def trace_json(history: History, seconds: float) -> Iterator[bytes]:
    """What the record says of the last `seconds`, as one JSON document in pieces.

    Batches that were under way when they began are in it as a whole.
    """
    since = history.now - min(seconds, MAX_SECONDS)
    batches = [batch for batch in history.batches.values() if batch.passages and batch.passages[-1].finished >= since]
    start = min([since, *(batch.at for batch in batches)])
    encode = msgspec.json.Encoder().encode
    yield b'{"displayTimeUnit":"ms","otherData":' + encode(_other_data(history, start)) + b',"traceEvents":['
    separator = b"\n"
    for event in _events(history, batches, start):
        yield separator + encode(event)
        separator = b",\n"
    yield b"\n]}\n"


def _events(history: History, batches: list[BatchRecord], start: float) -> Iterator[Json]:
    """One pass over the batches, each decoded when its turn comes: a long record is not held in memory twice."""
    idle = [interval._replace(start=max(interval.start, start)) for interval in history.idle if interval.end > start]
    waypoints: dict[int, list[tuple[float, int]]] = {}
    link_free: dict[int, float] = {}
    yield from _track_names(history)
    for batch in batches:
        made = batch.made()
        for bar in _stage_bars(history, batch, made):
            yield _slice(bar, start)
        for bar in _link_bars(batch):
            yield _slice(_when_free(bar, link_free), start)
        yield from _counters(made, start)
        _add_waypoints(waypoints, batch, made)
    for bar in _clipped(_core_bars(batches)):
        yield _slice(bar, start)
    for interval in idle:
        yield _slice(_idle_bar(interval), start)
    for number, points in waypoints.items():
        yield from _flow(history.name(number), number, sorted(points), start)
    yield from _bubble(batches, idle, start)


def _other_data(history: History, start: float) -> Json:
    return {
        "model": history.facts.model,
        "layers": history.facts.layers,
        "pacing": history.facts.pacing,
        "unix_time_at_0": history.unix_offset + start,
        "stage_clock_ahead_ms": [offset * 1e3 for offset, _ in history.offsets],
        "stage_clock_uncertainty_ms": [uncertainty * 1e3 for _, uncertainty in history.offsets],
    }


# ---------------------------------------------------------------- tracks


def _stage_track(stage: int) -> int:
    return CORE_TRACK + 2 + 2 * stage


def _link_track(stage: int) -> int:
    """Of the link that leads to `stage`, or from the last one to the core."""
    return CORE_TRACK + 1 + 2 * stage


def _track_names(history: History) -> Iterator[Json]:
    layers, stages = history.facts.layers, history.facts.stages
    names = {CORE_TRACK: "engine core", _link_track(0): "link core → 0"}
    for stage in range(stages):
        count = f" ({layers[stage]} layers)" if stage < len(layers) else ""
        names[_stage_track(stage)] = f"stage {stage}{count}"
        names[_link_track(stage + 1)] = f"link {stage} → {stage + 1 if stage + 1 < stages else 'core'}"
    yield {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "args": {"name": f"Paceline {history.facts.model}"}}
    for track, name in names.items():
        yield {"ph": "M", "name": "thread_name", "pid": PID, "tid": track, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": PID, "tid": track, "args": {"sort_index": track}}


def _slice(bar: _Bar, start: float) -> Json:
    return {
        "ph": "X",
        "name": bar.name,
        "cat": bar.category,
        "pid": PID,
        "tid": bar.track,
        "ts": _us(bar.start - start),
        "dur": _us(bar.end - start) - _us(bar.start - start),
        "args": bar.args,
    }


def _us(seconds: float) -> int:
    """Whole microseconds: viewers cut fractions off, and a slice that ends 1 ns inside the next one is dropped."""
    return round(seconds * 1e6)


# ---------------------------------------------------------------- bars


def _stage_bars(history: History, batch: BatchRecord, made: Made) -> Iterator[_Bar]:
    slices = slices_of(made)
    named = {history.name(number): f"[{first}:{end})" for number, (first, end) in list(slices.items())[:MAX_NAMES]}
    args = {"batch": batch.number, "tokens": batch.num_tokens, "num_requests": len(slices), "requests": named}
    for passage in batch.passages:
        name = f"{batch.kind} batch {batch.number}"
        yield _Bar(_stage_track(passage.stage), passage.started, passage.finished, name, batch.kind, args)


def _idle_bar(interval: Idle) -> _Bar:
    track = _stage_track(interval.stage)
    return _Bar(track, interval.start, interval.end, f"idle: {interval.cause}", "idle", {"cause": interval.cause})


def _link_bars(batch: BatchRecord) -> Iterator[_Bar]:
    """From when something left one end until it was read at the other, waiting for a busy reader included."""
    first, last = batch.passages[0], batch.passages[-1]
    hops = [(0, batch.at, first.plan_received)]
    hops += [(after.stage, before.sent, after.input_received) for before, after in pairwise(batch.passages)]
    if batch.done is not None:
        hops.append((last.stage + 1, last.sent, batch.done))
    for to_stage, sent, received in hops:
        args = {"batch": batch.number, "seconds": round(received - sent, 6)}
        yield _Bar(_link_track(to_stage), sent, received, f"batch {batch.number}", "link", args)


def _core_bars(batches: Iterable[BatchRecord]) -> Iterator[_Bar]:
    for batch in batches:
        args = {"batch": batch.number}
        yield _Bar(CORE_TRACK, batch.at, batch.at, f"make batch {batch.number}", "core", args)
        if batch.done is not None:
            sent = batch.done if batch.sent is None else batch.sent
            yield _Bar(CORE_TRACK, batch.done, sent, f"deliver batch {batch.number}", "core", args)


def _when_free(bar: _Bar, free: dict[int, float]) -> _Bar:
    """A link hands over one batch at a time: this one's bar begins when the one before has ended; `free` remembers that."""
    start = max(bar.start, free.get(bar.track, bar.start))
    free[bar.track] = end = max(bar.end, start)
    return bar._replace(start=start, end=end)


def _clipped(bars: Iterable[_Bar]) -> list[_Bar]:
    """Of one track: each one ends where the next one begins, at the latest. A thread does one thing at a time."""
    ordered = sorted(bars, key=lambda bar: bar.start)
    ends = [bar.start for bar in ordered[1:]]
    clipped = [bar._replace(end=max(bar.start, min(bar.end, end))) for bar, end in zip(ordered, ends, strict=False)]
    return clipped + ordered[-1:]


# ---------------------------------------------------------------- flows


def _add_waypoints(waypoints: dict[int, list[tuple[float, int]]], batch: BatchRecord, made: Made) -> None:
    """Where each request of the batch is seen: when it was made, at every stage, and when a token was delivered."""
    points = [(batch.at, CORE_TRACK)]
    points += [(passage.started, _stage_track(passage.stage)) for passage in batch.passages]
    delivered = set(batch.delivered)
    for number in made.requests:
        waypoints.setdefault(number, []).extend(points)
        if number in delivered and batch.done is not None:
            waypoints[number].append((batch.done, CORE_TRACK))


def _flow(name: str, number: int, points: list[tuple[float, int]], start: float) -> Iterator[Json]:
    """Arrows from slice to slice, along a request's way."""
    last = len(points) - 1
    for place, (at, track) in enumerate(points):
        phase = "s" if place == 0 else "f" if place == last else "t"
        event = {"ph": phase, "name": name, "cat": "request", "id": number, "pid": PID, "tid": track}
        yield event | {"ts": _us(at - start)} | ({"bp": "e"} if phase == "f" else {})


# ---------------------------------------------------------------- counters


def _counters(made: Made, start: float) -> Iterator[Json]:
    yield _counter("requests", made.at - start, {"running": made.running, "waiting": made.waiting})
    yield _counter("blocks", made.at - start, {"free": made.free_blocks})
    yield _counter("batches", made.at - start, {"in flight": made.in_flight})


def _counter(name: str, seconds: float, values: Json) -> Json:
    return {"ph": "C", "name": name, "pid": PID, "tid": 0, "ts": _us(seconds), "args": values}


def _bubble(batches: Iterable[BatchRecord], idle: Iterable[Idle], start: float) -> Iterator[Json]:
    """Percent of the stages' time that they idled although requests were there, per bucket."""
    busy: dict[int, float] = {}
    lost: dict[int, float] = {}
    for batch in batches:
        for passage in batch.passages:
            _spread(busy, passage.started - start, passage.finished - start)
    for interval in idle:
        if interval.cause not in (NO_WORK, STARTUP):
            _spread(lost, interval.start - start, interval.end - start)
    buckets = busy.keys() | lost.keys()
    for bucket in range(max(buckets, default=-1) + 1):
        total = busy.get(bucket, 0.0) + lost.get(bucket, 0.0)
        percent = 100 * lost.get(bucket, 0.0) / total if total else 0.0
        yield _counter("bubble", bucket * BUCKET_SECONDS, {"percent": round(percent, 2)})


def _spread(sums: dict[int, float], begin: float, end: float) -> None:
    """Add an interval's seconds to the buckets that it covers; what lies before 0 is left out."""
    begin = max(begin, 0.0)
    while begin < end:
        bucket = int(begin / BUCKET_SECONDS)
        edge = min(end, (bucket + 1) * BUCKET_SECONDS)
        if edge <= begin:  # rounding
            bucket, edge = bucket + 1, min(end, (bucket + 2) * BUCKET_SECONDS)
        sums[bucket] = sums.get(bucket, 0.0) + edge - begin
        begin = edge
