"""What a front end needs of a model before any engine runs: its files, its headers and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import EngineConfig
from paceline.tokenization import Tokenizer, load_tokenizer
from paceline.weights.checkpoint import Checkpoint, open_checkpoint
from paceline.weights.source import ModelFiles, resolve


@dataclass(frozen=True)
class FoundModel:
    """A model on this machine; its weights are not read yet."""

    files: ModelFiles
    checkpoint: Checkpoint
    tokenizer: Tokenizer

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every token that ends an answer, by the model's generation config or by its tokenizer."""
        return tuple(sorted({*self.checkpoint.generation_config["eos_token_id"], *self.tokenizer.eos_token_ids}))

    @property
    def vocab_size(self) -> int:
        """Token ids below this can be read by the model and have a text."""
        return min(self.tokenizer.vocab_size, self.checkpoint.spec.vocab_size)


def find_model(config: EngineConfig) -> FoundModel:
    """Find what `config` names; blocks, perhaps for a download.

    Raises:
        ModelError: something is missing or damaged.
    """
    where = {"revision": config.revision, "download_dir": config.download_dir}
    files = resolve(config.model, offline=config.offline, **where)
    checkpoint = open_checkpoint(files.path, config.load_format, config.seed)
    path = files.path
    if config.tokenizer is not None:
        path = resolve(config.tokenizer, offline=config.offline, **where).path
    return FoundModel(files, checkpoint, load_tokenizer(path))
