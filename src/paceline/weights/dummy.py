"""Random weights of a real model's shapes: for tests and measurements without the files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from paceline.models.spec import ModelSpec, stage_tensors
from paceline.models.stored import StoredMatrix

if TYPE_CHECKING:
    import torch


class DummyCheckpoint:
    """Implements :class:`paceline.weights.checkpoint.Checkpoint` without files.

    Each tensor is drawn from a generator seeded by its name, so a model is the same however it is split.
    """

    def __init__(self, spec: ModelSpec, generation_config: dict[str, Any], seed: int) -> None:
        self.spec = spec
        self.generation_config = generation_config
        self._seed = seed
        self._shapes = stage_tensors(spec, 0, spec.num_layers)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def nbytes(self, name: str) -> int:
        size = 4
        for dimension in self._shapes[name]:
            size *= dimension
        return size

    def stored(self, name: str) -> StoredMatrix | None:
        return None

    def tensor(self, name: str) -> torch.Tensor:
        import torch

        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        # torch's generator on a CPU looks at no more than 32 bits of its seed.
        digest = hashlib.blake2b(f"{self._seed} {name}".encode(), digest_size=4).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest))
        values: torch.Tensor = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        return values
