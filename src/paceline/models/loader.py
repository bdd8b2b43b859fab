"""Takes a stage's tensors out of a checkpoint: in its type, on its device, packed or not, with progress."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from paceline.kernels import Embedding, Linear, PackedLinear, PackedMatrix, TorchLinear
from paceline.kernels.packed import FLOAT_FORMATS, packed_bytes
from paceline.models.stored import StoredMatrix

COPIED_ROWS = 1024  # of an embedding that become floats at a time

Progress = Callable[[float, str], None]


class WeightSource(Protocol):
    """Where tensors come from, by their Hugging Face names; every checkpoint of `paceline.weights` is one."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor there is."""

    def tensor(self, name: str) -> Tensor:
        """One tensor, of any float type."""

    def stored(self, name: str) -> StoredMatrix | None:
        """A matrix in the blocks of its file, if it has any."""


class Loader:
    """The weights of one stage, one after the other.

    Args:
        total: how many tensors there will be, for the progress.
        packed: keep matrices in the blocks of their file.
        int8: 8-bit codes for products instead, for 8-bit activations; an embedding is not one.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        total: int,
        *,
        packed: bool,
        int8: bool = False,
        progress: Progress,
    ) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device
        self._total = max(total, 1)
        self._packed = packed
        self._int8 = int8
        self._progress = progress
        self._held = source.shapes()
        self._done = 0

    def take(self, name: str) -> Tensor:
        """A tensor in the stage's type, on its device."""
        tensor = self._source.tensor(name).to(device=self._device, dtype=self._dtype)
        self._took(name)
        return tensor

    def linear(self, *names: str) -> Linear:
        """One product for several weights of the same input, in this order of its outputs."""
        biases = [name.removesuffix("weight") + "bias" for name in names]
        if self._int8:
            shapes = [self._held[name] for name in names]
            rows, columns = sum(shape[0] for shape in shapes), shapes[0][1]
            matrix = PackedMatrix.int8((self.take(name) for name in names), rows, columns)
            return PackedLinear([matrix], self._bias(biases))
        if not self._packed:
            weight = _joined([self.take(name) for name in names])
            return TorchLinear(weight, self._bias(biases))
        return PackedLinear(self._pack(names), self._bias(biases))

    def embedding(self, name: str) -> Embedding:
        return Embedding(self._pack([name])[0] if self._packed else self.take(name))

    def tied(self, embedding: Embedding) -> Linear:
        """The head that is the embedding: the same memory where packed, and a copy in 8-bit codes or by oneDNN."""
        weight = embedding.weight
        if not isinstance(weight, PackedMatrix):
            return TorchLinear(weight)
        return self._int8_copy(weight) if self._int8 else PackedLinear([weight])

    def _int8_copy(self, weight: PackedMatrix) -> Linear:
        rows = weight.out_features
        pieces = (
            weight.rows(torch.arange(first, min(first + COPIED_ROWS, rows))) for first in range(0, rows, COPIED_ROWS)
        )
        return PackedLinear([PackedMatrix.int8(pieces, rows, weight.in_features)])

    def _bias(self, names: list[str]) -> Tensor | None:
        return _joined([self.take(name) for name in names]) if names[0] in self._held else None

    def _pack(self, names: tuple[str, ...] | list[str]) -> list[PackedMatrix]:
        """Neighbours of one format become one matrix."""
        stored = [self._stored(name) for name in names]
        matrices = []
        for format_name, group in groupby(stored, lambda matrix: matrix[0]):
            rows = [(raw, columns) for _, raw, columns in group]
            matrices.append(PackedMatrix(format_name, _joined([raw for raw, _ in rows]), rows[0][1]))
        return matrices

    def _stored(self, name: str) -> tuple[str, Tensor, int]:
        """Format, rows [N, bytes of a row] and columns: the file's own if they can be packed, else its values."""
        stored = self._source.stored(name)
        if stored is not None and packed_bytes(stored.format_name, len(stored.rows), stored.columns) is not None:
            found = stored.format_name, torch.from_numpy(stored.rows.copy()), stored.columns
        else:
            values = self._source.tensor(name).contiguous()
            found = FLOAT_FORMATS[values.dtype], values.view(torch.uint8), values.shape[1]
        self._took(name)
        return found

    def _took(self, name: str) -> None:
        self._done += 1
        self._progress(min(1.0, self._done / self._total), name)


def _joined(parts: list[Tensor]) -> Tensor:
    """The tensors one below the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
