"""Folders of safetensors files, sharded or not, as a source of weights.

The header is checked here, before the `safetensors` library maps the file: sizes and offsets against the file's length,
shapes against sizes. Layout: https://huggingface.co/docs/safetensors. No torch until a tensor is asked for.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError
from paceline.models.architectures import spec_from_hf_config
from paceline.models.spec import HEAD, ModelSpec
from paceline.weights.checkpoint import generation_config, read_json

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 100 << 20
_ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_ROTARY_BUFFER = ".rotary_emb.inv_freq"  # old files store this constant beside the weights


class SafetensorsCheckpoint:
    """Implements :class:`paceline.weights.checkpoint.Checkpoint` over a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        self.spec: ModelSpec = spec_from_hf_config(read_json(folder / "config.json"))
        self.generation_config: dict[str, Any] = generation_config(folder)
        self._file_of: dict[str, Path] = {}
        self._entries: dict[str, tuple[tuple[int, ...], int]] = {}
        for file in _files(folder):
            for name, shape, nbytes in _header(file):
                if name.endswith(_ROTARY_BUFFER) or (name == HEAD and self.spec.tie_embeddings):
                    continue
                if name in self._entries:
                    raise ModelError(f"{file}: tensor {name} is also in {self._file_of[name].name}")
                self._file_of[name] = file
                self._entries[name] = (shape, nbytes)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (shape, _) in self._entries.items()}

    def nbytes(self, name: str) -> int:
        return self._entries[name][1]

    def tensor(self, name: str) -> torch.Tensor:
        import torch
        from safetensors import safe_open

        with safe_open(self._file_of[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor.float() if tensor.dtype == torch.float64 else tensor


def _files(folder: Path) -> list[Path]:
    """The files that hold the weights: those that the index names, or all there are."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{folder}: no *.safetensors file (other kinds of weights are not read)")
        return files
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index}: weight_map is not a mapping of tensors to files")
    files = []
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index}: {name[:80]!r} is not the name of a safetensors file in the same folder")
        if not (folder / name).exists():
            raise ModelError(f"{folder / name}: missing, although {index.name} names it")
        files.append(folder / name)
    return files


def _header(file: Path) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name, shape and size in bytes of each tensor in a file whose header holds together."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            raw = stream.read(8)
            length = struct.unpack("<Q", raw)[0] if len(raw) == 8 else size
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{file}: a header of {length} bytes does not fit into the file's {size}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelError(f"{file}: its header is not a JSON object")
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, *_checked(file, name, entry, size - 8 - length)


def _checked(file: Path, name: str, entry: Any, data_bytes: int) -> tuple[tuple[int, ...], int]:
    where = f"{file}: tensor {name[:120]}"
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{where}: its entry is incomplete") from None
    numbers = [begin, end, *shape] if isinstance(shape, list) else [None]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise ModelError(f"{where}: its shape or offsets are not whole numbers")
    if not isinstance(kind, str) or kind not in _ELEMENT_BYTES:
        raise ModelError(f"{where}: type {str(kind)[:20]} is not supported; supported: {', '.join(_ELEMENT_BYTES)}")
    nbytes = _ELEMENT_BYTES[kind]
    for dimension in shape:
        nbytes *= dimension
    if end - begin != nbytes or end > data_bytes:
        raise ModelError(f"{where}: {nbytes} bytes at {begin}–{end} do not fit into the file's {data_bytes} of data")
    return tuple(shape), nbytes
