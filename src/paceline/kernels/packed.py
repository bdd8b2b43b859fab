"""Weight matrices that stay in the blocks of their file: a product reads 4 to 8 bits per weight and computes in float32.

A matrix is repacked once into panels of sixteen channels (native/packed_formats.hpp). Products equal those with the
dequantised matrix up to rounding, and a row's result has the same bits whatever rows are beside it, on any number of
threads, because each output is one chain of fused multiply-adds in the order of the columns.

One format is of another kind: INT8 is made from floats, one scale per channel, and its products round each row of x to 8
bits, too, by that row's own largest magnitude (native/int8.hpp). They are exact in integers, so rows are as independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from ctypes import CDLL, byref
from functools import cache

import torch
from torch import Tensor

from paceline.kernels.library import PROBLEMS, PackArgs, PackedArgs, UnpackArgs, load_library

# In the order of native/kernels.hpp; the names are GGUF's.
FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
INT8 = "INT8"
_NUMBERS = {name: number for number, name in enumerate((*FORMATS, INT8))}
FLOAT_FORMATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@cache
def library() -> CDLL:
    """The native library of this process, loaded once."""
    return load_library()[0]


def packed_bytes(format_name: str, rows: int, columns: int) -> int | None:
    """What a matrix takes when it is packed; None if the format is unknown or its blocks do not fit the columns."""
    if format_name not in _NUMBERS:
        return None
    nbytes: int = library().paceline_packed_bytes(_NUMBERS[format_name], rows, columns)
    return None if nbytes < 0 else nbytes


class PackedMatrix:
    """A weight matrix [N, K] in panels.

    Args:
        format_name: one of FORMATS.
        raw: [N, bytes of a row] uint8, in GGUF's blocks, or the bytes of plain floats.
        columns: K.

    Raises:
        ValueError: the format's blocks do not fit the columns, or `raw` does not have the bytes of that many columns.
    """

    def __init__(self, format_name: str, raw: Tensor, columns: int) -> None:
        self._allocate(format_name, raw.shape[0], columns)
        self._pack(raw, 0)

    def _allocate(self, format_name: str, rows: int, columns: int) -> None:
        native = library()
        self.format_name = format_name
        self.out_features, self.in_features = rows, columns
        size = packed_bytes(format_name, rows, columns)
        if size is None:
            raise ValueError(f"{columns} columns cannot be packed as {format_name}")
        self._format = _NUMBERS[format_name]
        self._data = torch.zeros(size + _LINE, dtype=torch.uint8)
        self._address = self._data.data_ptr() + -self._data.data_ptr() % _LINE
        self._product = native.paceline_packed_product
        self._unpack = native.paceline_unpack

    def _pack(self, raw: Tensor, first: int) -> None:
        """Put rows at row `first` of the matrix and below it."""
        row = row_bytes(self.format_name, self.in_features)
        if raw.dtype is not torch.uint8 or not raw.is_contiguous() or raw.shape[1] != row:
            raise ValueError(f"raw: {tuple(raw.shape)} bytes for {self.in_features} columns of {self.format_name}")
        arguments = PackArgs(raw.data_ptr(), self._address, raw.shape[0], self.in_features, first, self._format)
        library().paceline_pack(byref(arguments))

    @classmethod
    def from_floats(cls, weight: Tensor) -> PackedMatrix:
        """A matrix of 16- or 32-bit floats, kept as it is."""
        rows = weight.detach().contiguous()
        return cls(FLOAT_FORMATS[weight.dtype], rows.view(torch.uint8), weight.shape[1])

    @classmethod
    def int8(cls, pieces: Iterable[Tensor], rows: int, columns: int) -> PackedMatrix:
        """The matrix [rows, columns] of 8-bit codes nearest to floats.

        Args:
            pieces: matrices one below the other, of any float type; only one of them has to be in memory at a time.

        Raises:
            ValueError: there are more columns than a sum of 32 bits can hold, or the pieces do not have so many rows.
        """
        matrix = cls.__new__(cls)
        matrix._allocate(INT8, rows, columns)
        first = 0
        for piece in pieces:
            if first + len(piece) > rows:
                raise ValueError(f"pieces: more than {rows} rows")
            matrix._pack(piece.detach().float().contiguous().view(torch.uint8), first)
            first += len(piece)
        if first < rows:
            raise ValueError(f"pieces: {first} of {rows} rows")
        return matrix

    @property
    def address(self) -> int:
        """Where the panels begin, for calls that name many matrices."""
        return self._address

    @property
    def format_number(self) -> int:
        return self._format

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def product(self, x: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """``out[:] = x @ weight.T + bias``; with INT8, each row of x rounded to 8 bits.

        Args:
            x: [T, K] float32, rows contiguous.
            bias: [N] float32.
            out: [T, N] float32, rows contiguous; may be columns of a wider tensor.
        """
        rows = x.shape[0]
        _check(x, "x", rows, self.in_features)
        _check(out, "out", rows, self.out_features)
        if bias is not None and not (bias.dtype is torch.float32 and bias.shape == (self.out_features,)):
            raise ValueError(f"bias: {bias.dtype} {tuple(bias.shape)} for {self.out_features} outputs")
        arguments = PackedArgs(
            x.data_ptr(),
            self._address,
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            rows,
            self.in_features,
            self.out_features,
            x.stride(0),
            out.stride(0),
            self._format,
        )
        if status := self._product(byref(arguments)):
            raise MemoryError(PROBLEMS[status])

    def rows(self, numbers: Tensor) -> Tensor:
        """Rows of the matrix as float32 [R, K], for R row numbers (int64): what an embedding looks up."""
        if numbers.dtype is not torch.int64 or numbers.dim() != 1 or not numbers.is_contiguous():
            raise ValueError(f"numbers: {numbers.dtype} {tuple(numbers.shape)}")
        out = torch.empty((numbers.shape[0], self.in_features))
        arguments = UnpackArgs(
            self._address,
            numbers.data_ptr(),
            out.data_ptr(),
            numbers.shape[0],
            self.in_features,
            self.out_features,
            self._format,
        )
        if status := self._unpack(byref(arguments)):
            raise ValueError(PROBLEMS[status])
        return out


_LINE = 64  # bytes; codes are read a cache line at a time

_BLOCKS = {  # columns and bytes of one block in a file; INT8 is made from floats
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22),
    "Q5_1": (32, 24), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "INT8": (1, 4),
}  # fmt: skip


def row_bytes(format_name: str, columns: int) -> int:
    """What one row takes in a file."""
    block, nbytes = _BLOCKS[format_name]
    return math.ceil(columns / block) * nbytes


def _check(tensor: Tensor, name: str, rows: int, columns: int) -> None:
    if tensor.dtype is not torch.float32 or tensor.shape != (rows, columns) or tensor.stride(1) != 1:
        shape, strides = tuple(tensor.shape), tensor.stride()
        raise ValueError(f"{name}: {tensor.dtype} {shape} with strides {strides} cannot be used")
