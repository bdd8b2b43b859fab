"""The meaning of every kernel, written plainly with torch.

It runs on any device, and the tests hold the native code to it. Arithmetic is float32 whatever the storage type.
Shapes: T rows (tokens) of a batch, H hidden size, Hq query heads, Hkv key/value heads (Hq is a multiple of Hkv),
D head dimension, S sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """``x / sqrt(mean(x²) + eps) * weight`` over the last dimension; x is [T, H], weight [H]."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    result = (wide * weight.float()).to(x.dtype)
    return result if out is None else out.copy_(result)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """``residual += x`` in place, then the norm of residual; x and residual are [T, H]."""
    residual.add_(x)
    return rms_norm(residual, weight, eps, out)


def silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up`` for gate_up [T, 2·I] that holds gate in its first half; gives [T, I]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    result = (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
    return result if out is None else out.copy_(result)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    x[..., : 2 * half] = rotated.to(x.dtype)


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
    """Rotate the first R dimensions of q [T, Hq, D] and k [T, Hkv, D] in place, then store k and v.

    Element i is paired with element i + R/2 (the "half" or "neox" layout); cos and sin are [P, R/2] tables
    indexed by positions [T]. Row t goes to slot ``slots[t] = block · block_size + offset`` of the caches:
    k_cache [blocks, Hkv, D, block_size], v_cache [blocks, Hkv, block_size, D].
    """
    at = positions.long()
    row_cos, row_sin = cos[at].unsqueeze(1), sin[at].unsqueeze(1)
    _rotate(q, row_cos, row_sin)
    _rotate(k, row_cos, row_sin)
    block_size = v_cache.shape[2]
    block, offset = slots // block_size, slots % block_size
    k_cache[block, :, :, offset] = k.to(k_cache.dtype)
    v_cache[block, :, offset] = v.to(v_cache.dtype)


def _visible(positions: Tensor, num_keys: int, window: int) -> Tensor:
    """Which keys each query position sees: [rows, keys], causal, only the last `window` keys if not 0."""
    keys = torch.arange(num_keys, device=positions.device)
    seen = keys <= positions[:, None]
    if window:
        seen &= keys > positions[:, None] - window
    return seen


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
    """Causal attention of q [T, Hq, D] over a paged cache into out [T, Hq, D].

    k_cache is [blocks, Hkv, D, block_size], v_cache [blocks, Hkv, block_size, D]: either product finds what it sums
    over outermost within a block, so that a vector of the processor holds keys in one and dimensions in the other.
    Sequence s owns rows ``query_starts[s]:query_starts[s+1]``: the last ones of its ``context_lens[s]``
    positions, whose keys and values lie in the blocks that ``block_tables[s]`` names. With `window` a row sees
    that many positions, itself included; with `soft_cap` a score x becomes ``soft_cap · tanh(x / soft_cap)``.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, block_size = v_cache.shape[1:3]
    starts, lens = query_starts.tolist(), context_lens.tolist()
    for s, context in enumerate(lens):
        rows = slice(starts[s], starts[s + 1])
        num_rows = rows.stop - rows.start
        if not num_rows:
            continue
        blocks = block_tables[s, : -(-context // block_size)].long()
        # -> [Hkv, keys, D]
        keys = k_cache[blocks].permute(1, 0, 3, 2).reshape(num_kv_heads, -1, head_dim)[:, :context].float()
        values = v_cache[blocks].transpose(0, 1).reshape(num_kv_heads, -1, head_dim)[:, :context].float()
        queries = q[rows].float().view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores = torch.einsum("tkgd,kcd->kgtc", queries, keys) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        positions = torch.arange(context - num_rows, context, device=q.device)
        scores = scores.masked_fill(~_visible(positions, context, window), float("-inf"))
        mixed = torch.einsum("kgtc,kcd->tkgd", scores.softmax(-1), values)
        out[rows] = mixed.reshape(num_rows, num_heads, head_dim).to(out.dtype)
    return out
