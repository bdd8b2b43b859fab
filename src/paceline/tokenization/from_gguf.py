"""The tokenizer and chat template that a GGUF file carries in its metadata.

`transformers` reads GGUF tokenizers too, but takes no notice of ``tokenizer.ggml.pre``, so that it cuts text
wrongly for many models (for SmolLM2, whose digits stand alone, in one text of six). Hence this module.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models

from paceline.errors import ModelError
from paceline.tokenization.chat_template import ChatTemplate
from paceline.tokenization.pieces import byte_level_piece, sentencepiece_piece
from paceline.tokenization.pretokenizers import DEFAULT, pre_tokenizer, scheme_named
from paceline.tokenization.sentencepiece import NORMAL, Pieces, add_special, sentencepiece_backend
from paceline.tokenization.tokenizer import Tokenizer, Vocabulary

logger = logging.getLogger(__name__)

# Control tokens that end an answer under these names even where a file's eos_token_id is another one (files
# of chat models made early name the base model's).
_END_OF_TURN = {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>"}


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that GGUF metadata describes (keys ``tokenizer.ggml.*``, ``tokenizer.chat_template``).

    Raises:
        ModelError: no tokenizer in the file, a kind that is not supported, or inconsistent tables.
    """
    kind = metadata.get("tokenizer.ggml.model")
    pieces = _list(metadata, "tokens", str)
    if not isinstance(kind, str) or not pieces:
        raise ModelError("the GGUF file has no tokenizer in it; give one with --tokenizer FOLDER_OR_HUB_NAME")
    types = _list(metadata, "token_type", int) or [NORMAL] * len(pieces)
    if len(types) != len(pieces):
        raise ModelError(f"the GGUF file has {len(pieces)} tokens but {len(types)} token types")
    if kind == "gpt2":
        backend, add_bos = _byte_level(metadata, pieces)
        strips_first_space = False
    elif kind == "llama":
        strips_first_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        scores = _list(metadata, "scores", (float, int))
        backend, add_bos = sentencepiece_backend(Pieces(pieces, scores, types, strips_first_space)), True
    else:
        raise ModelError(
            f"the GGUF file's tokenizer is of kind {kind!r}; Paceline reads 'gpt2' and 'llama'. "
            "Give the model's original tokenizer with --tokenizer FOLDER_OR_HUB_NAME."
        )
    added, special = add_special(backend, pieces, types)
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
    merges = [_merge(line) for line in _list(metadata, "merges", str)]
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


def _list(metadata: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> list[Any]:
    """A list from the tokenizer's metadata, empty if it is not there."""
    values = metadata.get(f"tokenizer.ggml.{name}") or []
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise ModelError(f"the GGUF file's tokenizer.ggml.{name} is not a list of the right kind")
    return values


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
