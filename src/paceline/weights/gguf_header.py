"""Reads the header of a GGUF file, believing nothing in it.

Every count, length, offset and size is compared with what the file can hold before anything is allocated for it, so a
damaged or hostile file ends in a ModelError that says what is wrong. Layout:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). No torch here.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from paceline.errors import ModelError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_NAME = 256  # characters
# List entries in the whole header; a large vocabulary with its merges has about 1.5 million. Python objects take many
# times the bytes of the file, and this keeps them within a few hundred megabytes whatever the file says.
_MAX_ENTRIES = 1 << 22
_LENGTH = struct.Struct("<Q")
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: `shape` in torch's order (slowest dimension first), `offset` from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFHeader:
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


class _Cursor:
    """A position in the file that cannot leave it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.size = len(data)
        self.entries_left = _MAX_ENTRIES

    def error(self, problem: str) -> ModelError:
        return ModelError(f"{self.path}: not a usable GGUF file: {problem}")

    def take(self, count: int, what: str) -> bytes:
        if count < 0 or count > self.size - self.at:
            raise self.error(f"{what} of {count} bytes at {self.at} does not fit into the file's {self.size}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, layout: str, what: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]

    def string(self, what: str) -> str:
        raw = self.take(self.number("<Q", what), what)
        return raw.decode("utf-8", errors="replace")

    def count(self, what: str, least_bytes: int) -> int:
        """A number of entries, each of which takes at least so many bytes."""
        value = self.number("<Q", what)
        if value > (self.size - self.at) // least_bytes:
            raise self.error(f"{value} {what} cannot fit into the file's {self.size} bytes")
        self.entries_left -= value
        if self.entries_left < 0:
            raise self.error(f"{what} bring its lists to more than {_MAX_ENTRIES} entries")
        return int(value)

    def strings(self, count: int, what: str) -> list[str]:
        """So many strings: vocabularies have 100,000 and more, hence a loop without calls."""
        data, at, size, read = self.data, self.at, self.size, _LENGTH.unpack_from
        out = []
        for _ in range(count):
            length = read(data, at)[0] if size - at >= 8 else size
            at += 8
            if length > size - at:
                raise self.error(f"{what} hold a string that does not fit into the file's {size} bytes")
            out.append(data[at : at + length].decode("utf-8", errors="replace"))
            at += length
        self.at = at
        return out

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind == _STRING:
            return self.string(what)
        if kind != _ARRAY:
            raise self.error(f"{what} has the unknown type {kind}")
        if depth > 1:
            raise self.error(f"{what} has lists within lists within lists")
        inner = self.number("<I", what)
        if inner in _SCALARS:
            layout = _SCALARS[inner]
            count = self.count(f"entries of {what}", struct.calcsize(layout))
            raw = self.take(count * struct.calcsize(layout), what)
            return list(struct.unpack(f"<{count}{layout[1]}", raw))
        count = self.count(f"entries of {what}", 8)
        if inner == _STRING:
            return self.strings(count, f"entries of {what}")
        return [self.value(inner, what, depth + 1) for _ in range(count)]


def read_gguf_header(path: Path) -> GGUFHeader:
    """Metadata and tensor table of a GGUF file.

    Raises:
        ModelError: the file cannot be read, is damaged, or is of a version or tensor type that is not supported.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Cursor(data, path))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelError(f"{path}: not a usable GGUF file: {error}") from error


def _read(cursor: _Cursor) -> GGUFHeader:
    if cursor.take(4, "magic") != b"GGUF":
        raise cursor.error("it does not begin with GGUF")
    version = cursor.number("<I", "version")
    if version not in (2, 3):
        raise cursor.error(f"version {version} is not supported (2 and 3 are)")
    num_tensors = cursor.count("tensors", 8 + 4 + 8 + 4 + 8)
    num_fields = cursor.count("metadata fields", 8 + 4 + 1)
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        key = cursor.string("metadata key")
        if key in metadata:
            raise cursor.error(f"metadata field {key[:80]!r} occurs twice")
        metadata[key] = cursor.value(cursor.number("<I", key), key[:80])
    entries = [_tensor_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.error(f"alignment {alignment!r} is not a power of two")
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise cursor.error(f"tensor {name!r} occurs twice")
        tensors[name] = _placed(cursor, name, shape, kind, start, offset, alignment)
    return GGUFHeader(metadata, tensors)


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string("tensor name")
    if len(name) > _MAX_NAME:
        raise cursor.error(f"a tensor's name has {len(name)} characters")
    num_dimensions = cursor.number("<I", f"dimensions of {name!r}")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {num_dimensions} dimensions")
    shape = [cursor.number("<Q", f"dimension of {name!r}") for _ in range(num_dimensions)]
    kind = cursor.number("<I", f"type of {name!r}")
    offset = cursor.number("<Q", f"offset of {name!r}")
    return name, tuple(reversed(shape)), kind, offset


def _placed(
    cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, start: int, offset: int, alignment: int
) -> GGUFTensor:
    try:
        type_ = GGMLQuantizationType(kind)
        block_elements, block_bytes = GGML_QUANT_SIZES[type_]
    except (ValueError, KeyError):
        raise cursor.error(f"tensor {name!r} has the unknown type {kind}") from None
    elements = 1
    for size in shape:
        elements *= size
    if not 0 < elements <= cursor.size * block_elements or shape[-1] % block_elements:
        raise cursor.error(f"tensor {name!r} cannot have the shape {shape} with type {type_.name}")
    nbytes = elements // block_elements * block_bytes
    if offset % alignment or offset > cursor.size or start + offset + nbytes > cursor.size:
        raise cursor.error(
            f"tensor {name!r} ({nbytes} bytes at {start + offset}) does not lie within the file's {cursor.size}"
        )
    return GGUFTensor(name, shape, type_, start + offset, nbytes)
