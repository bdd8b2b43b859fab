"""From a token's text in the vocabulary to the bytes that the token stands for.

Two spellings are in use. *Byte-level* vocabularies (GPT-2 and everything after it) write each byte as one
printable character. *SentencePiece* vocabularies write text as it is, a space as U+2581, and a byte that is
no whole character as ``<0xE2>``. Bytes, not text, are the honest unit: a token may be part of a character.
"""

from __future__ import annotations

import re
from collections.abc import Callable

SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_characters() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


BYTE_OF_CHARACTER = _byte_characters()


def byte_level_piece(piece: str) -> bytes:
    """The bytes of a byte-level piece; a piece with other characters in it means its own text."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return piece.encode("utf-8", "replace")


def sentencepiece_piece(piece: str) -> bytes:
    """The bytes of a SentencePiece piece: ``<0xE2>`` is one byte, U+2581 a space."""
    match = _BYTE_PIECE.fullmatch(piece)
    if match:
        return bytes([int(match.group(1), 16)])
    return piece.replace(SPACE_MARK, " ").encode("utf-8", "replace")


PieceToBytes = Callable[[str], bytes]
