"""The tokenizer and chat template of a folder in Hugging Face's layout.

``tokenizer.json`` is read by the ``tokenizers`` library itself: the same Rust code that transformers' tokenizers
run, without importing transformers. Of folders from before that file existed, those with a SentencePiece
``tokenizer.model`` are read here too; those with ``vocab.json`` and ``merges.txt`` are converted by transformers,
which is imported only then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from paceline.errors import ModelError
from paceline.tokenization.chat_template import ChatTemplate
from paceline.tokenization.pieces import PieceToBytes, byte_level_piece, sentencepiece_piece
from paceline.tokenization.sentencepiece import read_model_file, sentencepiece_backend
from paceline.tokenization.tokenizer import Tokenizer, Vocabulary
from paceline.weights.checkpoint import generation_config, read_json

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_TEMPLATE_SUFFIX = ".jinja"


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Build the tokenizer of a model folder.

    Raises:
        ModelError: no tokenizer files, damaged ones, or a kind whose text cannot be put together piece by piece.
    """
    config = _optional_json(folder / "tokenizer_config.json")
    backend = _backend(folder)
    _add_missing_tokens(backend, config)
    piece_to_bytes, strips_first_space = _decoding(backend, folder)
    decoder = backend.get_added_tokens_decoder()
    by_text = backend.get_vocab(with_added_tokens=True)
    pieces = [""] * (max(by_text.values(), default=-1) + 1)
    for piece, index in by_text.items():
        pieces[index] = piece
    texts = _special_texts(config, _optional_json(folder / "special_tokens_map.json"))
    bos = by_text.get(texts.get("bos_token", ""))
    eos = by_text.get(texts.get("eos_token", ""))
    prefix, suffix = _around(backend)
    if not (folder / "tokenizer.json").exists() and (folder / "tokenizer.model").exists():
        config = {"add_bos_token": True, **config}  # SentencePiece leaves it to the program; its models expect it
    vocabulary = Vocabulary(
        pieces=pieces,
        piece_to_bytes=piece_to_bytes,
        added={index: token.content for index, token in decoder.items()},
        special=frozenset(index for index, token in decoder.items() if token.special),
        bos_token_id=bos,
        eos_token_ids=_eos_ids(folder, eos),
        prefix=_overruled(prefix, bos, config.get("add_bos_token"), at_front=True),
        suffix=_overruled(suffix, eos, config.get("add_eos_token"), at_front=False),
        strips_first_space=strips_first_space,
        special_texts=texts,
    )
    return Tokenizer(backend, vocabulary, ChatTemplate(_templates(folder, config)))


def _backend(folder: Path) -> Backend:
    file = folder / "tokenizer.json"
    if file.exists():
        try:
            backend = Backend.from_file(str(file))
        except Exception as error:  # the library raises nothing more exact
            raise ModelError(f"{file}: not a usable tokenizer: {error}") from error
    elif (folder / "tokenizer.model").exists():
        backend = sentencepiece_backend(read_model_file(folder / "tokenizer.model"))
    elif (folder / "vocab.json").exists():
        backend = _converted(folder)
    else:
        raise ModelError(
            f"{folder} holds no tokenizer (looked for tokenizer.json, tokenizer.model and vocab.json). "
            "Give the model's tokenizer with --tokenizer FOLDER_OR_HUB_NAME."
        )
    backend.no_truncation()
    backend.no_padding()
    return backend


def _converted(folder: Path) -> Backend:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        backend: Backend = tokenizer.backend_tokenizer
    except Exception as error:  # whatever a damaged file makes of it
        raise ModelError(f"{folder}: its tokenizer files cannot be converted: {error}") from error
    return Backend.from_str(backend.to_str())


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _add_missing_tokens(backend: Backend, config: Mapping[str, Any]) -> None:
    """Tokens that only tokenizer_config.json knows of; those that tokenizer.json has stay as they are."""
    known = backend.get_vocab(with_added_tokens=True)
    listed = config.get("added_tokens_decoder") or {}
    for _, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        if entry["content"] not in known:
            flags = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "special", "single_word")}
            backend.add_tokens([AddedToken(entry["content"], normalized=False, **flags)])


def _decoding(backend: Backend, folder: Path) -> tuple[PieceToBytes, bool]:
    """How pieces spell bytes, and whether a text's first space is dropped; read off the decoder."""
    decoder = json.loads(backend.to_str())["decoder"]
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return byte_level_piece, False
    if "Metaspace" in kinds:
        return sentencepiece_piece, next(s for s in steps if s["type"] == "Metaspace").get("prepend_scheme") != "never"
    if kinds & {"ByteFallback", "Replace"}:
        return sentencepiece_piece, any(s["type"] == "Strip" and s["content"] == " " and s["start"] for s in steps)
    raise ModelError(f"{folder}: tokenizers with a decoder of type {sorted(kinds) or None} are not supported")


def _around(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that the post-processor puts before and after a text."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _overruled(ids: tuple[int, ...], token: int | None, asked: object, at_front: bool) -> tuple[int, ...]:
    """tokenizer_config.json may say outright whether BOS (EOS) is added; it wins over the post-processor."""
    if not isinstance(asked, bool) or token is None or asked == (token in ids):
        return ids
    if not asked:
        return tuple(index for index in ids if index != token)
    return (token, *ids) if at_front else (*ids, token)


def _special_texts(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the named special tokens; each is written as a string or as an object with `content`."""
    found: dict[str, str] = {}
    for source in sources:
        for name in _SPECIAL_NAMES:
            value = source.get(name)
            text = value.get("content") if isinstance(value, Mapping) else value
            if isinstance(text, str):
                found.setdefault(name, text)
    return found


def _eos_ids(folder: Path, eos: int | None) -> tuple[int, ...]:
    listed: list[int] = []
    if (folder / "generation_config.json").exists() or (folder / "config.json").exists():
        listed = generation_config(folder)["eos_token_id"]
    return tuple(dict.fromkeys([*listed, *([] if eos is None else [eos])]))


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name, newest place first: chat_template.jinja, additional_chat_templates/, the configuration."""
    found: dict[str, str] = {}
    listed = config.get("chat_template") or _optional_json(folder / "chat_template.json").get("chat_template")
    if isinstance(listed, str):
        found["default"] = listed
    elif isinstance(listed, list):
        found = {entry["name"]: entry["template"] for entry in listed}
    for file in sorted((folder / "additional_chat_templates").glob("*" + _TEMPLATE_SUFFIX)):
        found[file.stem] = file.read_text(encoding="utf-8")
    main = folder / ("chat_template" + _TEMPLATE_SUFFIX)
    if main.exists():
        found["default"] = main.read_text(encoding="utf-8")
    return found
