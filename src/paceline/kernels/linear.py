"""The one class behind which every weight matrix lives, however it is stored."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class Linear:
    """``x @ weight.T + bias`` for x [T, K] and weight [N, K]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """The product [T, N], in x's type."""
        return functional.linear(x, self._weight, self._bias)
