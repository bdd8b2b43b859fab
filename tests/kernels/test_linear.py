"""Linear gives torch's product, whatever layout it keeps the weight in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels import TorchLinear


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 200), st.booleans(), st.integers(0, 99))
def test_product(rows: int, outputs: int, inputs: int, with_bias: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, x = torch.randn((outputs, inputs), generator=generator), torch.randn((rows, inputs), generator=generator)
    bias = torch.randn(outputs, generator=generator) if with_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    got = TorchLinear(weight, bias)(x)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([7, 64, 100, 576, 1536]),
    st.sampled_from([8, 30, 576, 1024, 1025, 1536, 2048, 4096]),
    st.integers(1, 140),
    st.integers(1, 140),
    st.integers(1, 2),
    st.booleans(),
)
def test_a_row_has_the_same_bits_whatever_is_beside_it(
    outputs: int, inputs: int, first: int, rows: int, threads: int, with_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight, x = torch.randn((outputs, inputs), generator=generator), torch.randn((280, inputs), generator=generator)
    product = TorchLinear(weight, torch.randn(outputs, generator=generator) if with_bias else None)
    before = torch.get_num_threads()
    whole = product(x)
    torch.set_num_threads(threads)
    try:
        part, alone = product(x[first : first + rows]), product(x[first : first + 1])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(part, whole[first : first + rows])
    assert torch.equal(alone, whole[first : first + 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    weight, x = torch.randn(24, 16).to(dtype), torch.randn(3, 16).to(dtype)
    torch.testing.assert_close(TorchLinear(weight)(x), x @ weight.T, rtol=1e-2, atol=1e-2)


def test_bytes_count_weight_and_bias() -> None:
    assert TorchLinear(torch.zeros(8, 4), torch.zeros(8)).nbytes == 8 * 4 * 4 + 8 * 4


def test_the_original_weight_is_not_kept() -> None:
    """A prepacked weight must not cost twice its memory, nor follow later changes of the tensor it came from."""
    weight = torch.ones(16, 16)
    product = TorchLinear(weight)
    weight.zero_()
    assert product(torch.ones(1, 16)).sum() == 256
