"""Linear gives torch's product, whatever layout it keeps the weight in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels import Linear


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 200), st.booleans(), st.integers(0, 99))
def test_product(rows: int, outputs: int, inputs: int, with_bias: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, x = torch.randn((outputs, inputs), generator=generator), torch.randn((rows, inputs), generator=generator)
    bias = torch.randn(outputs, generator=generator) if with_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    got = Linear(weight, bias)(x)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    weight, x = torch.randn(24, 16).to(dtype), torch.randn(3, 16).to(dtype)
    torch.testing.assert_close(Linear(weight)(x), x @ weight.T, rtol=1e-2, atol=1e-2)


def test_bytes_count_weight_and_bias() -> None:
    assert Linear(torch.zeros(8, 4), torch.zeros(8)).nbytes == 8 * 4 * 4 + 8 * 4


def test_the_original_weight_is_not_kept() -> None:
    """A prepacked weight must not cost twice its memory, nor follow later changes of the tensor it came from."""
    weight = torch.ones(16, 16)
    product = Linear(weight)
    weight.zero_()
    assert product(torch.ones(1, 16)).sum() == 256
