"""The native kernels, called with the addresses of torch tensors.

The library is built with the package and finds the best instruction set of the processor itself; the environment
variable PACELINE_KERNELS forces one (``scalar``, ``avx2``, ``avx512``), or the torch reference (``torch``). Every call
fills a C struct of its own, since the interpreter's lock is released while native code runs. Whatever would let the
native code leave a tensor is refused with a ValueError: types, shapes and strides here; positions, slots, lengths and
block numbers by the library, before it writes anything.
"""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from paceline.kernels.library import PROBLEMS, AttentionArgs, NormArgs, RotateArgs, SiluArgs, load_library

KV_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class NativeKernels:
    """The kernels of one process; see :mod:`paceline.kernels.reference` for what each means."""

    def __init__(self) -> None:
        library, self.path = load_library()
        self._norm = library.paceline_norm
        self._silu = library.paceline_silu_mul
        self._rotate = library.paceline_rotate_and_store
        self._attention = library.paceline_attention

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
        address, stride = (None, 0) if residual is None else (residual.data_ptr(), residual.stride(0))
        arguments = NormArgs(
            x.data_ptr(),
            address,
            weight.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            x.stride(0),
            stride,
            out.stride(0),
            eps,
        )
        self._norm(byref(arguments))
        return out

    def silu_mul(self, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        _check(_rows_of_floats(gate_up) and gate_up.shape[1] % 2 == 0, "gate_up", gate_up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        if out is None:
            out = torch.empty((rows, width))
        _check(out.shape == (rows, width) and _rows_of_floats(out), "out", out)
        arguments = SiluArgs(gate_up.data_ptr(), out.data_ptr(), rows, width, gate_up.stride(0), out.stride(0))
        self._silu(byref(arguments))
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
        kv_heads = k_cache.shape[1]
        _check(k.shape == v.shape == (rows, kv_heads, head_dim), "k and v", k)
        half = cos.shape[1]
        _check(cos.shape == sin.shape and 2 * half <= head_dim, "cos and sin", cos)
        for name, table in (("cos", cos), ("sin", sin)):
            _check(table.dtype is torch.float32 and table.is_contiguous(), name, table)
        _check(_vector(positions, torch.int32, rows), "positions", positions)
        _check(_vector(slots, torch.int64, rows), "slots", slots)
        num_blocks, _, block_size, _ = v_cache.shape
        arguments = RotateArgs(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            rows,
            heads,
            kv_heads,
            head_dim,
            half,
            *q.stride()[:2],
            *k.stride()[:2],
            *v.stride()[:2],
            block_size,
            cos.shape[0],
            num_blocks * block_size,
            KV_TYPES[k_cache.dtype],
        )
        _raise_for(self._rotate(byref(arguments)))

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
        rows, heads, head_dim = q.shape
        _check(_heads_of_floats(q), "q", q)
        _check(out.shape == q.shape and _heads_of_floats(out), "out", out)
        _check_caches(k_cache, v_cache, head_dim)
        _check(heads % k_cache.shape[1] == 0, "q", q)
        sequences = context_lens.shape[0]
        _check(_vector(context_lens, torch.int32, sequences), "context_lens", context_lens)
        _check(_vector(query_starts, torch.int32, sequences + 1), "query_starts", query_starts)
        tables_fit = block_tables.dim() == 2 and block_tables.shape[0] == sequences and block_tables.stride(1) == 1
        _check(tables_fit and block_tables.dtype is torch.int32, "block_tables", block_tables)
        num_blocks, kv_heads, block_size, _ = v_cache.shape
        arguments = AttentionArgs(
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            block_tables.data_ptr(),
            query_starts.data_ptr(),
            context_lens.data_ptr(),
            out.data_ptr(),
            sequences,
            heads,
            kv_heads,
            head_dim,
            block_size,
            block_tables.stride(0),
            *q.stride()[:2],
            *out.stride()[:2],
            rows,
            num_blocks,
            block_tables.shape[1],
            KV_TYPES[k_cache.dtype],
            window,
            scale,
            soft_cap,
        )
        _raise_for(self._attention(byref(arguments)))
        return out


def _raise_for(status: int) -> None:
    if status:
        raise (MemoryError if status == 1 else ValueError)(PROBLEMS[status])


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
    usable = v_cache.dim() == 4 and v_cache.shape[3] == head_dim and v_cache.dtype in KV_TYPES
    same = usable and k_cache.shape == v_cache.mT.shape and k_cache.dtype == v_cache.dtype
    _check(same and k_cache.is_contiguous() and v_cache.is_contiguous(), "k_cache and v_cache", k_cache)
