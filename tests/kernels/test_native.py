"""The native kernels do what the torch reference says, and compute each row the same way whatever else is there."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels import reference
from paceline.kernels.native import NativeKernels
from tests.kernels.batches import Batch, make_batch

if os.environ.get("PACELINE_KERNELS") == "torch":
    pytest.fail("these tests need the native kernels")

native = NativeKernels()
SETTINGS = settings(max_examples=120, deadline=None)
KV_DTYPES = [torch.float32, torch.bfloat16, torch.float16]

sequences = st.lists(
    st.integers(1, 150).flatmap(lambda context: st.tuples(st.just(context), st.integers(1, min(context, 70)))),
    min_size=1,
    max_size=5,
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    return make_batch(
        draw(st.integers(0, 1000)),
        draw(sequences),
        heads=kv_heads * draw(st.sampled_from([1, 2, 3, 4, 8])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 16, 20, 64, 80, 128, 256])),
        block_size=draw(st.sampled_from([1, 3, 16, 64])),
        kv_dtype=draw(st.sampled_from(KV_DTYPES)),
    )


def attend(batch: Batch, **options: float) -> torch.Tensor:
    scale = 1 / math.sqrt(batch.q.shape[2])
    return native.paged_attention(*batch.arguments(), scale, torch.full_like(batch.q, math.nan), **options)


@SETTINGS
@given(batches(), st.sampled_from([0, 0, 1, 7, 64]), st.sampled_from([0.0, 0.0, 5.0]))
def test_attention(batch: Batch, window: int, soft_cap: float) -> None:
    scale = 1 / math.sqrt(batch.q.shape[2])
    expected = reference.paged_attention(
        *batch.arguments(), scale, torch.empty_like(batch.q), window=window, soft_cap=soft_cap
    )
    torch.testing.assert_close(attend(batch, window=window, soft_cap=soft_cap), expected, rtol=2e-5, atol=2e-5)


@SETTINGS
@given(batches(), st.data())
def test_a_row_has_the_same_bits_alone(batch: Batch, data: st.DataObject) -> None:
    """Each sequence by itself, and its rows cut into two chunks, on one thread and on two."""
    whole = attend(batch)
    starts = batch.query_starts.tolist()
    for s, context in enumerate(batch.context_lens.tolist()):
        rows = starts[s + 1] - starts[s]
        cut = data.draw(st.integers(0, rows))
        for first, last in ((0, cut), (cut, rows)):
            if first == last:
                continue
            part = Batch(
                batch.q[starts[s] + first : starts[s] + last],
                batch.k_cache,
                batch.v_cache,
                batch.block_tables[s : s + 1],
                torch.tensor([0, last - first], dtype=torch.int32),
                torch.tensor([context - rows + last], dtype=torch.int32),
            )
            torch.set_num_threads(data.draw(st.sampled_from([1, 2])))
            assert torch.equal(attend(part), whole[starts[s] + first : starts[s] + last])


def test_attention_never_reads_past_the_context() -> None:
    """Blocks that are not in use hold anything, even values that are not numbers."""
    batch = make_batch(3, [(21, 1), (5, 5)], heads=6, kv_heads=3, head_dim=64, block_size=16)
    expected = attend(batch)
    used = {(int(batch.block_tables[s, p // 16]), p % 16) for s, n in ((0, 21), (1, 5)) for p in range(n)}
    for block in range(batch.k_cache.shape[0]):
        for offset in range(16):
            if (block, offset) not in used:
                batch.k_cache[block, :, offset] = math.nan
                batch.v_cache[block, :, offset] = math.nan
    assert torch.equal(attend(batch), expected)


@SETTINGS
@given(st.integers(1, 40), st.integers(1, 700), st.booleans(), st.integers(0, 99))
def test_norms(rows: int, width: int, add: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, width + 3), generator=generator)[:, :width]
    residual, weight = torch.randn((rows, width), generator=generator), torch.randn(width, generator=generator)
    if add:
        ours, theirs = residual.clone(), residual.clone()
        got = native.add_rms_norm(x, ours, weight, 1e-5)
        torch.testing.assert_close(got, reference.add_rms_norm(x, theirs, weight, 1e-5), rtol=1e-5, atol=1e-5)
        assert torch.equal(ours, theirs)
        assert torch.equal(got[-1:], native.add_rms_norm(x[-1:], residual[-1:].clone(), weight, 1e-5))
    else:
        got = native.rms_norm(x, weight, 1e-5)
        torch.testing.assert_close(got, reference.rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-5)
        assert torch.equal(got[-1:], native.rms_norm(x[-1:], weight, 1e-5))


@SETTINGS
@given(st.integers(1, 40), st.integers(1, 700), st.integers(0, 99))
def test_silu_mul(rows: int, width: int, seed: int) -> None:
    gate_up = 20 * torch.randn((rows, 2 * width), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(native.silu_mul(gate_up), reference.silu_mul(gate_up), rtol=1e-5, atol=1e-6)


@SETTINGS
@given(
    st.integers(1, 20),
    st.sampled_from([(1, 1), (9, 3), (8, 2)]),
    st.sampled_from([8, 20, 64, 128]),
    st.booleans(),
    st.sampled_from(KV_DTYPES),
    st.integers(0, 99),
)
def test_rotate_and_store(
    rows: int, heads: tuple[int, int], head_dim: int, partial: bool, kv_dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    half = head_dim // 4 if partial else head_dim // 2
    qkv = torch.randn((rows, (heads[0] + 2 * heads[1]) * head_dim), generator=generator)
    cos, sin = torch.randn((50, half), generator=generator), torch.randn((50, half), generator=generator)
    positions = torch.randint(0, 50, (rows,), generator=generator, dtype=torch.int32)
    slots = torch.randperm(8 * 16, generator=generator)[:rows]
    results = []
    for kernels in (native, reference):
        mine = qkv.clone()
        split = mine.split([heads[0] * head_dim, heads[1] * head_dim, heads[1] * head_dim], dim=1)
        q, k, v = (part.view(rows, -1, head_dim) for part in split)
        caches = [torch.zeros((8, heads[1], 16, head_dim), dtype=kv_dtype) for _ in range(2)]
        kernels.rotate_and_store(q, k, v, cos, sin, positions, slots, *caches)
        results.append((mine, *caches))
    for ours, theirs in zip(*results, strict=True):
        tolerance = 1e-5 if ours.dtype is torch.float32 else 1e-2
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("change", ["dtype", "heads", "tables", "cache"])
def test_arguments_that_do_not_fit_are_refused(change: str) -> None:
    batch = make_batch(0, [(5, 2)], heads=6, kv_heads=3, head_dim=16, block_size=4)
    if change == "dtype":
        batch.q = batch.q.double()
    elif change == "heads":
        batch.q = batch.q[:, :5]
    elif change == "tables":
        batch.block_tables = batch.block_tables.long()
    else:
        batch.v_cache = batch.v_cache[:, :, :, :8]
    with pytest.raises(ValueError, match="cannot be used"):
        attend(batch)


def _run_with(path: str) -> subprocess.CompletedProcess[str]:
    code = "import paceline.kernels as k; print(k.path())"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PACELINE_KERNELS": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("path", ["scalar", "torch"])
def test_the_environment_forces_a_path(path: str) -> None:
    assert _run_with(path).stdout.strip() == path


def test_a_path_that_cannot_run_is_named_with_those_that_can() -> None:
    result = _run_with("sse9")
    assert result.returncode != 0
    assert "sse9" in result.stderr
    assert "scalar" in result.stderr
