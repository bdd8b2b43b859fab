"""Tokens to make prompts of, for a server whose tokenizer may not be here."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense nation plan college "
    "interest death experience effect use class control field development role effort rate heart drug show leader light "
    "voice wife police mind price report decision son view relationship town road arm difference value building action "
    "season society tax director position player record paper space ground form event official matter center couple "
    "site project activity star table need court oil situation cost industry figure street image phone data picture "
    "practice piece land product doctor wall patient worker news test movie north love support technology step baby "
    "computer type attention film tree source organization hair window evidence"
)
WORDS = _WORDS.split()  # short and English: one token each in most vocabularies


@dataclass(frozen=True)
class Vocabulary:
    """Random prompts of a wanted length, and the lengths of texts.

    Attributes:
        tokens: ids to draw prompts from; empty if the server takes texts only, where a token is taken to be a word.
        encode: token ids of a text.
    """

    tokens: Sequence[int]
    encode: Callable[[str], Awaitable[Sequence[int]]]

    def prompt(self, draw: random.Random, length: int) -> list[int] | str:
        """`length` random tokens: exactly so many as ids, about so many as words."""
        if self.tokens:
            return draw.choices(self.tokens, k=length)
        return " ".join(draw.choices(WORDS, k=length))
