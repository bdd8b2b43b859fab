"""Tokens that the last stage hands to stage 0: found by request, generation and position, and by nothing else."""

from __future__ import annotations

import pytest

from paceline.errors import PipelineError
from paceline.messages import PLACEHOLDER, LoopedToken, LoopedTokens, NewRequest, Plan, SampledToken, Slice
from paceline.pipeline.loop_back import ANY_TOKEN, LoopedTokenStore, looped_tokens
from paceline.sampling_params import SamplingParams


def known(*requests: tuple[int, int]) -> dict[int, NewRequest]:
    return {number: NewRequest(number, generation, 1, SamplingParams(), ()) for number, generation in requests}


def ahead(request: int, generation: int, position: int) -> Slice:
    return Slice(request, generation, position, [PLACEHOLDER], True, 0, [])


def plan(*slices: Slice, epoch: int = 0) -> Plan:
    return Plan(epoch, 9, list(slices), [], [])


def handed(*tokens: LoopedToken, epoch: int = 0) -> LoopedTokens:
    return LoopedTokens(epoch, 8, list(tokens))


def test_a_token_stands_in_for_its_placeholder() -> None:
    store = LoopedTokenStore()
    waiting = plan(ahead(3, 1, 7), Slice(4, 0, 0, [5, 6], True, 0, []))
    assert not store.has_all(waiting)
    store.take(handed(LoopedToken(3, 1, 7, 42)), known((3, 1), (4, 0)))
    assert store.has_all(waiting)
    assert [store.inputs(waiting, slice_) for slice_ in waiting.slices] == [[42], [5, 6]]


@pytest.mark.parametrize(
    ("token", "epoch"),
    [
        (LoopedToken(2, 1, 7, 42), 0),  # another request, in the very same row
        (LoopedToken(3, 0, 7, 42), 0),  # the request before it ended and was told of anew
        (LoopedToken(3, 1, 6, 42), 0),  # the position before
        (LoopedToken(3, 1, 7, 42), 1),  # a pipeline that was restarted
    ],
)
def test_no_other_token_stands_in(token: LoopedToken, epoch: int) -> None:
    store = LoopedTokenStore()
    store.take(handed(token, epoch=epoch), known((2, 1), (3, 1)))
    waiting = plan(ahead(3, 1, 7))
    assert not store.has_all(waiting)
    with pytest.raises(PipelineError, match="request 3 at position 7"):
        store.inputs(waiting, waiting.slices[0])


def test_what_comes_for_a_request_that_was_released_is_not_kept() -> None:
    store = LoopedTokenStore()
    store.take(handed(LoopedToken(3, 1, 7, 42)), known())
    store.take(handed(LoopedToken(3, 1, 7, 42)), known((3, 2)))
    assert len(store) == 0
    store.take(handed(LoopedToken(3, 1, 7, 42), LoopedToken(4, 0, 1, 9)), known((3, 1), (4, 0)))
    store.forget(3)
    store.forget(3)
    assert len(store) == 1


def test_only_the_newest_token_of_a_request_is_kept() -> None:
    store = LoopedTokenStore()
    for position in range(100):
        store.take(handed(LoopedToken(3, 1, position, 42)), known((3, 1)))
    assert len(store) == 1
    assert store.has_all(plan(ahead(3, 1, 99)))


def test_a_row_that_failed_leaves_a_tombstone_and_keeps_nobody_waiting() -> None:
    failing = Plan(0, 8, [Slice(3, 1, 5, [1, 1], True, 0, []), Slice(4, 0, 0, [1], False, 0, [])], [], [])
    message = looped_tokens(failing, [SampledToken(3, 1, -1, error="the model's logits hold nan")])
    assert message == handed(LoopedToken(3, 1, 7, -1))
    store = LoopedTokenStore()
    store.take(message, known((3, 1)))
    waiting = plan(ahead(3, 1, 7))
    assert store.has_all(waiting)
    assert store.inputs(waiting, waiting.slices[0]) == [ANY_TOKEN]
