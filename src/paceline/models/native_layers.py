"""All layers of a stage in one native call, for packed weights: the same kernels in the same order, so the same bits.

One call instead of nine per layer: at eight rows, Python and ctypes took a tenth of a step.
"""

from __future__ import annotations

from ctypes import Array, addressof, byref, c_int64
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.kernels.library import PROBLEMS, LayersArgs, LayerWeights, LinearParts
from paceline.kernels.linear import Linear, PackedLinear
from paceline.kernels.native import KV_TYPES
from paceline.kernels.packed import library
from paceline.models.inputs import BatchInputs
from paceline.models.spec import ModelSpec

if TYPE_CHECKING:
    from paceline.models.decoder import Layer

OPERATIONS = ("norms", "q·k·v", "rotation", "attention", "output", "gate·up", "activation", "down")


class NativeLayers:
    """A stage's layers with their caches, ready to be called.

    Args:
        caches: K and V of each layer, [blocks, kv_heads, head_dim, block_size] and [blocks, kv_heads, block_size, head_dim],
            all of one type.
        cos, sin: [positions, half of the rotated dimensions] float32.

    Attributes:
        profile: whether the parts of a call are timed, for :meth:`take_times`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layers: list[Layer],
        caches: list[tuple[Tensor, Tensor]],
        cos: Tensor,
        sin: Tensor,
        *,
        profile: bool = False,
    ) -> None:
        self._spec = spec
        self._kept_alive = (layers, caches, cos, sin)  # the structs below hold bare addresses
        self._weights = (LayerWeights * len(layers))()
        for weights, layer, (k_cache, v_cache) in zip(self._weights, layers, caches, strict=True):
            weights.input_norm, weights.mlp_norm = layer.input_norm.data_ptr(), layer.mlp_norm.data_ptr()
            for name in ("qkv", "output", "gate_up", "down"):
                _fill(getattr(weights, name), getattr(layer, name))
            weights.k_cache, weights.v_cache = k_cache.data_ptr(), v_cache.data_ptr()
        self._buffers: list[Tensor] = []
        self._room = 0
        self._times: Array[c_int64] = (c_int64 * len(OPERATIONS))()
        self.profile = profile
        self._args = self._constants(caches[0][0], cos)
        self._args.rotate.cos, self._args.rotate.sin = cos.data_ptr(), sin.data_ptr()
        self._call = library().paceline_layers

    def _constants(self, k_cache: Tensor, cos: Tensor) -> LayersArgs:
        """The arguments that no batch changes; the others are put beside them at every call."""
        spec = self._spec
        num_blocks, kv_heads, head_dim, block_size = k_cache.shape
        args = LayersArgs(
            layers=addressof(self._weights),
            nanoseconds=addressof(self._times) if self.profile else None,
            num_layers=len(self._weights),
            hidden=spec.hidden_size,
            intermediate=spec.intermediate_size,
            eps=spec.rms_eps,
        )
        for part in (args.rotate, args.attention):
            part.heads, part.kv_heads, part.head_dim = spec.num_heads, kv_heads, head_dim
            part.block_size, part.kv_type = block_size, KV_TYPES[k_cache.dtype]
        args.rotate.table_rows, args.rotate.half = cos.shape
        args.rotate.num_slots = num_blocks * block_size
        args.attention.num_blocks = num_blocks
        args.attention.scale = head_dim**-0.5
        return args

    def __call__(self, batch: BatchInputs, residual: Tensor, *, is_last: bool) -> tuple[Tensor, Tensor]:
        """Run all layers.

        Args:
            residual: [T, hidden] float32, contiguous; overwritten.
            is_last: only `batch.sample_rows` go on after the last layer's attention.

        Returns:
            residual and what is yet to be added to it, [T or R, hidden]; both valid until the next call.

        Raises:
            ValueError: a position, slot or block number lies outside of its table.
        """
        rows, spec = residual.shape[0], self._spec
        if residual.dtype is not torch.float32 or residual.shape[1] != spec.hidden_size or not residual.is_contiguous():
            raise ValueError(f"residual: {residual.dtype} {tuple(residual.shape)} cannot be used")
        self._make_room(rows)
        args = self._args
        args.residual = residual.data_ptr()
        args.keep = batch.sample_rows.data_ptr() if is_last else None
        args.kept = len(batch.sample_rows) if is_last else 0
        rotate, attention = args.rotate, args.attention
        rotate.rows = attention.rows = rows
        rotate.positions, rotate.slots = batch.positions.data_ptr(), batch.slots.data_ptr()
        attention.block_tables, attention.table_stride = batch.block_tables.data_ptr(), batch.block_tables.stride(0)
        attention.table_width = batch.block_tables.shape[1]
        attention.query_starts, attention.context_lens = batch.query_starts.data_ptr(), batch.context_lens.data_ptr()
        attention.sequences = len(batch.context_lens)
        if status := self._call(byref(args)):
            raise (MemoryError if status == 1 else ValueError)(PROBLEMS[status])
        left = args.kept if is_last else rows
        return residual[:left], self._buffers[0][:left]

    def take_times(self) -> list[tuple[str, int]]:
        """What each of OPERATIONS took since the last time this was asked, in nanoseconds; nothing without `profile`."""
        if not self.profile:
            return []
        taken = list(zip(OPERATIONS, self._times, strict=True))
        self._times[:] = [0] * len(OPERATIONS)
        return taken

    def _make_room(self, rows: int) -> None:
        """Buffers for so many rows, kept for later batches."""
        if rows <= self._room:
            return
        spec, self._room = self._spec, rows
        widths = (
            spec.hidden_size,
            spec.hidden_size,
            spec.q_size + 2 * spec.kv_size,
            spec.q_size,
            2 * spec.intermediate_size,
            spec.intermediate_size,
        )
        self._buffers = [torch.empty((rows, width)) for width in widths]
        for name, buffer in zip(("delta", "x", "qkv", "mixed", "gate_up", "activated"), self._buffers, strict=True):
            setattr(self._args, name, buffer.data_ptr())


def _fill(parts: LinearParts, linear: Linear) -> None:
    assert isinstance(linear, PackedLinear)
    parts.parts = len(linear.matrices)
    for i, matrix in enumerate(linear.matrices):
        parts.weight[i], parts.outputs[i], parts.format[i] = matrix.address, matrix.out_features, matrix.format_number
    parts.bias = None if linear.bias is None else linear.bias.data_ptr()
