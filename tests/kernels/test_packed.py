"""Products with packed weights: the same as with the dequantised matrix, and each row the same whatever is beside it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels import PackedLinear, PackedMatrix
from paceline.kernels.packed import FORMATS, packed_bytes, row_bytes

SETTINGS = settings(max_examples=60, deadline=None)
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
HALVES = {"Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q8_0": 1, "Q4_K": 2, "Q5_K": 2, "Q6_K": 1}


def columns_of(format_name: str) -> int:
    return 1 if format_name in FLOATS else gguf.GGML_QUANT_SIZES[Kind[format_name]][0]


def random_rows(
    format_name: str, rows: int, columns: int, seed: int, exponents: tuple[int, int] = (-8, 0)
) -> torch.Tensor:
    """Any bytes at all are valid blocks; only the 16-bit factors are kept finite, between two powers of two.

    Exponents below -14 make subnormal factors, and a factor is zero now and then.
    """
    random = np.random.default_rng(seed)
    if format_name in FLOATS:
        values = torch.from_numpy(random.standard_normal((rows, columns)) * 2.0 ** random.integers(*exponents))
        return values.to(FLOATS[format_name]).view(torch.uint8)
    block, nbytes = gguf.GGML_QUANT_SIZES[Kind[format_name]]
    raw = random.integers(0, 256, (rows, columns // block, nbytes), dtype=np.uint8)
    count = HALVES[format_name]
    factors = random.uniform(-1, 1, (rows, columns // block, count)) * 2.0 ** random.integers(*exponents)
    factors[random.random(factors.shape) < 0.1] = 0
    place = slice(208, 210) if format_name == "Q6_K" else slice(0, 2 * count)
    raw[:, :, place] = factors.astype(np.float16).view(np.uint8)
    return torch.from_numpy(raw.reshape(rows, -1))


def dequantised(format_name: str, raw: torch.Tensor) -> torch.Tensor:
    if format_name in FLOATS:
        return raw.view(FLOATS[format_name]).float()
    return torch.from_numpy(gguf.dequantize(raw.numpy(), Kind[format_name]))


@st.composite
def matrices(draw: st.DrawFn) -> tuple[str, torch.Tensor, int]:
    format_name = draw(st.sampled_from(FORMATS))
    block = columns_of(format_name)
    columns = block * draw(st.integers(1, 200 if block == 1 else 1300 // block))
    rows = draw(st.integers(1, 90))
    exponents = draw(st.sampled_from([(-8, 0), (-24, -14), (0, 8)]))
    return format_name, random_rows(format_name, rows, columns, draw(st.integers(0, 99)), exponents), columns


def product(matrix: PackedMatrix, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.full((x.shape[0], matrix.out_features), float("nan"))
    matrix.product(x, bias, out)
    return out


def assert_rounding_only(
    got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """A sum of n products in float32 is off by at most n rounding errors of the sum of their sizes."""
    x, weight = x.double(), weight.double()
    bias = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.double()
    size = x.abs() @ weight.abs().T + bias.abs()
    assert ((got.double() - (x @ weight.T + bias)).abs() <= (x.shape[1] + 4) * 2.0**-24 * size + 1e-30).all()


@SETTINGS
@given(matrices())
def test_rows_are_what_gguf_dequantises(matrix: tuple[str, torch.Tensor, int]) -> None:
    format_name, raw, columns = matrix
    numbers = torch.arange(len(raw)).flip(0)
    got = PackedMatrix(format_name, raw, columns).rows(numbers)
    expected = dequantised(format_name, raw)[numbers]
    if format_name == "Q6_K":  # the only one whose d · s · q needs more than 24 bits, so that gguf rounds it twice
        torch.testing.assert_close(got, expected, rtol=3e-7, atol=0)
    else:
        assert torch.equal(got, expected)


@SETTINGS
@given(matrices(), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_product(matrix: tuple[str, torch.Tensor, int], rows: int, with_bias: bool, seed: int) -> None:
    format_name, raw, columns = matrix
    weight = dequantised(format_name, raw)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, columns), generator=generator)
    bias = torch.randn(len(raw), generator=generator) if with_bias else None
    assert_rounding_only(product(PackedMatrix(format_name, raw, columns), x, bias), x, weight, bias)


@SETTINGS
@given(matrices(), st.integers(1, 60), st.integers(0, 20), st.integers(1, 3), st.booleans())
def test_a_row_has_the_same_bits_whatever_is_beside_it(
    matrix: tuple[str, torch.Tensor, int], rows: int, first: int, threads: int, with_bias: bool
) -> None:
    format_name, raw, columns = matrix
    packed = PackedMatrix(format_name, raw, columns)
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn((first + rows, columns), generator=generator)
    bias = torch.randn(len(raw), generator=generator) if with_bias else None
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = product(packed, x, bias)
        torch.set_num_threads(threads)
        part, alone = product(packed, x[first:], bias), product(packed, x[first : first + 1], bias)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(part, whole[first:])
    assert torch.equal(alone, whole[first : first + 1])


@pytest.mark.parametrize("format_name", FORMATS)
def test_large_enough_for_threads_chunks_and_tiles(format_name: str) -> None:
    """Several chunks of columns, several tiles of rows, several tasks: all the loops that small shapes leave early."""
    raw = random_rows(format_name, 333, 2560, seed=1)
    packed, weight = PackedMatrix(format_name, raw, 2560), dequantised(format_name, raw)
    x = torch.randn((70, 2560), generator=torch.Generator().manual_seed(2))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        whole = product(packed, x)
    finally:
        torch.set_num_threads(before)
    assert_rounding_only(whole, x, weight)
    for rows in (1, 2, 3, 5, 11, 12, 13, 25):
        assert torch.equal(product(packed, x[:rows]), whole[:rows])


def test_a_row_that_is_not_finite_stays_alone() -> None:
    packed = PackedMatrix("Q4_1", random_rows("Q4_1", 48, 64, seed=3), 64)
    x = torch.randn((15, 64), generator=torch.Generator().manual_seed(4))
    clean = product(packed, x)
    x[7, 3], x[8, 5] = float("inf"), float("nan")
    got = product(packed, x)
    others = [r for r in range(15) if r not in (7, 8)]
    assert torch.equal(got[others], clean[others])
    assert not got[7].isfinite().any()
    assert got[8].isnan().all()


def test_strided_input_and_output() -> None:
    raw = random_rows("Q8_0", 40, 96, seed=5)
    packed = PackedMatrix("Q8_0", raw, 96)
    wide = torch.randn((20, 200), generator=torch.Generator().manual_seed(6))
    out = torch.full((20, 100), 7.0)
    packed.product(wide[:, 50:146], None, out[:, 30:70])
    assert torch.equal(out[:, 30:70], product(packed, wide[:, 50:146].contiguous()))
    assert (out[:, :30] == 7).all()
    assert (out[:, 70:] == 7).all()


def test_a_product_over_matrices_of_several_formats() -> None:
    parts = [("Q4_0", 17), ("Q8_0", 40), ("F16", 5)]
    raws = [random_rows(name, rows, 64, seed=rows) for name, rows in parts]
    packed = [PackedMatrix(name, raw, 64) for (name, _), raw in zip(parts, raws, strict=True)]
    weight = torch.cat([dequantised(name, raw) for (name, _), raw in zip(parts, raws, strict=True)])
    x, bias = torch.randn(9, 64), torch.randn(62)
    linear = PackedLinear(packed, bias)
    torch.testing.assert_close(linear(x), x @ weight.T + bias, rtol=1e-4, atol=1e-4)
    assert linear.nbytes == sum(matrix.nbytes for matrix in packed) + 62 * 4


@pytest.mark.parametrize("format_name", FORMATS)
def test_packed_size_is_close_to_the_size_in_the_file(format_name: str) -> None:
    nbytes = packed_bytes(format_name, 576, 1536)
    assert nbytes is not None
    assert nbytes <= 1.05 * 576 * row_bytes(format_name, 1536)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="33 columns"):
        PackedMatrix("Q4_0", torch.zeros((2, 18), dtype=torch.uint8), 33)
    with pytest.raises(ValueError, match="raw"):
        PackedMatrix("Q4_0", torch.zeros((2, 17), dtype=torch.uint8), 32)
    assert packed_bytes("IQ2_XS", 16, 256) is None
    packed = PackedMatrix("Q4_0", torch.zeros((2, 18), dtype=torch.uint8), 32)
    with pytest.raises(ValueError, match="x: "):
        packed.product(torch.zeros(3, 31), None, torch.zeros(3, 2))
    with pytest.raises(ValueError, match="out: "):
        packed.product(torch.zeros(3, 32), None, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="bias: "):
        packed.product(torch.zeros(3, 32), torch.zeros(3), torch.zeros(3, 2))
    for bad in (-1, 2):
        with pytest.raises(ValueError, match="rows"):
            packed.rows(torch.tensor([0, bad]))


def test_no_rows() -> None:
    packed = PackedMatrix("Q4_0", torch.zeros((2, 18), dtype=torch.uint8), 32)
    assert product(packed, torch.zeros(0, 32)).shape == (0, 2)
    assert packed.rows(torch.zeros(0, dtype=torch.int64)).shape == (0, 32)
