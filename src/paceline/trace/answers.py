"""The answers that `paceline explain` and the server give alike: found by id or number, restricted to whom they are for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from paceline.trace.explain import (
    BatchStory,
    Timeline,
    explain_batch,
    explain_refused,
    explain_request,
    only_of,
    token_ids_of,
)
from paceline.trace.history import History
from paceline.trace.lives import RequestRecord
from paceline.trace.story import tell_batch, tell_request

MaySee = Callable[[str], bool]  # whether whoever asks may see what belongs to an owner; "": to nobody in particular
Decode = Callable[[Sequence[int]], str]


class Choices(msgspec.Struct, frozen=True):
    """A response to several prompts: one timeline each."""

    id: str
    choices: list[Timeline]
    text: str


def answer_batch(history: History, number: int, may_see: MaySee) -> BatchStory | None:
    """One batch with its text; None if it is not on record."""
    story = explain_batch(history, number)
    if story is None:
        return None
    if not may_see(""):
        story = only_of(story, {request.id for request in history.requests.values() if may_see(request.owner)})
    return msgspec.structs.replace(story, text=tell_batch(story))


def answer_request(
    history: History, request_id: str, may_see: MaySee, decode: Decode | None = None
) -> Timeline | Choices | None:
    """The life of the request with this id, or None: there is none on record, or it is not for whoever asks.

    Args:
        decode: makes text of token ids where those are on record.
    """
    for refused in reversed(history.refused):
        if refused.id == request_id and may_see(refused.owner):
            return _told(explain_refused(refused, history.unix_offset))
    found = [request for request in history.choices(request_id) if may_see(request.owner)]
    timelines = [_told(_with_text(history, request, decode)) for request in found]
    if len(timelines) == 1:
        return timelines[0]
    if not timelines:
        return None
    return Choices(request_id, timelines, "\n\n".join(timeline.text for timeline in timelines))


def _with_text(history: History, request: RequestRecord, decode: Decode | None) -> Timeline:
    timeline = explain_request(history, request)
    if decode is None or request.prompt_token_ids is None:
        return timeline
    prompt, output = decode(request.prompt_token_ids), decode(token_ids_of(history, request))
    return msgspec.structs.replace(timeline, prompt_text=prompt, output_text=output)


def _told(timeline: Timeline) -> Timeline:
    return msgspec.structs.replace(timeline, text=tell_request(timeline))
