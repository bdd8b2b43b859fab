"""Which kind of tokenizer lies at a path."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ModelError
from paceline.tokenization.from_folder import tokenizer_from_folder
from paceline.tokenization.from_gguf import tokenizer_from_metadata
from paceline.tokenization.tokenizer import Tokenizer
from paceline.weights.gguf_header import read_gguf_header


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model on this machine. Opens no socket and runs no code of the model's.

    Args:
        path: a ``.gguf`` file; a folder with Hugging Face tokenizer files; or a folder with one ``.gguf`` file.

    Raises:
        ModelError: there is none, or it cannot be used.
    """
    if path.is_file():
        return tokenizer_from_metadata(read_gguf_header(path).metadata)
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or folder")
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs and not (path / "config.json").exists() and not (path / "tokenizer.json").exists():
        return tokenizer_from_metadata(read_gguf_header(ggufs[0]).metadata)
    return tokenizer_from_folder(path)
