"""Arguments that do not fit raise an error that names them, before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.kernels.native import NativeKernels
from tests.kernels.batches import Batch, make_batch

native = NativeKernels()


def _set(tensor: Tensor, index: int, value: int) -> None:
    tensor.view(-1)[index] = value


ATTENTION: dict[str, tuple[str, Callable[[Batch], object]]] = {
    "type of q": ("q:", lambda b: setattr(b, "q", b.q.double())),
    "heads not in groups": ("q:", lambda b: setattr(b, "q", b.q[:, :5])),
    "type of block tables": ("block_tables:", lambda b: setattr(b, "block_tables", b.block_tables.long())),
    "too few block tables": ("block_tables:", lambda b: setattr(b, "block_tables", b.block_tables[:1])),
    "cache with other heads": ("k_cache", lambda b: setattr(b, "v_cache", b.v_cache[:, :, :, :8])),
    "caches of two types": ("k_cache", lambda b: setattr(b, "v_cache", b.v_cache.half())),
    "cache with holes": ("k_cache", lambda b: setattr(b, "k_cache", b.k_cache.transpose(1, 2))),
    "type of lengths": ("context_lens:", lambda b: setattr(b, "context_lens", b.context_lens.long())),
    "too few starts": ("query_starts:", lambda b: setattr(b, "query_starts", b.query_starts[:2])),
    "rows beyond q": ("query_starts:", lambda b: _set(b.query_starts, 2, 99)),
    "starts that fall": ("query_starts:", lambda b: _set(b.query_starts, 1, 5)),
    "starts below zero": ("query_starts:", lambda b: _set(b.query_starts, 0, -1)),
    "context shorter than rows": ("context_lens:", lambda b: _set(b.context_lens, 0, 1)),
    "context beyond the table": ("context_lens:", lambda b: _set(b.context_lens, 0, 9)),
    "block beyond the cache": ("block_tables:", lambda b: _set(b.block_tables, 1, 1000)),
    "block below zero": ("block_tables:", lambda b: _set(b.block_tables, 0, -1)),
}


@pytest.mark.parametrize("case", ATTENTION)
def test_attention(case: str) -> None:
    batch = make_batch(0, [(5, 2), (3, 2)], heads=6, kv_heads=3, head_dim=16, block_size=4)
    word, change = ATTENTION[case]
    change(batch)
    out = torch.full(batch.q.shape, math.nan)
    with pytest.raises(ValueError, match=f"^{word}"):
        native.paged_attention(*batch.arguments(), 0.25, out)
    assert out.isnan().all()


def test_blocks_behind_the_window_may_be_gone() -> None:
    batch = make_batch(0, [(40, 1)], heads=2, kv_heads=1, head_dim=16, block_size=4)
    expected = native.paged_attention(*batch.arguments(), 0.25, torch.empty_like(batch.q), window=9)
    batch.block_tables[0, :7] = -1  # positions 0 to 27; the window sees 31 to 39
    assert torch.equal(native.paged_attention(*batch.arguments(), 0.25, torch.empty_like(batch.q), window=9), expected)


def _rotation() -> dict[str, Tensor]:
    return {
        "q": torch.ones(2, 2, 16),
        "k": torch.ones(2, 1, 16),
        "v": torch.ones(2, 1, 16),
        "cos": torch.ones(10, 8),
        "sin": torch.zeros(10, 8),
        "positions": torch.tensor([3, 9], dtype=torch.int32),
        "slots": torch.tensor([0, 15]),
        "k_cache": torch.zeros(4, 1, 16, 4),
        "v_cache": torch.zeros(4, 1, 4, 16),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("positions", torch.tensor([3, 10], dtype=torch.int32)),
        ("positions", torch.tensor([-1, 0], dtype=torch.int32)),
        ("positions", torch.tensor([3, 9])),
        ("positions", torch.tensor([3], dtype=torch.int32)),
        ("slots", torch.tensor([0, 16])),
        ("slots", torch.tensor([-1, 0])),
        ("slots", torch.tensor([0, 15], dtype=torch.int32)),
        ("cos", torch.ones(10, 9)),
        ("sin", torch.ones(10, 8).half()),
        ("k", torch.ones(2, 2, 16)),
        ("v", torch.ones(1, 1, 16)),
        ("q", torch.ones(2, 2, 16).bfloat16()),
        ("v_cache", torch.zeros(4, 1, 4, 8)),
    ],
)
def test_rotate_and_store(name: str, value: Tensor) -> None:
    arguments = _rotation()
    native.rotate_and_store(**arguments)
    assert arguments["k_cache"].any()
    arguments = _rotation() | {name: value}
    with pytest.raises(ValueError, match=name):
        native.rotate_and_store(**arguments)
    assert not arguments["k_cache"].any()


def test_rows() -> None:
    x, weight = torch.ones(2, 8), torch.ones(8)
    with pytest.raises(ValueError, match=r"^weight"):
        native.rms_norm(x, torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match=r"^out"):
        native.rms_norm(x, weight, 1e-5, torch.ones(1, 8))
    with pytest.raises(ValueError, match=r"^residual"):
        native.add_rms_norm(x, torch.ones(2, 9), weight, 1e-5)
    with pytest.raises(ValueError, match=r"^x"):
        native.rms_norm(torch.ones(8, 2).t(), weight, 1e-5)
    with pytest.raises(ValueError, match=r"^gate_up"):
        native.silu_mul(torch.ones(2, 7))


def test_a_batch_without_rows_is_no_error() -> None:
    batch = make_batch(0, [(5, 0)], heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert native.paged_attention(*batch.arguments(), 0.25, torch.empty_like(batch.q)).shape == (0, 2, 16)
    assert native.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
