"""The native kernels do what the torch reference says, and compute each row the same way whatever else is there."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

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
SETTINGS = settings(max_examples=60, deadline=None)
KV_DTYPES = [torch.float32, torch.bfloat16, torch.float16]

sequences = st.lists(
    st.integers(1, 700).flatmap(lambda context: st.tuples(st.just(context), st.integers(1, min(context, 70)))),
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
        block_size=draw(st.sampled_from([1, 3, 8, 16, 48, 64, 128])),
        kv_dtype=draw(st.sampled_from(KV_DTYPES)),
    )


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
@given(batches(), st.sampled_from([0, 0, 5, 100, 300]), st.sampled_from([0.0, 0.0, 5.0]), st.data())
def test_a_row_has_the_same_bits_alone(batch: Batch, window: int, soft_cap: float, data: st.DataObject) -> None:
    """Each sequence by itself, and its rows cut into two chunks, on one thread and on several."""
    whole = attend(batch, window=window, soft_cap=soft_cap)
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
            with threads(data.draw(st.sampled_from([1, 2, 3]))):
                alone = attend(part, window=window, soft_cap=soft_cap)
            assert torch.equal(alone, whole[starts[s] + first : starts[s] + last])


def test_a_long_context_has_the_same_bits_on_any_number_of_threads() -> None:
    """Few units and several threads: partitions of the context become tasks of their own."""
    for rows in (1, 3, 33):
        batch = make_batch(rows, [(1500, rows)], heads=6, kv_heads=2, head_dim=64, block_size=16)
        results = []
        for count in (1, 2, 4):
            with threads(count):
                results.append(attend(batch))
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


def test_a_row_that_is_not_a_number_harms_no_other() -> None:
    batch = make_batch(1, [(40, 5), (300, 1), (9, 9)], heads=6, kv_heads=3, head_dim=64, block_size=16)
    expected = attend(batch)
    batch.q[5, 0] = math.nan  # the second sequence's only row, its first head
    got = attend(batch)
    assert got[5, 0].isnan().all()
    batch.q[5, 0] = 0
    got[5, 0] = expected[5, 0]
    assert torch.equal(got, expected)


def test_large_scores_do_not_overflow() -> None:
    batch = make_batch(2, [(300, 4)], heads=2, kv_heads=1, head_dim=32, block_size=16)
    batch.q *= 1000
    expected = reference.paged_attention(*batch.arguments(), 1 / math.sqrt(32), torch.empty_like(batch.q))
    torch.testing.assert_close(attend(batch), expected, rtol=1e-3, atol=1e-3)


def test_two_callers_at_once_do_not_mix_their_arguments() -> None:
    """Native code runs without the interpreter's lock, so several models may call at the same moment."""
    cases = [make_batch(seed, [(200 + seed, 20)], heads=4, kv_heads=2, head_dim=64, block_size=16) for seed in range(4)]
    expected = [attend(batch) for batch in cases]

    def many(number: int) -> bool:
        return all(torch.equal(attend(cases[number]), expected[number]) for _ in range(50))

    with ThreadPoolExecutor(len(cases)) as pool:
        assert all(pool.map(many, range(len(cases))))


def test_attention_never_reads_past_the_context() -> None:
    """Blocks that are not in use hold anything, even values that are not numbers."""
    batch = make_batch(3, [(21, 1), (5, 5)], heads=6, kv_heads=3, head_dim=64, block_size=16)
    expected = attend(batch)
    used = {(int(batch.block_tables[s, p // 16]), p % 16) for s, n in ((0, 21), (1, 5)) for p in range(n)}
    for block in range(batch.k_cache.shape[0]):
        for offset in range(16):
            if (block, offset) not in used:
                batch.k_cache[block, :, :, offset] = math.nan
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


def test_silu_of_extreme_values() -> None:
    gate = torch.tensor([[-math.inf, -200.0, -88.5, -87.0, -0.0, 1e-30, 87.0, 200.0, math.inf, math.nan]])
    got = native.silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    # The reference has no better word on -inf than 0/0 either: exp overflows, and -inf / inf is no number.
    expected = reference.silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-35, equal_nan=True)


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_storage_rounds_as_torch_does(kv_dtype: torch.dtype) -> None:
    """Ties, subnormals, overflow, infinities and NaN; the angle is 0, so keys and values are stored as they are."""
    bits = torch.randint(-(2**31), 2**31, (64, 1, 64), generator=torch.Generator().manual_seed(5))
    values = bits.to(torch.int32).view(torch.float32).clone()
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 65504.0, 65519.9, 65520.0, 2**-24, 2**-25, 1.5 * 2**-25]
    special += [6.1e-5, 1.0009765625, 1.00048828125, 1.00146484375, 3.3961775e38, 1e-40, 1.00390625, 1.01171875]
    values[0, 0, : len(special)] = torch.tensor(special)
    values[1] = torch.randn(64) * 1e-6
    q, caches = torch.zeros(64, 1, 64), [torch.zeros((4, 1, *inner), dtype=kv_dtype) for inner in ((64, 16), (16, 64))]
    cos, sin, numbers = torch.ones(64, 32), torch.zeros(64, 32), torch.arange(64)
    native.rotate_and_store(q, values.clone(), values, cos, sin, numbers.int(), numbers, *caches)
    torch.testing.assert_close(caches[1].view(64, 1, 64), values.to(kv_dtype), rtol=0, atol=0, equal_nan=True)


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
        caches = [torch.zeros((8, heads[1], *inner), dtype=kv_dtype) for inner in ((head_dim, 16), (16, head_dim))]
        kernels.rotate_and_store(q, k, v, cos, sin, positions, slots, *caches)
        results.append((mine, *caches))
    for ours, theirs in zip(*results, strict=True):
        tolerance = 1e-5 if ours.dtype is torch.float32 else 1e-2
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
