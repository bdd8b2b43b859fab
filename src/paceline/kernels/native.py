"""The native kernels, called with the addresses of torch tensors.

The library is built with the package and finds the best instruction set of the processor itself; the environment
variable PACELINE_KERNELS forces one (``scalar``, ``avx2``, ``avx512``), or the torch reference (``torch``). Arguments
travel in C structs that are kept and refilled, so a call costs few microseconds. Every function checks what would let
the native code leave a tensor: types, shapes and strides; positions, slots and block numbers are the caller's word.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ConfigError

PATHS = ("scalar", "avx2", "avx512")
_KV_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_LIBRARY = "_native.so"


def _fields(pointers: str, numbers: str, rest: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [(name, ctypes.c_void_p) for name in pointers.split()]
    return found + [(name, ctypes.c_int64) for name in numbers.split()] + rest


class _NormArgs(ctypes.Structure):
    _fields_ = _fields(
        "x residual weight out", "rows width x_stride residual_stride out_stride", [("eps", ctypes.c_float)]
    )


class _SiluArgs(ctypes.Structure):
    _fields_ = _fields("gate_up out", "rows width in_stride out_stride", [])


class _RotateArgs(ctypes.Structure):
    _fields_ = _fields(
        "q k v cos sin positions slots k_cache v_cache",
        "rows heads kv_heads head_dim half q_row q_head k_row k_head v_row v_head block_size",
        [("kv_type", ctypes.c_int32)],
    )


class _AttentionArgs(ctypes.Structure):
    _fields_ = _fields(
        "q k_cache v_cache block_tables query_starts context_lens out",
        "sequences heads kv_heads head_dim block_size table_stride q_row q_head out_row out_head",
        [
            ("kv_type", ctypes.c_int32),
            ("window", ctypes.c_int32),
            ("scale", ctypes.c_float),
            ("soft_cap", ctypes.c_float),
        ],
    )


def load_library() -> tuple[ctypes.CDLL, str]:
    """The library with its path chosen, and that path's name.

    Raises:
        ConfigError: PACELINE_KERNELS names a path that cannot run here, or the library was not built.
    """
    file = _library_file()
    if file is None:
        raise ConfigError(
            "PACELINE_KERNELS",
            os.environ.get("PACELINE_KERNELS", "auto"),
            "the native kernels were not built",
            "Install the package with pip, or set PACELINE_KERNELS=torch (slow)",
        )
    library = ctypes.CDLL(str(file))
    wanted = os.environ.get("PACELINE_KERNELS", "auto")
    best: int = library.paceline_best_path()
    path = best if wanted == "auto" else PATHS.index(wanted) if wanted in PATHS else -1
    if library.paceline_use_path(path):
        usable = ", ".join(("auto", "torch", *PATHS[: best + 1]))
        raise ConfigError("PACELINE_KERNELS", wanted, "cannot be used on this processor", f"Choose one of: {usable}")
    _share_threads(library)
    return library, PATHS[path]


def _library_file() -> Path | None:
    """Beside this module in an installed package; an editable install may keep it elsewhere on the package's path."""
    import paceline.kernels

    for folder in paceline.kernels.__path__:
        if (Path(folder) / _LIBRARY).exists():
            return Path(folder) / _LIBRARY
    return None


def _share_threads(library: ctypes.CDLL) -> None:
    """Hand over the entry points of the OpenMP runtime that torch has loaded; without them one thread does all."""
    everything = ctypes.CDLL(None)
    for candidate in (everything, *_openmp_of_torch()):
        try:
            parallel = ctypes.cast(candidate.GOMP_parallel, ctypes.c_void_p)
            max_threads = ctypes.cast(candidate.omp_get_max_threads, ctypes.c_void_p)
        except AttributeError:
            continue
        library.paceline_use_openmp(parallel, max_threads)
        return


def _openmp_of_torch() -> list[ctypes.CDLL]:
    folder = Path(torch.__file__).parent / "lib"
    return [ctypes.CDLL(str(file)) for file in sorted(folder.glob("libgomp*.so*"))]


class NativeKernels:
    """The kernels of one process; see :mod:`paceline.kernels.reference` for what each means."""

    def __init__(self) -> None:
        library, self.path = load_library()
        self._norm = library.paceline_norm
        self._silu = library.paceline_silu_mul
        self._rotate = library.paceline_rotate_and_store
        self._attention = library.paceline_attention
        self._norm_args, self._silu_args = _NormArgs(), _SiluArgs()
        self._rotate_args, self._attention_args = _RotateArgs(), _AttentionArgs()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        return self._any_norm(x, None, weight, eps, out)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None
    ) -> Tensor:
        _check(residual.shape == x.shape and _rows_of_floats(residual), "residual", residual)
        return self._any_norm(x, residual, weight, eps, out)

    def _any_norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor | None) -> Tensor:
        _check(_rows_of_floats(x), "x", x)
        rows, width = x.shape
        _check(weight.dtype is torch.float32 and weight.shape == (width,) and weight.is_contiguous(), "weight", weight)
        if out is None:
            out = torch.empty((rows, width))
        _check(out.shape == x.shape and _rows_of_floats(out), "out", out)
        a = self._norm_args
        a.x, a.weight, a.out = x.data_ptr(), weight.data_ptr(), out.data_ptr()
        a.residual = None if residual is None else residual.data_ptr()
        a.residual_stride = 0 if residual is None else residual.stride(0)
        a.rows, a.width, a.x_stride, a.out_stride, a.eps = rows, width, x.stride(0), out.stride(0), eps
        self._norm(ctypes.byref(a))
        return out

    def silu_mul(self, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        _check(_rows_of_floats(gate_up) and gate_up.shape[1] % 2 == 0, "gate_up", gate_up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        if out is None:
            out = torch.empty((rows, width))
        _check(out.shape == (rows, width) and _rows_of_floats(out), "out", out)
        a = self._silu_args
        a.gate_up, a.out, a.rows, a.width = gate_up.data_ptr(), out.data_ptr(), rows, width
        a.in_stride, a.out_stride = gate_up.stride(0), out.stride(0)
        self._silu(ctypes.byref(a))
        return out

    def rotate_and_store(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> None:
        rows, heads, head_dim = q.shape
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            _check(_heads_of_floats(tensor) and tensor.shape[0] == rows, name, tensor)
        _check_caches(k_cache, v_cache, head_dim)
        kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
        _check(k.shape == v.shape == (rows, kv_heads, head_dim), "k and v", k)
        half = cos.shape[1]
        _check(cos.shape == sin.shape and 2 * half <= head_dim, "cos and sin", cos)
        _check(cos.dtype is torch.float32 and cos.is_contiguous() and sin.is_contiguous(), "cos and sin", cos)
        _check(_vector(positions, torch.int32, rows), "positions", positions)
        _check(_vector(slots, torch.int64, rows), "slots", slots)
        a = self._rotate_args
        a.q, a.k, a.v, a.cos, a.sin = q.data_ptr(), k.data_ptr(), v.data_ptr(), cos.data_ptr(), sin.data_ptr()
        a.positions, a.slots = positions.data_ptr(), slots.data_ptr()
        a.k_cache, a.v_cache = k_cache.data_ptr(), v_cache.data_ptr()
        a.rows, a.heads, a.kv_heads, a.head_dim, a.half = rows, heads, kv_heads, head_dim, half
        a.q_row, a.q_head, _ = q.stride()
        a.k_row, a.k_head, _ = k.stride()
        a.v_row, a.v_head, _ = v.stride()
        a.block_size, a.kv_type = block_size, _KV_TYPES[k_cache.dtype]
        self._rotate(ctypes.byref(a))

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        query_starts: Tensor,
        context_lens: Tensor,
        scale: float,
        out: Tensor,
        *,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Tensor:
        _, heads, head_dim = q.shape
        _check(_heads_of_floats(q), "q", q)
        _check(out.shape == q.shape and _heads_of_floats(out), "out", out)
        _check_caches(k_cache, v_cache, head_dim)
        _check(heads % k_cache.shape[1] == 0, "q", q)
        sequences = context_lens.shape[0]
        _check(_vector(context_lens, torch.int32, sequences), "context_lens", context_lens)
        _check(_vector(query_starts, torch.int32, sequences + 1), "query_starts", query_starts)
        tables_fit = block_tables.dim() == 2 and block_tables.shape[0] == sequences and block_tables.stride(1) == 1
        _check(tables_fit and block_tables.dtype is torch.int32, "block_tables", block_tables)
        a = self._attention_args
        a.q, a.out, a.k_cache, a.v_cache = q.data_ptr(), out.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr()
        a.block_tables, a.query_starts = block_tables.data_ptr(), query_starts.data_ptr()
        a.context_lens, a.sequences = context_lens.data_ptr(), sequences
        a.heads, a.kv_heads, a.head_dim, a.block_size = heads, k_cache.shape[1], head_dim, k_cache.shape[2]
        a.table_stride = block_tables.stride(0)
        a.q_row, a.q_head, _ = q.stride()
        a.out_row, a.out_head, _ = out.stride()
        a.kv_type, a.window, a.scale, a.soft_cap = _KV_TYPES[k_cache.dtype], window, scale, soft_cap
        if self._attention(ctypes.byref(a)):
            raise MemoryError("no memory for the attention kernel's scratch space")
        return out


# ---------------------------------------------------------------- cheap checks


def _check(condition: bool, name: str, tensor: Tensor) -> None:
    if not condition:
        raise ValueError(f"{name}: {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} cannot be used")


def _rows_of_floats(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.dim() == 2 and tensor.stride(1) == 1


def _heads_of_floats(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.dim() == 3 and tensor.stride(2) == 1


def _vector(tensor: Tensor, dtype: torch.dtype, length: int) -> bool:
    return tensor.dtype is dtype and tensor.shape == (length,) and tensor.is_contiguous()


def _check_caches(k_cache: Tensor, v_cache: Tensor, head_dim: int) -> None:
    same = k_cache.shape == v_cache.shape and k_cache.dtype == v_cache.dtype
    usable = k_cache.dim() == 4 and k_cache.shape[3] == head_dim and k_cache.dtype in _KV_TYPES
    _check(same and usable and k_cache.is_contiguous() and v_cache.is_contiguous(), "k_cache and v_cache", k_cache)
