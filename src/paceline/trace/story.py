"""Tells a batch or a request in words, for people to read in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.trace.explain import BatchStory, Step, Timeline
from paceline.trace.idle import Passage

MEANING = {
    "DRAINING_IN_FLIGHT": "it was preempted, and its last batch is not back yet",
    "GRAMMAR_PENDING": "its grammar is being compiled",
    "IN_FLIGHT": "its next token is in flight",
    "PREEMPTED_THIS_STEP": "it was preempted just now, or nobody is admitted because another was",
    "SEQ_LIMIT": "as many requests are RUNNING as --max-num-seqs allows",
    "TOKEN_BUDGET": "the batch has as many tokens as --max-num-batched-tokens allows",
    "PACED": "the pacing policy's grant for this batch was used up",
    "NO_BLOCKS": "there are too few free KV blocks for it",
    "BEHIND_HEAD": "it waits behind one that may not be overtaken",
}
PART_NAMES = {
    "queued": "queued",
    "held_by_pace": "held by pace",
    "prefill_compute": "prefill compute",
    "waiting_in_pipeline": "waiting in pipeline",
    "decode_compute": "decode compute",
    "delivery": "delivery",
}
HEAD, TAIL = 16, 6  # steps of a request that are told, of its first and of its last ones


def tell_batch(story: BatchStory) -> str:
    """One batch, as lines of text."""
    return "\n".join(_batch_lines(story))


def _batch_lines(story: BatchStory) -> Iterator[str]:
    tokens = sum(end - first for first, end in story.slices.values())
    state = "still in the pipeline" if story.done is None else f"back after {_ms(story.done - story.made)}"
    yield f"batch {story.batch}: {story.kind}, {_count(tokens, 'token')}, {state}"
    yield (
        f"  when it was made: {story.running} running, {story.waiting} waiting, {story.free_blocks} blocks free, "
        f"{_count(story.batches_in_flight, 'batch', 'batches')} in flight with it"
    )
    for name, (first, end) in story.slices.items():
        yield f"  {name}: {story.status[name]}, in it with tokens [{first}:{end})"
    for name, reason in story.why_not.items():
        yield f"  {name}: {story.status[name]}, not in it: {_because(reason, story.in_flight_in.get(name))}"
    if story.others:
        yield f"  and {_count(story.others, 'request')} of other API keys"
    yield from (f"  {_visit(visit, story.made)}" for visit in story.stages)


def _visit(visit: Passage, zero: float) -> str:
    waited = visit.started - visit.input_received
    return (
        f"stage {visit.stage}: plan {_at(visit.plan_received - zero)}, input {_at(visit.input_received - zero)}, "
        f"waited {_ms(waited)}, worked {_at(visit.started - zero)} to {_at(visit.finished - zero)} "
        f"({_ms(visit.finished - visit.started)})"
    )


def _because(reason: str, batch: int | None) -> str:
    where = "" if batch is None else f" in batch {batch}"
    return f"{reason}, {MEANING.get(reason, '')}{where}"


def tell_request(timeline: Timeline) -> str:
    """The life of a request, as lines of text; times since its arrival."""
    return "\n".join(_request_lines(timeline))


def _request_lines(line: Timeline) -> Iterator[str]:
    label = f" (X-Request-Id {line.label})" if line.label else ""
    yield f"{line.id}{label}: {line.status}"
    yield (
        f"  {_count(line.prompt_tokens, 'prompt token')}, {line.cached_tokens} of them cached; "
        f"{_count(line.output_tokens, 'output token')}"
    )
    if line.prompt_text is not None:
        yield f"  prompt: {line.prompt_text!r}"
    if line.output_text is not None:
        yield f"  output: {line.output_text!r}"
    if line.error:
        yield f"  because: {line.error}"
    if not line.complete:
        yield "  (its beginning is no longer on record)"
    yield f"{_at(0.0):>12}  arrived: {line.statuses[0].status}"
    yield from _steps(line)
    if line.status.startswith("FINISHED"):
        yield f"{_at(line.statuses[-1].at):>12}  {line.status}"
    if line.time_to_first_token_parts is not None:
        yield _sum("time to first token", line.time_to_first_token, line.time_to_first_token_parts)
    if line.total_parts is not None:
        yield _sum("total", line.total, line.total_parts)


def _steps(line: Timeline) -> Iterator[str]:
    steps = line.batches
    shown = steps if len(steps) <= HEAD + TAIL else steps[:HEAD] + steps[-TAIL:]
    preemptions = list(line.preemptions)
    for i, step in enumerate(shown):
        if len(shown) < len(steps) and i == HEAD:
            left = len(steps) + line.batches_omitted - HEAD - TAIL
            yield f"{'…':>12}  {left} more batches, in the same way"
        while preemptions and float(str(preemptions[0]["at"])) <= step.made:
            event = preemptions.pop(0)
            gained = f"its blocks went to {event['for']}" if event["for"] else "its blocks could not be trusted"
            yield f"{_at(float(str(event['at']))):>12}  PREEMPTED: {gained}"
        yield f"{_at(step.made):>12}  {_step(step)}"


def _step(step: Step) -> str:
    if step.tokens is None:
        return f"batch {step.batch}: {step.status}, not in it: {_because(step.why_not or '', step.in_flight_in)}"
    first, end = step.tokens
    worked = ", ".join(f"stage {visit.stage} {_at(visit.started)} to {_at(visit.finished)}" for visit in step.stages)
    back = f"; {worked}; back {_at(step.done)}" if step.done is not None else "; still in the pipeline"
    return f"batch {step.batch}: {step.status}, in it with tokens [{first}:{end}){back}"


def _sum(what: str, total: float | None, parts: dict[str, float]) -> str:
    shown = [f"{PART_NAMES[name]} {_ms(parts[name])}" for name in PART_NAMES if parts[name]]
    return f"{what}: {_ms(total or 0.0)} = {' + '.join(shown)}"


def _at(seconds: float) -> str:
    return f"+{seconds * 1000:.1f} ms"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
