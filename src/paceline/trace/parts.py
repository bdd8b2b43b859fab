"""Where a request's time went: split into parts that add up to the whole.

Every moment belongs to the first of these that holds: one of its batches is being computed (`prefill_compute`,
`decode_compute`), a token of it is on its way from the last stage (`delivery`), one of its batches is in the pipeline
without being computed (`waiting_in_pipeline`), the pacing policy kept it out of the latest batch (`held_by_pace`);
everything else is `queued`.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.scheduling import Reason
from paceline.trace.events import LETTER_OF, Made
from paceline.trace.lives import BatchRecord, RequestRecord

PARTS = ("prefill_compute", "decode_compute", "delivery", "waiting_in_pipeline", "held_by_pace", "queued")
_HELD = LETTER_OF[Reason.PACED]


def spans_of(during: list[tuple[BatchRecord, Made]], request: RequestRecord) -> Iterator[tuple[float, float, str]]:
    """(from, to, part), which may overlap: the split lets the earlier of PARTS win."""
    held_since = None
    for batch, made in during:
        if held_since is not None:
            yield held_since, batch.at, "held_by_pace"
            held_since = None
        if request.number not in made.requests:
            letter = made.reasons[made.left_out.index(request.number)]
            held_since = batch.at if letter == _HELD else None
            continue
        yield batch.at, float("inf") if batch.done is None else batch.done, "waiting_in_pipeline"
        length = made.lengths[made.requests.index(request.number)]
        part = "decode_compute" if length == 1 else "prefill_compute"
        for passage in batch.passages:
            yield passage.started, passage.finished, part
        if length > 0 and batch.passages and batch.done is not None:
            last = batch.number == request.last_token_batch or batch.number == request.first_token_batch
            told = batch.sent if last and batch.sent is not None else batch.done
            yield batch.passages[-1].finished, told, "delivery"
    if held_since is not None:
        yield held_since, float("inf"), "held_by_pace"


def split(
    spans: list[tuple[float, float, str]], start: float, end: float | None
) -> tuple[float | None, dict[str, float] | None]:
    """The time from `start` to `end`, and its parts; what no span covers is queued."""
    if end is None:
        return None, None
    end = max(end, start)
    parts = dict.fromkeys(PARTS, 0.0)
    edges: list[tuple[float, int, int]] = []  # moment, part, +1 or -1
    for first, last, part in spans:
        first, last = max(first, start), min(last, end)
        if first < last:
            edges += [(first, PARTS.index(part), 1), (last, PARTS.index(part), -1)]
    open_spans = [0] * len(PARTS)
    at = start
    for moment, part_index, change in sorted(edges):
        current = next((name for name, count in zip(PARTS, open_spans, strict=True) if count), "queued")
        parts[current] += moment - at
        at = moment
        open_spans[part_index] += change
    parts["queued"] += end - at
    return end - start, parts
