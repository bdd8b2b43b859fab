"""The tokenizer of a model folder or a GGUF file. Nothing from the model's repository is ever run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from paceline.errors import ModelError
from paceline.tokenization.chat_template import ChatTemplate
from paceline.tokenization.from_gguf import tokenizer_from_metadata
from paceline.tokenization.pieces import SPACE_MARK, byte_level_piece, sentencepiece_piece
from paceline.tokenization.tokenizer import Tokenizer, Vocabulary
from paceline.weights.checkpoint import read_json
from paceline.weights.gguf_header import read_gguf_header

_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer at `path`: a .gguf file, or a folder with tokenizer.json (or with one .gguf file).

    Raises:
        ModelError: there is none, or it is of a kind that is not supported.
    """
    if path.is_file():
        return tokenizer_from_metadata(read_gguf_header(path).metadata)
    if (path / "tokenizer.json").exists():
        return _from_folder(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return tokenizer_from_metadata(read_gguf_header(files[0]).metadata)
    raise ModelError(f"{path}: no tokenizer.json; give the model's tokenizer with --tokenizer FOLDER_OR_GGUF")


def _from_folder(folder: Path) -> Tokenizer:
    try:
        backend = Backend.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exception for anything wrong in the file
        raise ModelError(f"{folder / 'tokenizer.json'}: {error}") from error
    config = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
    special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
    size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
    pieces = [backend.id_to_token(i) or "" for i in range(size)]
    uses_marks = any(SPACE_MARK in piece for piece in pieces)
    texts = {name: _text(config.get(name)) for name in _SPECIAL_NAMES}
    ids = {name: backend.token_to_id(text) if text else None for name, text in texts.items()}
    prefix, suffix = _around(backend)
    return Tokenizer(
        backend,
        Vocabulary(
            pieces=pieces,
            piece_to_bytes=sentencepiece_piece if uses_marks else byte_level_piece,
            added=added,
            special=special,
            bos_token_id=ids["bos_token"],
            eos_token_ids=_eos_ids(folder, ids["eos_token"]),
            prefix=prefix,
            suffix=suffix,
            strips_first_space=uses_marks,
            special_texts={name: text for name, text in texts.items() if text},
        ),
        ChatTemplate(_templates(folder, config)),
    )


def _around(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's own post-processor puts before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    framed = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return tuple(framed[:start]), tuple(framed[start + len(plain) :])
    return (), ()


def _text(value: Any) -> str:
    """A special token is written as a text, or as an object with its text in ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _eos_ids(folder: Path, own: int | None) -> tuple[int, ...]:
    ids = set() if own is None else {own}
    path = folder / "generation_config.json"
    if path.exists():
        given = read_json(path).get("eos_token_id")
        ids.update(i for i in (given if isinstance(given, list) else [given]) if isinstance(i, int))
    return tuple(sorted(ids))


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """chat_template.jinja beside the configuration wins over what is inside it."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return {"default": path.read_text(encoding="utf-8")}
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        named = {t["name"]: t["template"] for t in given if isinstance(t, dict) and {"name", "template"} <= t.keys()}
        return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}
    return {}
