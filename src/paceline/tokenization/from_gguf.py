"""The tokenizer and chat template that a GGUF file carries in its metadata.

`transformers` reads GGUF tokenizers too, but takes no notice of ``tokenizer.ggml.pre``, so that it cuts text
wrongly for many models (for SmolLM2, whose digits stand alone, in one text of six). Hence this module.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Backend

from paceline.errors import ModelError
from paceline.tokenization.chat_template import ChatTemplate
from paceline.tokenization.pieces import SPACE_MARK, byte_level_piece, sentencepiece_piece
from paceline.tokenization.pretokenizers import DEFAULT, pre_tokenizer, scheme_named
from paceline.tokenization.tokenizer import Tokenizer, Vocabulary

logger = logging.getLogger(__name__)

# Values of tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# Control tokens that end an answer under these names even where a file's eos_token_id is another one (files
# of chat models made early name the base model's).
_END_OF_TURN = {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>"}


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that GGUF metadata describes (keys ``tokenizer.ggml.*``, ``tokenizer.chat_template``).

    Raises:
        ModelError: no tokenizer in the file, a kind that is not supported, or inconsistent tables.
    """
    kind = metadata.get("tokenizer.ggml.model")
    pieces = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(kind, str) or not pieces:
        raise ModelError("the GGUF file has no tokenizer in it; give one with --tokenizer FOLDER_OR_HUB_NAME")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(pieces)
    if len(types) != len(pieces):
        raise ModelError(f"the GGUF file has {len(pieces)} tokens but {len(types)} token types")
    if kind == "gpt2":
        backend, add_bos = _byte_level(metadata, pieces)
        strips_first_space = False
    elif kind == "llama":
        backend, add_bos = _sentencepiece(metadata, pieces, types)
        strips_first_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    else:
        raise ModelError(
            f"the GGUF file's tokenizer is of kind {kind!r}; Paceline reads 'gpt2' and 'llama'. "
            "Give the model's original tokenizer with --tokenizer FOLDER_OR_HUB_NAME."
        )
    added = {i: pieces[i] for i, t in enumerate(types) if t in (_UNKNOWN, _CONTROL, _USER_DEFINED) and pieces[i]}
    special = frozenset(i for i in added if types[i] != _USER_DEFINED)
    backend.add_tokens([AddedToken(text, special=i in special, normalized=False) for i, text in added.items()])
    bos = _token_id(metadata, "bos", pieces)
    eos = _token_id(metadata, "eos", pieces)
    vocabulary = Vocabulary(
        pieces=pieces,
        piece_to_bytes=byte_level_piece if kind == "gpt2" else sentencepiece_piece,
        added=added,
        special=special,
        bos_token_id=bos,
        eos_token_ids=_eos_ids(metadata, pieces, special),
        prefix=(bos,) if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", add_bos) else (),
        suffix=(eos,) if eos is not None and metadata.get("tokenizer.ggml.add_eos_token", False) else (),
        strips_first_space=strips_first_space,
        special_texts=_special_texts(metadata, pieces),
    )
    return Tokenizer(backend, vocabulary, ChatTemplate(_templates(metadata)))


def _byte_level(metadata: Mapping[str, Any], pieces: Sequence[str]) -> tuple[Backend, bool]:
    name = metadata.get("tokenizer.ggml.pre")
    if not name:
        logger.warning(
            "the GGUF file does not name its pre-tokenizer; using %r, which may cut text differently from the "
            "model's own (give that one with --tokenizer)",
            DEFAULT,
        )
    scheme = scheme_named(name or DEFAULT)
    merges = [_merge(line) for line in metadata.get("tokenizer.ggml.merges") or ()]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    try:
        model = models.BPE(vocab, merges, ignore_merges=scheme.ignore_merges)
    except Exception as error:
        raise ModelError(f"the GGUF file's merges do not fit its vocabulary: {error}") from error
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizer(scheme)
    return backend, scheme.add_bos


def _merge(line: str) -> tuple[str, str]:
    # A piece may itself begin with a space in odd vocabularies, so look for the separator after the first character.
    cut = line.find(" ", 1)
    if cut < 0:
        raise ModelError(f"the GGUF file has a merge that is no pair: {line!r}")
    return line[:cut], line[cut + 1 :]


def _sentencepiece(metadata: Mapping[str, Any], pieces: Sequence[str], types: Sequence[int]) -> tuple[Backend, bool]:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(pieces):
        raise ModelError("the GGUF file's SentencePiece vocabulary has no score for each token")
    vocab = {piece: index for index, piece in enumerate(pieces)}
    unknown = next((pieces[i] for i, t in enumerate(types) if t == _UNKNOWN), None)
    model = models.BPE(
        vocab, _merges_by_score(vocab, scores, types), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    backend = Backend(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
    backend.normalizer = normalizers.Sequence(steps)
    return backend, True


def _merges_by_score(vocab: Mapping[str, int], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score of the third first.

    SentencePiece joins whichever neighbours make the piece of the highest score; as a list of merges that is
    the order of scores.
    """
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, index in vocab.items():
        if types[index] != 1 or len(piece) < 2:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[index], vocab[left], vocab[right], (left, right)))
    ranked.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in ranked]


def _token_id(metadata: Mapping[str, Any], name: str, pieces: Sequence[str]) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(pieces):
        raise ModelError(f"the GGUF file's {name}_token_id {value} is outside its vocabulary of {len(pieces)} tokens")
    return value


def _eos_ids(metadata: Mapping[str, Any], pieces: Sequence[str], special: frozenset[int]) -> tuple[int, ...]:
    named = [_token_id(metadata, name, pieces) for name in ("eos", "eot", "eom")]
    by_text = [index for index in sorted(special) if pieces[index] in _END_OF_TURN]
    return tuple(dict.fromkeys(index for index in [*named, *by_text] if index is not None))


def _special_texts(metadata: Mapping[str, Any], pieces: Sequence[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {variable: _token_id(metadata, name, pieces) for variable, name in names.items()}
    return {variable: pieces[index] for variable, index in ids.items() if index is not None}


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name: ``default``, and whatever ``tokenizer.chat_template.NAME`` adds (``tool_use``)."""
    prefix = "tokenizer.chat_template"
    found = {key[len(prefix) + 1 :]: text for key, text in metadata.items() if key.startswith(prefix + ".")}
    if isinstance(metadata.get(prefix), str):
        found["default"] = metadata[prefix]
    return {name: text for name, text in found.items() if isinstance(text, str)}
