"""Weights made smaller while they are loaded: ``--quantization``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGMLQuantizationType, dequantize, quantize

from paceline.errors import ConfigError
from paceline.models.spec import ModelSpec
from paceline.models.stored import StoredMatrix
from paceline.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

BLOCK_COLUMNS = 32
_CHUNK_ROWS = 4096  # quantised at a time, so that the temporary arrays stay small


def quantized(checkpoint: Checkpoint, kind: str) -> Checkpoint:
    """The checkpoint with its matrices in another type.

    Args:
        kind: ``auto`` keeps what the files hold; ``none`` widens every matrix to floats; otherwise a type of GGUF in small
            letters, such as ``q8_0``.

    Raises:
        ConfigError: the rows of a matrix cannot be cut into that type's blocks.
    """
    if kind == "auto":
        return checkpoint
    if kind not in ("none", "f16", "bf16"):
        for name, shape in checkpoint.shapes().items():
            if len(shape) == 2 and shape[1] % BLOCK_COLUMNS:
                raise ConfigError(
                    "quantization",
                    kind,
                    f"cuts rows into blocks of {BLOCK_COLUMNS}, and those of {name} have {shape[1]} weights",
                    "Use none, f16 or bf16.",
                )
    return QuantizedCheckpoint(checkpoint, kind)


class QuantizedCheckpoint:
    """Implements :class:`paceline.weights.checkpoint.Checkpoint` over another one."""

    def __init__(self, inner: Checkpoint, kind: str) -> None:
        self.spec: ModelSpec = inner.spec
        self.generation_config: dict[str, Any] = inner.generation_config
        self._inner = inner
        self._type = None if kind == "none" else GGMLQuantizationType[kind.upper()]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._inner.shapes()

    def nbytes(self, name: str) -> int:
        return self._inner.nbytes(name)

    def stored(self, name: str) -> StoredMatrix | None:
        if self._type is None or len(self.shapes()[name]) != 2:
            return None
        held = self._inner.stored(name)
        if held is not None and held.format_name == self._type.name:
            return held
        values = self._inner.tensor(name).float().numpy()
        chunks = [quantize(values[i : i + _CHUNK_ROWS], self._type) for i in range(0, len(values), _CHUNK_ROWS)]
        rows = np.concatenate(chunks).view(np.uint8).reshape(len(values), -1)
        return StoredMatrix(self._type.name, rows, values.shape[1])

    def tensor(self, name: str) -> torch.Tensor:
        import torch

        stored = self.stored(name)
        if stored is None:
            return self._inner.tensor(name)
        return torch.from_numpy(dequantize(stored.rows, GGMLQuantizationType[stored.format_name]))
