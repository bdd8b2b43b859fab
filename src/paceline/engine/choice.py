"""One prompt's answer in the making: from engine outputs to text, and how it ended."""

from __future__ import annotations

import re
from typing import NamedTuple

from paceline.errors import RequestError
from paceline.messages import RequestOutput, TokenLogprobs
from paceline.request import FINISH_TABLE, RequestStatus
from paceline.sampling_params import SamplingParams
from paceline.tokenization import Tokenizer
from paceline.tokenization.detokenizer import Detokenizer

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


class Delta(NamedTuple):
    """What one engine output adds to an answer."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: str | None = None  # of the last one


class Choice:
    """State of one answer.

    Attributes:
        index: its place in the response's `choices`.
        request_id: the engine's name for it, made by the server.
        num_output_tokens: tokens that count, so far.
        finish_reason: None while it goes on.
        stop_reason: the stop string or stop token id that ended it, if one of the request's own did.
    """

    def __init__(
        self, index: int, request_id: str, prompt: list[int], sampling: SamplingParams, tokenizer: Tokenizer
    ) -> None:
        self.index = index
        self.request_id = request_id
        self.prompt_token_ids = prompt
        self.sampling = sampling
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.queue_seconds = -1.0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._detokenizer = Detokenizer(tokenizer, prompt, sampling)

    def push(self, output: RequestOutput) -> Delta:
        """Take in an output; text is held back until it can be sent for good.

        Raises:
            RequestError: the engine refused the request or failed in it.
        """
        if output.num_cached_tokens >= 0:
            self.num_cached_tokens = output.num_cached_tokens
        if output.queue_seconds >= 0:
            self.queue_seconds = output.queue_seconds
        status = RequestStatus(output.status) if output.status else None
        if status in (RequestStatus.FINISHED_ERROR, RequestStatus.FINISHED_REFUSED):
            raise _failure(status, output.error)
        tokens = output.token_ids
        text = self._detokenizer.push(self._with_text(output), status is not None)
        if self._detokenizer.stopped_by is not None:
            tokens = tokens[: self._detokenizer.num_tokens - self.num_output_tokens]
            self.finish_reason, self.stop_reason = "stop", self._detokenizer.stopped_by
        elif status is not None:
            self.finish_reason = FINISH_TABLE[status][0]
            if output.stop_token_id in self.sampling.stop_token_ids:
                self.stop_reason = output.stop_token_id
        self.num_output_tokens += len(tokens)
        logprobs = output.logprobs
        kept = logprobs[: len(tokens)] if logprobs is not None else None
        return Delta(text, tokens, kept, self.finish_reason)

    def _with_text(self, output: RequestOutput) -> list[int]:
        """The tokens whose text belongs to the answer: a stop token's own does not, unless asked for."""
        if output.stop_token_id is not None and not self.sampling.include_stop_str_in_output:
            return output.token_ids[:-1]
        return output.token_ids


def _failure(status: RequestStatus, error: str) -> RequestError:
    """The engine's reason, without what could tell a client about the inside of the process."""
    reason = _ADDRESS.sub("?", error.splitlines()[0] if error else "no reason given")
    if status is RequestStatus.FINISHED_REFUSED:
        return RequestError(f"The request cannot be served: {reason}", code="refused")
    return RequestError(f"The engine failed in this request: {reason}", status=500, code="engine_error")
