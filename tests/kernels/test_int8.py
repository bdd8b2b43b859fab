"""Products of 8-bit activations with 8-bit weights are exactly what numpy makes of the same rule, on every path."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.kernels import PackedLinear, PackedMatrix
from paceline.kernels.packed import library, packed_bytes
from tests.kernels.test_packed import product

SETTINGS = settings(max_examples=80, deadline=None)
PATHS = range(library().paceline_best_path() + 1)


@pytest.fixture(autouse=True, scope="module")
def _own_path_afterwards() -> Iterator[None]:
    yield
    library().paceline_use_path(PATHS[-1])


def rounded(values: torch.Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Codes and the scale of each row: 127 levels on either side of zero, ties to even; rows of next to nothing are zero."""
    found = values.numpy()
    most = np.abs(found).max(axis=1)
    counts = most >= np.float32(2.0**-100)
    most = np.where(counts, most, np.float32(1))
    to_codes, scales = np.float32(127) / most, most / np.float32(127)
    codes = np.rint(found * np.where(counts, to_codes, np.float32(0))[:, None])
    return codes.astype(np.int64), np.where(counts, scales, np.float32(0))


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    x_codes, x_scales = rounded(x)
    w_codes, w_scales = rounded(weight)
    sums = (x_codes @ w_codes.T).astype(np.int32).astype(np.float32)
    out = sums * (x_scales[:, None] * w_scales[None, :])
    return torch.from_numpy(out if bias is None else out + bias.numpy())


def packed(weight: torch.Tensor, cut: int = 0) -> PackedMatrix:
    return PackedMatrix.int8([piece for piece in (weight[:cut], weight[cut:]) if len(piece)], *weight.shape)


def rows_of(random: np.random.Generator, rows: int, columns: int) -> torch.Tensor:
    """Rows of very different sizes; some are zero, some next to zero, some have one huge element."""
    values = random.standard_normal((rows, columns)) * 2.0 ** random.integers(-30, 30, (rows, 1))
    for row in range(rows):
        kind = random.integers(0, 8)
        if kind == 0:
            values[row] = 0
        elif kind == 1:
            values[row] *= 2.0**-120
        elif kind == 2:
            values[row, random.integers(columns)] *= 1e6
    return torch.from_numpy(values.astype(np.float32))


@SETTINGS
@given(
    st.integers(1, 40), st.integers(1, 90), st.integers(1, 700), st.booleans(), st.integers(0, 2**32), st.integers(1, 3)
)
def test_exactly_the_rule_on_every_path(
    rows: int, outputs: int, columns: int, with_bias: bool, seed: int, threads: int
) -> None:
    random = np.random.default_rng(seed)
    weight, x = rows_of(random, outputs, columns), rows_of(random, rows, columns)
    bias = torch.from_numpy(random.standard_normal(outputs).astype(np.float32)) if with_bias else None
    matrix = packed(weight, outputs // 3)
    wanted = expected(x, weight, bias)
    codes, scales = rounded(weight)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for path in PATHS:
            assert library().paceline_use_path(path) == 0
            assert torch.equal(product(matrix, x, bias), wanted)
            assert torch.equal(
                matrix.rows(torch.arange(outputs)), torch.from_numpy(codes.astype(np.float32) * scales[:, None])
            )
            assert torch.equal(packed(weight).rows(torch.arange(outputs)), matrix.rows(torch.arange(outputs)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("path", PATHS)
def test_large_enough_for_threads_and_tiles(path: int) -> None:
    random = np.random.default_rng(1)
    weight, x = rows_of(random, 333, 2562), rows_of(random, 70, 2562)
    matrix, wanted = packed(weight), expected(x, weight, None)
    assert library().paceline_use_path(path) == 0
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for first, end in [(0, 70), (0, 1), (3, 5), (10, 21), (1, 13), (0, 13), (7, 32)]:
            assert torch.equal(product(matrix, x[first:end]), wanted[first:end])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("path", PATHS)
def test_the_longest_sum_does_not_overflow(path: int) -> None:
    assert library().paceline_use_path(path) == 0
    columns = 2**17
    weight = torch.ones((17, columns))
    weight[1::2] = -1
    x = torch.ones((2, columns))
    x[1] = -1
    assert torch.equal(product(packed(weight), x), expected(x, weight, None))
    assert packed_bytes("INT8", 17, columns + 1) is None
    with pytest.raises(ValueError, match="131073 columns"):
        PackedMatrix.int8([], 1, columns + 1)


@pytest.mark.parametrize("path", PATHS)
def test_a_row_that_is_not_finite_stays_alone(path: int) -> None:
    assert library().paceline_use_path(path) == 0
    generator = torch.Generator().manual_seed(4)
    matrix, x = packed(torch.randn((48, 70), generator=generator)), torch.randn((15, 70), generator=generator)
    clean = product(matrix, x)
    x[7, 3], x[8, 69] = float("-inf"), float("nan")
    got = product(matrix, x)
    others = [r for r in range(15) if r not in (7, 8)]
    assert torch.equal(got[others], clean[others])
    assert got[7:9].isnan().all()


def test_close_to_the_product_in_floats() -> None:
    """Rounding to 127 levels is an error of at most half a level per factor."""
    generator = torch.Generator().manual_seed(5)
    weight, x = torch.randn((64, 576), generator=generator), torch.randn((20, 576), generator=generator)
    error = product(packed(weight), x) - x @ weight.T
    assert (error.norm() / (x @ weight.T).norm()).item() < 0.02


def test_strided_input_and_output() -> None:
    generator = torch.Generator().manual_seed(6)
    matrix, wide = packed(torch.randn((40, 96), generator=generator)), torch.randn((20, 200), generator=generator)
    out = torch.full((20, 100), 7.0)
    matrix.product(wide[:, 50:146], None, out[:, 30:70])
    assert torch.equal(out[:, 30:70], product(matrix, wide[:, 50:146].contiguous()))
    assert (out[:, :30] == 7).all()
    assert (out[:, 70:] == 7).all()


def test_a_product_beside_one_in_floats() -> None:
    generator = torch.Generator().manual_seed(7)
    weight, x = torch.randn((50, 64), generator=generator), torch.randn((9, 64), generator=generator)
    matrices = [packed(weight[:17]), PackedMatrix.from_floats(weight[17:])]
    assert torch.equal(PackedLinear(matrices)(x)[:, :17], expected(x, weight[:17], None))
    assert torch.equal(PackedLinear(matrices)(x)[:, 17:], product(matrices[1], x))


def test_a_byte_per_weight() -> None:
    nbytes = packed_bytes("INT8", 576, 1536)
    assert nbytes == 576 * 1536 + 576 * 4


def test_refusals() -> None:
    with pytest.raises(ValueError, match="more than 3 rows"):
        PackedMatrix.int8([torch.zeros((2, 8)), torch.zeros((2, 8))], 3, 8)
    with pytest.raises(ValueError, match="2 of 3 rows"):
        PackedMatrix.int8([torch.zeros((2, 8))], 3, 8)
    with pytest.raises(ValueError, match="raw"):
        PackedMatrix.int8([torch.zeros((2, 7))], 2, 8)
    with pytest.raises(ValueError, match="rows"):
        packed(torch.zeros((2, 8))).rows(torch.tensor([2]))


def test_no_rows() -> None:
    assert product(packed(torch.zeros((2, 32))), torch.zeros(0, 32)).shape == (0, 2)
