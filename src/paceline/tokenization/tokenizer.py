"""One tokenizer, whatever file it came from.

Built on the ``tokenizers`` library alone: importing ``transformers`` for the same Rust code costs most of a
second (and, for ``AutoTokenizer``, all of torch), which every start of the server would pay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from paceline.tokenization.chat_template import ChatTemplate
from paceline.tokenization.pieces import PieceToBytes


@dataclass(frozen=True)
class Vocabulary:
    """What is known about the tokens, apart from how text is cut into them.

    Attributes:
        pieces: each token's text as the vocabulary spells it, by id.
        piece_to_bytes: from that spelling to bytes.
        added: ids of tokens that are found in the text before it is cut, mapped to their text.
        special: ids of control tokens; each is in `added` too.
        bos_token_id: begins a text, if the model has such a token.
        eos_token_ids: each ends an answer.
        prefix: ids put before a text when special tokens are asked for.
        suffix: ids put after it.
        strips_first_space: the text's first space is not part of it (SentencePiece puts one there).
    """

    pieces: Sequence[str]
    piece_to_bytes: PieceToBytes
    added: Mapping[int, str]
    special: frozenset[int]
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    strips_first_space: bool = False
    special_texts: Mapping[str, str] = field(default_factory=dict)  # names that chat templates use


class Tokenizer:
    """Text to token ids and back, and conversations to prompts. Safe to use from several threads."""

    def __init__(self, backend: Backend, vocabulary: Vocabulary, chat_template: ChatTemplate) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._chat_template = chat_template
        self._bytes: list[bytes | None] = [None] * len(vocabulary.pieces)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included. The model's embedding may have more rows."""
        return len(self._vocabulary.pieces)

    @property
    def bos_token_id(self) -> int | None:
        return self._vocabulary.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every token that ends an answer; may be empty."""
        return self._vocabulary.eos_token_ids

    @property
    def strips_first_space(self) -> bool:
        """Whether a text that begins with a space loses it when detokenized (SentencePiece models)."""
        return self._vocabulary.strips_first_space

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template.exists

    def encode(self, text: str, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        """Token ids of `text`.

        Args:
            text: any text; a lone surrogate counts as U+FFFD.
            add_special_tokens: put the tokens before (BOS) and after the text that the model expects.
                A chat prompt has them already: pass False for it.
            allow_special: recognise special tokens written in the text; else they are plain text.
        """
        text = text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
        backend = self._backend if allow_special else self._plain_backend
        # A batch of one: only the call for batches lets other threads run meanwhile.
        ids: list[int] = backend.encode_batch([text], add_special_tokens=False)[0].ids
        if add_special_tokens:
            return [*self._vocabulary.prefix, *ids, *self._vocabulary.suffix]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary nothing."""
        data = b"".join(
            self.token_bytes(token) for token in ids if not (skip_special_tokens and self.is_special(token))
        )
        if self.strips_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text: possibly part of a character, empty for ids outside the vocabulary."""
        if not 0 <= token_id < len(self._bytes):
            return b""
        known = self._bytes[token_id]
        if known is None:
            text = self._vocabulary.added.get(token_id)
            piece = self._vocabulary.pieces[token_id]
            known = text.encode("utf-8") if text is not None else self._vocabulary.piece_to_bytes(piece)
            self._bytes[token_id] = known
        return known

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which `decode` leaves out by default."""
        return token_id in self._vocabulary.special

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that the model's chat template (or `chat_template`) makes of a conversation.

        The prompt holds the special tokens as text: encode it with ``add_special_tokens=False``.
        Takes about a millisecond, but a bad template may take seconds: do not call it on an event loop.

        Raises:
            RequestError: ``no_chat_template`` or ``template_error``, both status 400.
        """
        variables = {**self._vocabulary.special_texts, **(kwargs or {})}
        return self._chat_template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            override=chat_template,
            variables=variables,
        )

    @cached_property
    def _plain_backend(self) -> Backend:
        """Shares the vocabulary with the first one, but reads special tokens as text."""
        twin = Backend(self._backend.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(self._backend, part) is not None:
                setattr(twin, part, getattr(self._backend, part))
        # All of them and in order, though control tokens are not looked for: an added token's id is its place.
        added: dict[int, AddedToken] = self._backend.get_added_tokens_decoder()
        twin.add_tokens([token for _, token in sorted(added.items())])
        twin.encode_special_tokens = True
        return twin
