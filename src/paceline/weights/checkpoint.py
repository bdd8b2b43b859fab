"""What every source of weights looks like, and the one way to open a model. Torch is imported only for tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import ConfigError, ModelError
from paceline.models.architectures import spec_from_hf_config
from paceline.models.spec import ModelSpec, stage_tensors
from paceline.models.stored import StoredMatrix

if TYPE_CHECKING:
    import torch


class Checkpoint(Protocol):
    """A model's headers, and its tensors one at a time under their Hugging Face names.

    Attributes:
        spec: what the model is made of.
        generation_config: defaults such as ``eos_token_id`` (a list), ``temperature``, ``top_p``.
    """

    spec: ModelSpec
    generation_config: dict[str, Any]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that the source holds."""

    def nbytes(self, name: str) -> int:
        """How many bytes the tensor takes in the source."""

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as float32, or in its own 16-bit or 32-bit float type."""

    def stored(self, name: str) -> StoredMatrix | None:
        """A matrix in the blocks of its file; None where :meth:`tensor` gives all there is."""


def open_checkpoint(path: Path, load_format: str = "auto", seed: int = 0) -> Checkpoint:
    """Open a folder or a .gguf file: headers only, checked against the file lengths.

    Args:
        path: a folder with config.json and *.safetensors (or one .gguf), or a .gguf file.
        load_format: ``auto``, ``safetensors``, ``gguf``, or ``dummy`` for random weights of the same shapes.
        seed: of the random weights.

    Raises:
        ModelError: something in the files is missing, damaged or not supported.
        ConfigError: the format does not fit the path.
    """
    from paceline.weights.dummy import DummyCheckpoint
    from paceline.weights.gguf import GGUFCheckpoint
    from paceline.weights.safetensors import SafetensorsCheckpoint

    file = _gguf_file(path, load_format)
    if load_format == "gguf" and file is None:
        raise ConfigError("load_format", "gguf", f"there is no .gguf file at {path}", "Name the file itself")
    if path.is_file() and (load_format == "safetensors" or path.suffix == ".safetensors"):
        raise ConfigError("model", path, "is one file, and its configuration lies beside it", "Name the folder")
    if load_format == "dummy":
        if file is not None:
            real = GGUFCheckpoint(file)
            return DummyCheckpoint(real.spec, real.generation_config, seed)
        return DummyCheckpoint(spec_from_hf_config(read_json(path / "config.json")), generation_config(path), seed)
    if file is not None:
        checkpoint: Checkpoint = GGUFCheckpoint(file)
    else:
        checkpoint = SafetensorsCheckpoint(path)
    check_tensors(checkpoint, path)
    return checkpoint


def _gguf_file(path: Path, load_format: str) -> Path | None:
    """The .gguf file that is meant: the path itself, or the only one in a folder that is not read otherwise."""
    if not path.exists():
        raise ModelError(f"{path}: no such file or folder")
    if path.is_file():
        return path
    has_config, has_safetensors = (path / "config.json").exists(), any(path.glob("*.safetensors"))
    if load_format == "safetensors" or (
        load_format != "gguf" and has_config and (has_safetensors or load_format == "dummy")
    ):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise ModelError(f"{path} holds {len(found)} .gguf files; name one of them: {', '.join(f.name for f in found)}")
    return found[0] if found else None


def check_tensors(checkpoint: Checkpoint, path: Path) -> None:
    """Every tensor that the spec asks for is there with its shape, and no other."""
    spec = checkpoint.spec
    needed = stage_tensors(spec, 0, spec.num_layers)
    held = checkpoint.shapes()
    missing = sorted(needed.keys() - held.keys())
    if missing:
        raise ModelError(f"{path}: {_some(missing)} missing")
    extra = sorted(held.keys() - needed.keys())
    if extra:
        raise ModelError(f"{path}: {_some(extra)} not part of a {spec.architecture} model with these settings")
    for name, shape in needed.items():
        if held[name] != shape:
            raise ModelError(f"{path}: tensor {name} has the shape {held[name]}, and the configuration says {shape}")


def _some(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"tensor {shown} is" if len(names) == 1 else f"tensors {shown} are"


def stage_bytes(checkpoint: Checkpoint, first: int, last: int) -> int:
    """How many bytes of the source a stage with layers [first, last) reads."""
    return sum(checkpoint.nbytes(name) for name in stage_tensors(checkpoint.spec, first, last))


MAX_JSON_BYTES = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size.

    Raises:
        ModelError: there is none.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path}: larger than {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value


def generation_config(folder: Path) -> dict[str, Any]:
    """generation_config.json, or what config.json says of the end of a sequence; eos_token_id as a list."""
    path = folder / "generation_config.json"
    values = read_json(path) if path.exists() else {}
    if values.get("eos_token_id") is None:
        values["eos_token_id"] = read_json(folder / "config.json").get("eos_token_id")
    eos = values["eos_token_id"]
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ModelError(f"{folder}: eos_token_id {str(eos)[:80]} is not a token id or a list of them")
    return values | {"eos_token_id": ids}
