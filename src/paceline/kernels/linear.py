"""Products with a weight matrix, however it is stored: packed in its file's blocks, or as a torch tensor.

:mod:`paceline.kernels.packed` says what packing means. As for tensors: float32 weights on a CPU are reordered once into
oneDNN's own layout, which halves the time of a product or better, for one row and for many. Milliseconds for SmolLM2's 30
layers, weights streaming from memory, one thread of a Zen 5 core, torch 2.13: 1 row 24.7 with `F.linear`, 12.9 prepacked;
8 rows 43.9 and 19.2; 64 rows 152 and 65 (`benchmarks/linear.py`).

With this layout a row's result also has the same bits whatever rows are beside it and on any number of threads, which
`F.linear` does not give (measured over 150 shapes to 8192 columns, with AVX2 and with AVX-512; `tests/kernels/test_linear.py`
holds it). One exception: with AVX-512, oneDNN sums a lone row with more than 1024 columns in another order than two
rows. Where a product is seen to do that, a lone row is computed as two, which costs 144 instead of 124 µs for SmolLM2's
576×1536.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels.packed import PackedMatrix


def can_prepack(weight: Tensor) -> bool:
    """Whether oneDNN's layout is to be had for this weight."""
    on_cpu = weight.dtype is torch.float32 and weight.device.type == "cpu"
    return on_cpu and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def prepack(weight: Tensor) -> Tensor:
    """The weight in oneDNN's layout; only :func:`prepacked_product` can read it."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def prepacked_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


def _sums_a_lone_row_differently(packed: Tensor, in_features: int) -> bool:
    pair = torch.arange(in_features, dtype=torch.float32).sin().repeat(2, 1)
    return not torch.equal(prepacked_product(pair[:1], packed, None), prepacked_product(pair, packed, None)[:1])


class Linear(Protocol):
    """``x @ weight.T + bias`` for x [T, K] and weight [N, K].

    Attributes:
        nbytes: what weight and bias take.
    """

    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """The product [T, N], in x's type."""


class PackedLinear:
    """A product on packed matrices of the same input, one below the other: a file may mix formats.

    Args:
        bias: [N] float32 over all matrices.
    """

    def __init__(self, matrices: Sequence[PackedMatrix], bias: Tensor | None = None) -> None:
        self.matrices = matrices
        self.out_features = sum(matrix.out_features for matrix in matrices)
        self.nbytes = sum(matrix.nbytes for matrix in matrices) + (bias.nbytes if bias is not None else 0)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((x.shape[0], self.out_features))
        first = 0
        for matrix in self.matrices:
            end = first + matrix.out_features
            matrix.product(x, None if self.bias is None else self.bias[first:end], out[:, first:end])
            first = end
        return out


class TorchLinear:
    """A product by torch: oneDNN's prepacked layout where there is one, else `F.linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._is_packed = can_prepack(weight)
        self._weight = prepack(weight) if self._is_packed else weight
        self._bias = bias
        self._doubles_lone_row = self._is_packed and _sums_a_lone_row_differently(self._weight, self.in_features)

    def __call__(self, x: Tensor) -> Tensor:
        if self._is_packed:
            if self._doubles_lone_row and x.shape[0] == 1:
                return prepacked_product(x.repeat(2, 1), self._weight, self._bias)[:1]
            return prepacked_product(x, self._weight, self._bias)
        return functional.linear(x, self._weight, self._bias)


class Embedding:
    """Rows of a matrix [V, H], packed or not."""

    def __init__(self, weight: Tensor | PackedMatrix) -> None:
        self.weight = weight
        self.nbytes = weight.nbytes

    def __call__(self, token_ids: Tensor) -> Tensor:
        """The rows [T, H] of T token ids (int64)."""
        return self.weight.rows(token_ids) if isinstance(self.weight, PackedMatrix) else self.weight[token_ids]


def shares_weight(linear: Linear, embedding: Embedding) -> bool:
    """Whether a tied head reads the very memory of the embedding."""
    return isinstance(linear, PackedLinear) and list(linear.matrices) == [embedding.weight]
