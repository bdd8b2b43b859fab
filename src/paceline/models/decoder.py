"""The one decoder: any range of layers of any :class:`ModelSpec`, over a paged KV cache.

A layer is nine operations: norm, q·k·v product, rotation and KV write, attention, output product, norm, gate·up product,
activation, down product; with packed weights, one native call runs those of all layers. All K and V of a batch are
written before any row attends, so a row may read what another row of the same batch wrote.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from paceline import kernels
from paceline.kernels import Linear, shares_weight
from paceline.models.inputs import BatchInputs
from paceline.models.laps import Laps
from paceline.models.loader import Loader, Progress, WeightSource
from paceline.models.native_layers import NativeLayers
from paceline.models.rotary import cos_sin_tables
from paceline.models.spec import EMBEDDING, FINAL_NORM, HEAD, ModelSpec, stage_tensors


class Layer:
    """The weights of one layer."""

    def __init__(self, loader: Loader, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self.input_norm = loader.take(f"{prefix}.input_layernorm.weight")
        self.qkv = loader.linear(
            f"{attention}.q_proj.weight", f"{attention}.k_proj.weight", f"{attention}.v_proj.weight"
        )
        self.output = loader.linear(f"{attention}.o_proj.weight")
        self.mlp_norm = loader.take(f"{prefix}.post_attention_layernorm.weight")
        self.gate_up = loader.linear(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")
        self.down = loader.linear(f"{mlp}.down_proj.weight")

    @property
    def nbytes(self) -> int:
        products = (self.qkv, self.output, self.gate_up, self.down)
        return sum(p.nbytes for p in products) + self.input_norm.nbytes + self.mlp_norm.nbytes


class StageModel:
    """Layers [first, last) of a model, with the embedding if first is 0 and norm and head if last is the end.

    Args:
        packed: keep matrices in the blocks of their file (float32 on a CPU only).
        int8: with `packed`, products of activations rounded to 8 bits with 8-bit weights; only the embedding stays as it is.
        profile: time the parts of every step in `laps`.

    Attributes:
        weight_bytes: what its weights take.
        max_position: positions that its rotary tables cover.
        packed: whether its matrices stay in the blocks of their file.

    Raises:
        ModelError: a tensor is missing or damaged.
    """

    def __init__(
        self,
        spec: ModelSpec,
        first: int,
        last: int,
        source: WeightSource,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        max_position: int | None = None,
        packed: bool = False,
        int8: bool = False,
        profile: bool = False,
        progress: Progress = lambda done, what: None,
    ) -> None:
        self.spec = spec
        self.is_first = first == 0
        self.is_last = last == spec.num_layers
        self.dtype = dtype
        self.device = torch.device(device)
        self.max_position = max_position or spec.max_position
        total = len(stage_tensors(spec, first, last))
        loader = Loader(source, dtype, self.device, total, packed=packed, int8=int8, progress=progress)
        self.embedding = loader.embedding(EMBEDDING) if self.is_first else None
        self.layers = [Layer(loader, layer) for layer in range(first, last)]
        self.final_norm = loader.take(FINAL_NORM) if self.is_last else None
        self.head = self._load_head(loader) if self.is_last else None
        cos, sin = cos_sin_tables(spec.rope, self.max_position, spec.max_position)
        self._cos, self._sin = cos.to(self.device), sin.to(self.device)
        self._caches: list[tuple[Tensor, Tensor]] = []
        self.packed = packed
        self.laps = Laps() if profile else None
        self.native_layers: NativeLayers | None = None  # made with the caches, when weights are packed

    def _load_head(self, loader: Loader) -> Linear:
        if not self.spec.tie_embeddings:
            return loader.linear(HEAD)
        return loader.linear(EMBEDDING) if self.embedding is None else loader.tied(self.embedding)

    @property
    def weight_bytes(self) -> int:
        """A head tied to this stage's own embedding counts once, unless torch keeps it in a layout of its own."""
        own = [part.nbytes for part in (self.embedding, self.final_norm) if part is not None]
        if self.head is not None and not (self.embedding is not None and shares_weight(self.head, self.embedding)):
            own.append(self.head.nbytes)
        return sum(layer.nbytes for layer in self.layers) + sum(own)

    def cache_bytes_per_block(self, block_size: int, dtype: torch.dtype) -> int:
        """What one KV block takes over all layers of this stage."""
        return 2 * len(self.layers) * block_size * self.spec.kv_size * dtype.itemsize

    def allocate_cache(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        """One K [num_blocks, num_kv_heads, head_dim, block_size] and one V [.., block_size, head_dim] per layer."""
        outer, head_dim = (num_blocks, self.spec.num_kv_heads), self.spec.head_dim
        k_shape, v_shape = (*outer, head_dim, block_size), (*outer, block_size, head_dim)
        self._caches = [
            (_lazy_zeros(k_shape, dtype, self.device), _lazy_zeros(v_shape, dtype, self.device)) for _ in self.layers
        ]
        if self.packed:
            self.native_layers = NativeLayers(
                self.spec, self.layers, self._caches, self._cos, self._sin, profile=self.laps is not None
            )

    @torch.inference_mode()
    def forward(self, batch: BatchInputs, hidden: Tensor | None = None) -> Tensor:
        """Run the batch through the layers.

        Args:
            hidden: [T, H] from the stage before, overwritten; None on the first stage, which embeds
                `batch.token_ids`.

        Returns:
            [T, H] for the next stage; from the last stage float32 logits [R, V] of `batch.sample_rows`.
        """
        residual = hidden if self.embedding is None else self.embedding(batch.token_ids)
        assert residual is not None, "a stage that is not the first needs hidden states"
        self._lap("embedding")
        if self.native_layers is not None:
            residual, delta = self.native_layers(batch, residual, is_last=self.is_last)
            self._lap("layers, the rest", self.native_layers.take_times())
        else:
            residual, delta = self._one_by_one(batch, residual)
            self._lap("layers")
        if not self.is_last:
            residual.add_(delta)
            return residual
        logits = self._logits(delta, residual)
        self._lap("head")
        return logits

    def _lap(self, name: str, parts: Iterable[tuple[str, int]] = ()) -> None:
        if self.laps is not None:
            self.laps.lap(name, parts)

    def _one_by_one(self, batch: BatchInputs, residual: Tensor) -> tuple[Tensor, Tensor]:
        """All layers: the residual of the rows that go on, and what is yet to be added to it."""
        delta = None  # what the layer before has yet to add to the residual
        for i, (layer, cache) in enumerate(zip(self.layers, self._caches, strict=True)):
            mixed = self._attend(layer, cache, batch, residual, delta)
            if self.is_last and i == len(self.layers) - 1:
                # Only rows that are sampled from go on: nothing after attention looks at other rows.
                mixed, residual = mixed[batch.sample_rows], residual[batch.sample_rows]
            delta = self._mix(layer, layer.output(mixed), residual)
        assert delta is not None, "a stage has at least one layer"
        return residual, delta

    def _attend(
        self,
        layer: Layer,
        cache: tuple[Tensor, Tensor],
        batch: BatchInputs,
        residual: Tensor,
        delta: Tensor | None,
    ) -> Tensor:
        """Write the batch's K and V, and attend: [T, q_size], before the output product."""
        spec = self.spec
        if delta is None:
            x = kernels.rms_norm(residual, layer.input_norm, spec.rms_eps)
        else:
            x = kernels.add_rms_norm(delta, residual, layer.input_norm, spec.rms_eps)
        qkv = layer.qkv(x)
        rows = qkv.shape[0]
        q = qkv[:, : spec.q_size].view(rows, spec.num_heads, spec.head_dim)
        k = qkv[:, spec.q_size : spec.q_size + spec.kv_size].view(rows, spec.num_kv_heads, spec.head_dim)
        v = qkv[:, spec.q_size + spec.kv_size :].view(rows, spec.num_kv_heads, spec.head_dim)
        k_cache, v_cache = cache
        kernels.rotate_and_store(q, k, v, self._cos, self._sin, batch.positions, batch.slots, k_cache, v_cache)
        mixed = torch.empty((rows, spec.num_heads, spec.head_dim), dtype=qkv.dtype, device=qkv.device)
        kernels.paged_attention(
            q,
            k_cache,
            v_cache,
            batch.block_tables,
            batch.query_starts,
            batch.context_lens,
            spec.head_dim**-0.5,
            mixed,
        )
        return mixed.view(rows, spec.q_size)

    def _mix(self, layer: Layer, delta: Tensor, residual: Tensor) -> Tensor:
        x = kernels.add_rms_norm(delta, residual, layer.mlp_norm, self.spec.rms_eps)
        return layer.down(kernels.silu_mul(layer.gate_up(x)))

    def _logits(self, delta: Tensor, residual: Tensor) -> Tensor:
        assert self.final_norm is not None
        assert self.head is not None
        return self.head(kernels.add_rms_norm(delta, residual, self.final_norm, self.spec.rms_eps)).float()


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that on a CPU take no memory and no time before they are written: numpy leaves the zeroing to the kernel."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype)
