"""Log probabilities in the two shapes that OpenAI's APIs have."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from paceline.messages import TokenLogprobs
from paceline.tokenization import Tokenizer

FLOOR = -9999.0  # stands for "impossible": JSON has no infinity


def finite(value: float) -> float:
    """`value`, or the floor where it is lower, infinite or not a number."""
    return value if value >= FLOOR else FLOOR


class TokenNames:
    """How a token is written in an answer: its text, or ``token_id:N`` if asked for."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; may be part of a character."""
        return self._tokenizer.token_bytes(token_id)

    def name(self, token_id: int) -> str:
        """The text; bytes that are no text alone are spelled out, so that different tokens stay different."""
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self.bytes_of(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(ids: Sequence[int], rows: Sequence[TokenLogprobs], names: TokenNames) -> dict[str, Any]:
    """The `logprobs` object of a chat choice, for the tokens `ids`."""

    def entry(token_id: int, value: float) -> dict[str, Any]:
        return {"token": names.name(token_id), "logprob": finite(value), "bytes": list(names.bytes_of(token_id))}

    return {
        "content": [
            entry(token_id, row.token)
            | {"top_logprobs": [entry(*top) for top in zip(row.top_ids, row.top, strict=True)]}
            for token_id, row in zip(ids, rows, strict=True)
        ]
    }


class CompletionLogprobs:
    """The `logprobs` object of a completion choice; keeps count of the text, which gives each token's offset."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def add(self, ids: Sequence[int], rows: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The object for the next tokens of the answer."""
        offsets = []
        for token_id in ids:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._names.bytes_of(token_id)))
        return {
            "text_offset": offsets,
            "token_logprobs": [finite(row.token) for row in rows],
            "tokens": [self._names.name(token_id) for token_id in ids],
            "top_logprobs": [self._top(token_id, row) for token_id, row in zip(ids, rows, strict=True)],
            "bytes": [list(self._names.bytes_of(token_id)) for token_id in ids],
        }

    def _top(self, token_id: int, row: TokenLogprobs) -> dict[str, float]:
        """The alternatives, and the chosen token even if it is none of them."""
        top = {self._names.name(other): finite(value) for other, value in zip(row.top_ids, row.top, strict=True)}
        return {self._names.name(token_id): finite(row.token)} | top
