"""Token loop-back: sampled tokens go from the last stage straight to stage 0, without waiting for the core's next plan.

A token is told apart by request, generation and position (and epoch), never by the row it had. Request numbers are
never reused, a generation ends with finish and abort, and what arrives for a request that stage 0 has released, or under
another generation, is dropped. So a token that is late finds no other request to enter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.errors import PipelineError
from paceline.messages import LoopedToken, LoopedTokens, NewRequest, Plan, SampledToken, Slice

ANY_TOKEN = 0  # the input where a tombstone came: the core drops what is computed from it


def looped_tokens(plan: Plan, sampled: Sequence[SampledToken]) -> LoopedTokens:
    """What the last stage hands to stage 0: every token of the plan, a tombstone where sampling failed."""
    sampling = (slice_ for slice_ in plan.slices if slice_.samples)
    tokens = [
        LoopedToken(slice_.request, slice_.generation, slice_.end, token.token_id)
        for slice_, token in zip(sampling, sampled, strict=True)
    ]
    return LoopedTokens(plan.epoch, plan.batch, tokens)


class LoopedTokenStore:
    """The newest token that stage 0 was handed for each request it knows.

    The newest is enough: the token after it is sampled in a batch that needs this one first.
    """

    def __init__(self) -> None:
        self._newest: dict[int, tuple[tuple[int, int, int], int]] = {}

    def take(self, message: LoopedTokens, known: Mapping[int, NewRequest]) -> None:
        """Keep the tokens of requests that the stage still knows under the same generation."""
        for token in message.tokens:
            request = known.get(token.request)
            if request is not None and request.generation == token.generation:
                name = (message.epoch, token.generation, token.position)
                self._newest[token.request] = (name, token.token_id)

    def forget(self, request: int) -> None:
        self._newest.pop(request, None)

    def has_all(self, plan: Plan) -> bool:
        """Whether every token that the plan has placeholders for is there."""
        return all(self._find(plan, slice_) is not None for slice_ in plan.slices if slice_.runs_ahead)

    def inputs(self, plan: Plan, slice_: Slice) -> list[int]:
        """The slice's input tokens, with the token in place of a placeholder.

        Raises:
            PipelineError: the token is not there.
        """
        if not slice_.runs_ahead:
            return slice_.token_ids
        token = self._find(plan, slice_)
        if token is None:
            raise PipelineError(
                f"batch {plan.batch} needs the token of request {slice_.request} at position {slice_.start}, which the "
                "last stage did not hand over"
            )
        return [token if token >= 0 else ANY_TOKEN]

    def _find(self, plan: Plan, slice_: Slice) -> int | None:
        name, token = self._newest.get(slice_.request, (None, None))
        return token if name == (plan.epoch, slice_.generation, slice_.start) else None

    def __len__(self) -> int:
        return len(self._newest)
