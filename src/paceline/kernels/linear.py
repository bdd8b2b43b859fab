"""The one class behind which every weight matrix lives, however it is stored.

float32 weights on a CPU are reordered once into oneDNN's own layout, which halves the time of a product or better, for
one row and for many. Milliseconds for SmolLM2's 30 layers, weights streaming from memory, one thread of a Zen 5 core,
torch 2.13: 1 row 24.7 with `F.linear`, 12.9 prepacked; 8 rows 43.9 and 19.2; 64 rows 152 and 65 (`benchmarks/linear.py`).

With this layout a row's result also has the same bits whatever rows are beside it and on any number of threads, which
`F.linear` does not give (measured over 150 shapes to 8192 columns, with AVX2 and with AVX-512; `tests/kernels/test_linear.py`
holds it). One exception: with AVX-512, oneDNN sums a lone row with more than 1024 columns in another order than two
rows. Where a product is seen to do that, a lone row is computed as two, which costs 144 instead of 124 µs for SmolLM2's
576×1536.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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


class Linear:
    """``x @ weight.T + bias`` for x [T, K] and weight [N, K].

    Attributes:
        nbytes: what weight and bias take.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._is_packed = can_prepack(weight)
        self._weight = prepack(weight) if self._is_packed else weight
        self._bias = bias
        self._doubles_lone_row = self._is_packed and _sums_a_lone_row_differently(self._weight, self.in_features)

    def __call__(self, x: Tensor) -> Tensor:
        """The product [T, N], in x's type."""
        if self._is_packed:
            if self._doubles_lone_row and x.shape[0] == 1:
                return prepacked_product(x.repeat(2, 1), self._weight, self._bias)[:1]
            return prepacked_product(x, self._weight, self._bias)
        return functional.linear(x, self._weight, self._bias)
