"""The one class behind which every weight matrix lives, however it is stored.

float32 weights on a CPU are reordered once into oneDNN's own layout, which halves the time of a product or better, for
one row and for many. Milliseconds for SmolLM2's 30 layers, weights streaming from memory, one thread of a Zen 5 core,
torch 2.13: 1 row 24.7 with `F.linear`, 12.9 prepacked; 8 rows 43.9 and 19.2; 64 rows 152 and 65 (`benchmarks/linear.py`).
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

    def __call__(self, x: Tensor) -> Tensor:
        """The product [T, N], in x's type."""
        if self._is_packed:
            return prepacked_product(x, self._weight, self._bias)
        return functional.linear(x, self._weight, self._bias)
