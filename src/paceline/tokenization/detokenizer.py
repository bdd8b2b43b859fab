"""The text of a stream of tokens: whole characters only, and nothing of a stop string.

Tokens become bytes, and bytes become text as soon as they complete a character. What could still turn out to be the
beginning of a stop string is held back; every character is looked at a bounded number of times.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from paceline.sampling_params import SamplingParams
from paceline.tokenization.tokenizer import Tokenizer


class Detokenizer:
    """Turns one request's output tokens into text deltas.

    Attributes:
        stopped_by: the stop string that ended the text, None so far.
        num_tokens: output tokens pushed; after a stop string, those up to the one that completed it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> None:
        self.stopped_by: str | None = None
        self.num_tokens = 0
        self._tokenizer = tokenizer
        self._skip_special = sampling.skip_special_tokens
        self._keep_stop = sampling.include_stop_str_in_output
        self._stops = [_StopString(text) for text in sampling.stop]
        # Bytes that the prompt's last tokens leave open are completed by the output, but its text is the prompt's.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_first_space = tokenizer.strips_first_space and not prompt_token_ids
        for byte_run in _open_tail(tokenizer, prompt_token_ids):
            self._decoder.decode(byte_run)
        self._held = ""  # decoded, but perhaps the beginning of a stop string

    def push(self, token_ids: Sequence[int], finished: bool) -> str:
        """The text that may be shown after these tokens.

        Args:
            finished: no more will come; what was held back is shown (a character that is still incomplete as U+FFFD).
        """
        shown: list[str] = []
        for token in token_ids:
            if self.stopped_by is not None:
                break
            self.num_tokens += 1
            shown.append(self._release(self._decoder.decode(self._bytes_of(token))))
        if finished and self.stopped_by is None:
            shown.append(self._release(self._decoder.decode(b"", final=True)))
            if self.stopped_by is None:
                shown.append(self._held)
                self._held = ""
        return "".join(shown)

    def _bytes_of(self, token: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token):
            return b""
        data = self._tokenizer.token_bytes(token)
        if self._drop_first_space and data:
            self._drop_first_space = False
            data = data.removeprefix(b" ")
        return data

    def _release(self, text: str) -> str:
        """Look for stop strings in the new text; returns what can no longer belong to one."""
        if not self._stops:
            return text
        for i, character in enumerate(text):
            done = [stop for stop in self._stops if stop.advance(character)]
            if done:
                stop = max(done, key=lambda s: len(s.text))  # it began first
                self.stopped_by = stop.text
                seen = self._held + text[: i + 1]
                self._held = ""
                return seen if self._keep_stop else seen[: len(seen) - len(stop.text)]
        seen = self._held + text
        keep = max(stop.matched for stop in self._stops)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep]


class _StopString:
    """Knuth, Morris and Pratt's automaton: how much of the string the text seen so far ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = [0] * (len(text) + 1)
        length = 0
        for i in range(1, len(text)):
            while length and text[i] != text[length]:
                length = self._fallback[length]
            length += text[i] == text[length]
            self._fallback[i + 1] = length

    def advance(self, character: str) -> bool:
        """Take one more character; True when it completes the string."""
        while self.matched and (self.matched == len(self.text) or self.text[self.matched] != character):
            self.matched = self._fallback[self.matched]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


def _open_tail(tokenizer: Tokenizer, prompt_token_ids: Sequence[int]) -> list[bytes]:
    """The last bytes of the prompt if they are the beginning of a character, else nothing."""
    tail = b""
    for token in reversed(prompt_token_ids[-4:]):
        if tokenizer.is_special(token):
            break
        tail = tokenizer.token_bytes(token) + tail
        if len(tail) >= 4:
            break
    for length in range(1, min(3, len(tail)) + 1):
        lead = tail[-length]
        if lead >= 0xC0:
            needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return [tail[-length:]] if needed > length else []
        if lead < 0x80:
            return []
    return []
