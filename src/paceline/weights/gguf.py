"""GGUF files as a source of weights: any type that the `gguf` package can dequantise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from paceline.errors import ModelError
from paceline.models.architectures import GGUF_PAIRS_NEIGHBOURS, gguf_names, spec_from_gguf
from paceline.models.spec import ModelSpec
from paceline.models.stored import Bytes, StoredMatrix
from paceline.weights.gguf_header import GGUFTensor, read_gguf_header

if TYPE_CHECKING:
    import torch

ROPE_FACTORS = "rope_freqs.weight"
_MAX_ROPE_FACTORS = 1 << 14
Order = np.ndarray[Any, np.dtype[np.int64]]
CHUNK_ELEMENTS = 1 << 22  # dequantised at a time, so that the temporary arrays stay small

_PLAIN: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype("<f4"),
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.F64: np.dtype("<f8"),
}


class GGUFCheckpoint:
    """Implements :class:`paceline.weights.checkpoint.Checkpoint` over one .gguf file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_gguf_header(path)
        if _is_split(header.metadata):
            raise ModelError(f"{path}: one part of a model in several files; join them (gguf-split --merge) first")
        _check_types(path, {tensor.type for tensor in header.tensors.values()})
        self._file = np.memmap(path, dtype=np.uint8, mode="r")
        factors = self._rope_factors(header.tensors.get(ROPE_FACTORS))
        self.spec: ModelSpec = spec_from_gguf(header.metadata, header.tensors.keys(), factors)
        self.generation_config: dict[str, Any] = {"eos_token_id": _eos_ids(header.metadata)}
        names = gguf_names(self.spec)
        self._tensors: dict[str, GGUFTensor] = {}
        for gguf_name, tensor in header.tensors.items():
            if gguf_name != ROPE_FACTORS:
                self._tensors[names.get(gguf_name, gguf_name)] = tensor

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def nbytes(self, name: str) -> int:
        return self._tensors[name].nbytes

    def tensor(self, name: str) -> torch.Tensor:
        import torch

        values = dequantised(self.path, self._file, self._tensors[name])
        order = self._row_order(name)
        return torch.from_numpy(values if order is None else values[order])

    def stored(self, name: str) -> StoredMatrix | None:
        tensor = self._tensors[name]
        if len(tensor.shape) != 2:
            return None
        rows = raw_bytes(self.path, self._file, tensor).reshape(tensor.shape[0], -1)
        order = self._row_order(name)
        return StoredMatrix(tensor.type.name, rows if order is None else rows[order], tensor.shape[1])

    def _row_order(self, name: str) -> Order | None:
        """Which row of the file is each row of query and key weights, where the file has another order."""
        if self.spec.architecture not in GGUF_PAIRS_NEIGHBOURS:
            return None
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            return _in_halves(self.spec.num_heads, self.spec.head_dim, self.spec.rope.rotary_dim)
        if name.endswith(("k_proj.weight", "k_proj.bias")):
            return _in_halves(self.spec.num_kv_heads, self.spec.head_dim, self.spec.rope.rotary_dim)
        return None

    def _rope_factors(self, tensor: GGUFTensor | None) -> tuple[float, ...]:
        if tensor is None:
            return ()
        if len(tensor.shape) != 1 or tensor.shape[0] > _MAX_ROPE_FACTORS:
            raise ModelError(f"{self.path}: {ROPE_FACTORS} has the shape {tensor.shape}")
        return tuple(dequantised(self.path, self._file, tensor).tolist())


def raw_bytes(path: Path, data: np.ndarray[Any, Any], tensor: GGUFTensor) -> Bytes:
    """The tensor's own bytes in the mapped file.

    Raises:
        ModelError: the file has lost its end since its header was checked.
    """
    if path.stat().st_size < tensor.offset + tensor.nbytes:
        raise ModelError(f"{path}: became shorter while it was read")
    return data[tensor.offset : tensor.offset + tensor.nbytes]


def dequantised(path: Path, data: np.ndarray[Any, Any], tensor: GGUFTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor of the file, mapped as `data`, as float32, made a few rows at a time.

    Raises:
        ModelError: the file has lost its end since its header was checked.
    """
    raw = raw_bytes(path, data, tensor)
    if tensor.type in _PLAIN:
        plain: np.ndarray[Any, np.dtype[np.float32]] = raw.view(_PLAIN[tensor.type]).astype(np.float32)
        return plain.reshape(tensor.shape)
    columns = tensor.shape[-1]
    rows = raw.reshape(math.prod(tensor.shape[:-1]), -1)
    out = np.empty((len(rows), columns), dtype=np.float32)
    step = max(1, CHUNK_ELEMENTS // columns)
    for i in range(0, len(rows), step):
        out[i : i + step] = dequantize(np.ascontiguousarray(rows[i : i + step]), tensor.type)
    return out.reshape(tensor.shape)


def _check_types(path: Path, types: set[GGMLQuantizationType]) -> None:
    """Every type can be dequantised, tried on one block: better now than when a stage has loaded half its layers."""
    for kind in types - _PLAIN.keys():
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError:
            raise ModelError(f"{path}: tensors of type {kind.name} are not supported") from None


def _is_split(metadata: dict[str, Any]) -> bool:
    count = metadata.get("split.count", 0)
    return isinstance(count, int) and count > 1


def _in_halves(num_heads: int, head_dim: int, rotary_dim: int) -> Order:
    """The row of the file for each query or key row.

    Llama files in GGUF pair neighbours (0,1), (2,3) … in the rotation; the decoder pairs element i with i + R/2.
    """
    order = np.arange(num_heads * head_dim).reshape(num_heads, head_dim)
    turning = order[:, :rotary_dim].reshape(num_heads, rotary_dim // 2, 2)
    order[:, :rotary_dim] = turning.swapaxes(1, 2).reshape(num_heads, rotary_dim).copy()
    return order.reshape(-1)


def _eos_ids(metadata: dict[str, Any]) -> list[int]:
    ids = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return sorted({i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0})
