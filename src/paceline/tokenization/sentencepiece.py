"""SentencePiece vocabularies of the BPE kind (Llama 1 and 2, Mistral, Gemma) as tokenizers of the `tokenizers` library.

They come from GGUF metadata or from a ``tokenizer.model`` file, which is a protocol buffer: fields 1 of the model are the
pieces, 2 the training options, 3 the normaliser's. The few fields that matter are read here, since transformers needs
two more packages for it and splits runs of spaces differently from SentencePiece itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from paceline.errors import ModelError
from paceline.tokenization.pieces import SPACE_MARK

# Types of pieces, numbered alike in GGUF and in tokenizer.model.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
_ADDED = (UNKNOWN, CONTROL, USER_DEFINED)
_BPE = 2  # trainer_spec.model_type
_MAX_FILE_BYTES = 64 << 20
_MAX_PIECE = 1024  # characters; the ways to cut a piece in two take time with their square


class Pieces(NamedTuple):
    """A vocabulary: texts, scores and types by id, and whether a space is put before each text."""

    texts: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    add_space_prefix: bool


def sentencepiece_backend(pieces: Pieces) -> Backend:
    """The tokenizer of a vocabulary, with its control and user-defined tokens, without BOS and EOS around texts.

    Raises:
        ModelError: a vocabulary that cannot be.
    """
    if len(pieces.scores) != len(pieces.texts):
        raise ModelError(f"the vocabulary has {len(pieces.texts)} pieces but {len(pieces.scores)} scores")
    if max(map(len, pieces.texts)) > _MAX_PIECE:
        raise ModelError(f"the vocabulary has a piece of more than {_MAX_PIECE} characters")
    vocab = {piece: index for index, piece in enumerate(pieces.texts)}
    unknown = next((pieces.texts[i] for i, kind in enumerate(pieces.types) if kind == UNKNOWN), None)
    merges = _merges_by_score(vocab, pieces)
    backend = Backend(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    before = [normalizers.Prepend(SPACE_MARK)] if pieces.add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE_MARK)])
    after = [decoders.Strip(" ", 1, 0)] if pieces.add_space_prefix else []
    replace = decoders.Replace(SPACE_MARK, " ")
    backend.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), *after])
    add_special(backend, pieces.texts, pieces.types)
    return backend


def add_special(backend: Backend, texts: Sequence[str], types: Sequence[int]) -> tuple[dict[int, str], frozenset[int]]:
    """Make the backend find control and user-defined tokens in texts.

    Returns:
        Their texts by id, and which of them are control tokens.
    """
    added = {index: texts[index] for index, kind in enumerate(types) if kind in _ADDED and texts[index]}
    special = frozenset(index for index in added if types[index] != USER_DEFINED)
    backend.add_tokens([AddedToken(text, special=i in special, normalized=False) for i, text in added.items()])
    return added, special


def _merges_by_score(vocab: Mapping[str, int], pieces: Pieces) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score of the third first.

    SentencePiece joins whichever neighbours make the piece of the highest score; as a list of merges that is the
    order of scores.
    """
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, index in vocab.items():
        if pieces.types[index] != NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((-pieces.scores[index], vocab[left], vocab[right], (left, right)))
    ranked.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in ranked]


def read_model_file(path: Path) -> Pieces:
    """The vocabulary in a ``tokenizer.model`` file.

    Raises:
        ModelError: damaged, or of a kind (unigram, with its own normaliser) that is not supported.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelError(f"{path}: larger than {_MAX_FILE_BYTES} bytes")
        fields = list(_fields(path.read_bytes()))
        listed = [dict(_fields(_block(value))) for number, value in fields if number == 1]
        training = dict(_fields(_block(dict(fields).get(2, b""))))
        normaliser = dict(_fields(_block(dict(fields).get(3, b""))))
        pieces = Pieces(
            texts=[_block(piece.get(1, b"")).decode("utf-8") for piece in listed],
            scores=[struct.unpack("<f", _block(piece.get(2, bytes(4))))[0] for piece in listed],
            types=[_number(piece.get(3, NORMAL)) for piece in listed],
            add_space_prefix=bool(normaliser.get(3, 1)),
        )
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, struct.error) as error:
        raise ModelError(f"{path}: not a SentencePiece model: {error}") from error
    if not pieces.texts or training.get(3, 1) != _BPE:
        raise ModelError(f"{path}: only SentencePiece models of the BPE kind are supported; give a tokenizer.json")
    if normaliser.get(2) or normaliser.get(4, 1):
        raise ModelError(f"{path}: its normaliser changes texts, which is not supported; give a tokenizer.json")
    return pieces


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protocol buffer message; four- and eight-byte values as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"field type {kind} at byte {at}")
        if size > len(data) - at:
            raise ValueError(f"a field of {size} bytes at byte {at} goes past the end")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number ends badly at byte {at}")


def _block(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where text or a message should be")
    return value


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("text where a number should be")
    return value
