"""Folders of safetensors files, sharded or not, as a source of weights.

Headers are checked before anything is allocated: sizes and offsets against the file's length, shapes against sizes.
Layout: https://huggingface.co/docs/safetensors. No torch until a tensor is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.errors import ModelError
from paceline.models.architectures import spec_from_hf_config
from paceline.models.spec import HEAD, ModelSpec
from paceline.models.stored import StoredMatrix
from paceline.weights.checkpoint import generation_config, read_json

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 100 << 20
_MAX_DIMENSIONS = 8
_ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_ROTARY_BUFFER = ".rotary_emb.inv_freq"  # old files store this constant beside the weights


class _HeaderEntry(msgspec.Struct):
    """One tensor as the file's header describes it; offsets count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class _Stored:
    """One tensor: where its bytes lie, counted from the start of the file."""

    file: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


class SafetensorsCheckpoint:
    """Implements :class:`paceline.weights.checkpoint.Checkpoint` over a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        self.spec: ModelSpec = spec_from_hf_config(read_json(folder / "config.json"))
        self.generation_config: dict[str, Any] = generation_config(folder)
        self._tensors: dict[str, _Stored] = {}
        for file in _files(folder):
            for name, stored in _read_header(file):
                if name.endswith(_ROTARY_BUFFER) or (name == HEAD and self.spec.tie_embeddings):
                    continue
                if name in self._tensors:
                    raise ModelError(f"{file}: tensor {name} is also in {self._tensors[name].file.name}")
                if stored.dtype not in _ELEMENT_BYTES:
                    known = ", ".join(_ELEMENT_BYTES)
                    raise ModelError(f"{file}: tensor {name} has the type {stored.dtype[:20]}; supported: {known}")
                self._tensors[name] = stored

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.shape for name, stored in self._tensors.items()}

    def nbytes(self, name: str) -> int:
        return self._tensors[name].nbytes

    def stored(self, name: str) -> StoredMatrix | None:
        return None

    def tensor(self, name: str) -> torch.Tensor:
        import torch

        stored = self._tensors[name]
        raw = torch.empty(stored.nbytes, dtype=torch.uint8)
        try:
            with stored.file.open("rb") as stream:
                stream.seek(stored.offset)
                count = stream.readinto(raw.numpy().data)
        except OSError as error:
            raise ModelError(f"{stored.file}: cannot be read: {error.strerror}") from error
        if count != stored.nbytes:
            raise ModelError(f"{stored.file}: became shorter while it was read")
        types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        values = raw.view(types[stored.dtype]).reshape(stored.shape)
        return values.float() if values.dtype is torch.float64 else values


def _files(folder: Path) -> list[Path]:
    """The files that hold the weights: those that the index names, or model.safetensors, or all there are."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        single = folder / "model.safetensors"
        files = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{folder}: no *.safetensors file (other kinds of weights are not read)")
        return files
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index}: weight_map is not a mapping of tensors to files")
    files = []
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not name.endswith(".safetensors") or "\0" in name:
            raise ModelError(f"{index}: {name[:80]!r} is not the name of a safetensors file in the same folder")
        if not (folder / name).exists():
            raise ModelError(f"{folder / name}: missing, although {index.name} names it")
        files.append(folder / name)
    return files


def _read_header(file: Path) -> Iterator[tuple[str, _Stored]]:
    """Each tensor of a file whose header holds together.

    Decoding goes straight into the few types that a header may have, so that nonsense costs no memory.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{file}: a header of {length} bytes does not fit into the file's {size}")
            raw = stream.read(length)
        entries = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        header = {name: msgspec.json.decode(entry, type=_HeaderEntry) for name, entry in entries.items()}
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{file}: its header cannot be understood: {error}") from error
    start, end = 8 + length, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1].data_offsets):
        if entry.data_offsets[0] != end:
            raise ModelError(f"{file}: tensor {name[:120]} does not begin where the one before it ends")
        end = entry.data_offsets[1]
        yield name, _stored(file, name, entry, start)
    if start + end != size:
        raise ModelError(f"{file}: {size} bytes long, and its header describes {start + end}: damaged or incomplete")


def _stored(file: Path, name: str, entry: _HeaderEntry, start: int) -> _Stored:
    begin, end = entry.data_offsets
    where = f"{file}: tensor {name[:120]}"
    if len(entry.shape) > _MAX_DIMENSIONS or min(entry.shape, default=0) < 0 or end < begin:
        raise ModelError(f"{where}: its shape or offsets make no sense")
    element_bytes = _ELEMENT_BYTES.get(entry.dtype)
    if element_bytes is not None:
        nbytes = element_bytes
        for dimension in entry.shape:
            nbytes *= dimension
        if end - begin != nbytes:
            raise ModelError(f"{where}: {end - begin} bytes, and its shape needs {nbytes}")
    return _Stored(file, start + begin, end - begin, entry.dtype, tuple(entry.shape))
