"""The text of one request's output, token by token, ready to be sent as it comes.

Two things cannot be sent at once: bytes that are only part of a character, and the beginning of what may become a
stop string. Both are held back, no more than that, and given out at the end. Work per token does not depend on
how much text there is already: nothing is ever decoded twice.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from paceline.sampling_params import SamplingParams
from paceline.tokenization.stop_strings import stop_strings

_MAX_CHARACTER_BYTES = 4


class TokenTexts(Protocol):
    """What the detokenizer needs of a tokenizer."""

    @property
    def strips_first_space(self) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class Detokenizer:
    """Turns output tokens into text, and ends the output at a stop string.

    The deltas put together are what detokenizing prompt and output as a whole adds to the prompt's own text. If the
    prompt ends within a character, the output that completes it begins with that character; if the output does
    not complete it, the prompt's bytes are no part of the output. Text made by the first ``min_tokens`` tokens is
    not searched for stop strings.

    Attributes:
        stopped_by: the stop string that was found, or None. Nothing is taken in after it.
        num_tokens: output tokens that exist: all pushed so far, or up to the one that completed the stop string.
    """

    def __init__(self, tokenizer: TokenTexts, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skip_special = sampling.skip_special_tokens
        self._include_stop = sampling.include_stop_str_in_output
        self._min_tokens = sampling.min_tokens
        self._stops = stop_strings(sampling.stop) if any(sampling.stop) else None
        self._state = 0
        self._held = ""  # text that may be the beginning of a stop string
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._prompt_tail, text_before = self._end_of(prompt_token_ids)
        self._at_start = tokenizer.strips_first_space and not text_before
        self.stopped_by: str | None = None
        self.num_tokens = 0

    def push(self, token_ids: Sequence[int], finished: bool) -> str:
        """Take in new output tokens.

        Args:
            token_ids: the tokens whose text belongs to the output.
            finished: no more will come, so nothing is held back any longer.

        Returns:
            The text that can be sent now; may be empty.
        """
        sent: list[str] = []
        for token in token_ids:
            if self.stopped_by is not None:
                break
            self.num_tokens += 1
            self._take(self._text_of(token), sent)
        if finished and self.stopped_by is None:
            self._take(self._flush(), sent)
            sent.append(self._held)
            self._held = ""
        return "".join(sent)

    def _text_of(self, token: int) -> str:
        """What the token completes: whole characters, and U+FFFD for bytes that can be part of none."""
        data = self._bytes_of(token)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        if self._prompt_tail and data:
            data = self._continue_prompt(data)
        return self._decoder.decode(data)

    def _continue_prompt(self, data: bytes) -> bytes:
        """The first bytes of the output, with the prompt's unfinished character before them if they go on with it."""
        tail, self._prompt_tail = self._prompt_tail, b""
        try:
            codecs.getincrementaldecoder("utf-8")("strict").decode(tail + data[:1])
        except UnicodeDecodeError:
            return data
        return tail + data

    def _take(self, text: str, sent: list[str]) -> None:
        """Search the text for stop strings, and pass on what can be sent."""
        if self._stops is None or not text:
            sent.append(text)
            return
        if self.num_tokens <= self._min_tokens:
            sent.append(self._held + text)
            return
        self._state, match = self._stops.feed(self._state, text)
        whole = self._held + text
        if match is None:
            keep = len(whole) - self._stops.held_back(self._state)
            sent.append(whole[:keep])
            self._held = whole[keep:]
            return
        self.stopped_by = match.stop
        end = len(self._held) + match.end
        sent.append(whole[: end if self._include_stop else end - len(match.stop)])
        self._held = ""

    def _flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _bytes_of(self, token: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token):
            return b""
        return self._tokenizer.token_bytes(token)

    def _end_of(self, prompt: Sequence[int]) -> tuple[bytes, bool]:
        """The unfinished character at the prompt's end, and whether the prompt has any text at all."""
        tail = b""
        for token in reversed(prompt):
            tail = self._bytes_of(token) + tail
            if len(tail) >= _MAX_CHARACTER_BYTES:
                break
        return _unfinished(tail), bool(tail)


def _unfinished(data: bytes) -> bytes:
    """The bytes at the end that begin a character which is not whole."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_MAX_CHARACTER_BYTES:])
    pending, _ = decoder.getstate()
    return pending
