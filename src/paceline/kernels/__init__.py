"""The few hot operations of a decoder, each with one signature.

float32 tensors on a CPU go to the native code; everything else, and everything under ``PACELINE_KERNELS=torch``, to the
torch reference (:mod:`paceline.kernels.reference`), which says what each operation means.
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

from paceline.kernels import reference
from paceline.kernels.linear import Embedding, Linear, PackedLinear, TorchLinear, shares_weight
from paceline.kernels.native import NativeKernels
from paceline.kernels.packed import PackedMatrix

__all__ = [
    "Embedding",
    "Linear",
    "PackedLinear",
    "PackedMatrix",
    "TorchLinear",
    "add_rms_norm",
    "paged_attention",
    "path",
    "rms_norm",
    "rotate_and_store",
    "shares_weight",
    "silu_mul",
]


@cache
def _native() -> NativeKernels | None:
    return None if os.environ.get("PACELINE_KERNELS") == "torch" else NativeKernels()


def _for(tensor: Tensor) -> NativeKernels | None:
    return _native() if tensor.dtype is torch.float32 and tensor.is_cpu else None


def path() -> str:
    """Which code float32 tensors on a CPU go to: ``torch``, ``scalar``, ``avx2`` or ``avx512``."""
    native = _native()
    return "torch" if native is None else native.path


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """See :func:`paceline.kernels.reference.rms_norm`."""
    return (_for(x) or reference).rms_norm(x, weight, eps, out)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """See :func:`paceline.kernels.reference.add_rms_norm`."""
    return (_for(x) or reference).add_rms_norm(x, residual, weight, eps, out)


def silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """See :func:`paceline.kernels.reference.silu_mul`."""
    return (_for(gate_up) or reference).silu_mul(gate_up, out)


def rotate_and_store(
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
    """See :func:`paceline.kernels.reference.rotate_and_store`."""
    (_for(q) or reference).rotate_and_store(q, k, v, cos, sin, positions, slots, k_cache, v_cache)


def paged_attention(
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
    """See :func:`paceline.kernels.reference.paged_attention`."""
    return (_for(q) or reference).paged_attention(
        q,
        k_cache,
        v_cache,
        block_tables,
        query_starts,
        context_lens,
        scale,
        out,
        window=window,
        soft_cap=soft_cap,
    )
