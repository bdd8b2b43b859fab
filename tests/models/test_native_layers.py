"""One native call for all layers gives the bits of calling the kernels one by one, and refuses what would leave a tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.models.decoder import StageModel
from paceline.models.inputs import BatchInputs
from paceline.weights.checkpoint import open_checkpoint
from paceline.weights.quantize import quantized
from tests.models.steps import BLOCK_SIZE, NUM_BLOCKS
from tests.models.test_against_transformers import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
    return folder


def stage(folder: Path, kind: str, first: int, last: int, dtype: torch.dtype) -> StageModel:
    int8 = kind == "int8"
    checkpoint = quantized(open_checkpoint(folder), "none" if int8 else kind)
    made = StageModel(checkpoint.spec, first, last, checkpoint, packed=True, int8=int8)
    made.allocate_cache(NUM_BLOCKS, BLOCK_SIZE, dtype)
    return made


@st.composite
def batches(draw: st.DrawFn) -> BatchInputs:
    """Several sequences at their beginnings, each with blocks of its own; some rows are sampled from."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    width = -(-max(lengths) // BLOCK_SIZE)
    tables = [[s * width + b for b in range(width)] for s in range(len(lengths))]
    positions = [p for length in lengths for p in range(length)]
    owners = [s for s, length in enumerate(lengths) for _ in range(length)]
    slots = [tables[s][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for s, p in zip(owners, positions, strict=True)]
    sampled = sorted(draw(st.sets(st.integers(0, len(positions) - 1))))
    return BatchInputs(
        token_ids=torch.tensor([draw(st.integers(0, 96)) for _ in positions]),
        positions=torch.tensor(positions, dtype=torch.int32),
        slots=torch.tensor(slots),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        sample_rows=torch.tensor(sampled, dtype=torch.int64),
    )


@settings(max_examples=40, deadline=None)
@given(
    batches(),
    st.sampled_from(["none", "q4_1", "q8_0", "int8"]),
    st.sampled_from([(0, 4), (0, 2), (1, 3), (3, 4)]),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_same_bits_as_one_kernel_after_the_other(
    folder: Path, batch: BatchInputs, kind: str, layers: tuple[int, int], dtype: torch.dtype
) -> None:
    together, apart = stage(folder, kind, *layers, dtype), stage(folder, kind, *layers, dtype)
    apart.native_layers = None
    hidden = None if layers[0] == 0 else torch.randn((len(batch.positions), 64))
    found = [
        model.forward(batch, None if hidden is None else hidden.clone()).clone()
        for model in (together, apart, together)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def valid() -> BatchInputs:
    return BatchInputs(
        token_ids=torch.tensor([1, 2, 3]),
        positions=torch.tensor([0, 1, 2], dtype=torch.int32),
        slots=torch.tensor([0, 1, 2]),
        block_tables=torch.tensor([[0]], dtype=torch.int32),
        query_starts=torch.tensor([0, 3], dtype=torch.int32),
        context_lens=torch.tensor([3], dtype=torch.int32),
        sample_rows=torch.tensor([1, 2]),
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"positions": torch.tensor([0, 1, 10**6], dtype=torch.int32)}, "positions"),
        ({"slots": torch.tensor([0, 1, NUM_BLOCKS * BLOCK_SIZE])}, "slots"),
        ({"block_tables": torch.tensor([[NUM_BLOCKS]], dtype=torch.int32)}, "block_tables"),
        ({"query_starts": torch.tensor([0, 4], dtype=torch.int32)}, "query_starts"),
        ({"context_lens": torch.tensor([99], dtype=torch.int32)}, "context_lens"),
        ({"sample_rows": torch.tensor([1, 3])}, "keep"),
        ({"sample_rows": torch.tensor([2, 1])}, "keep"),
    ],
)
def test_refusals(folder: Path, change: dict[str, torch.Tensor], named: str) -> None:
    model = stage(folder, "none", 0, 4, torch.float32)
    expected = model.forward(valid()).clone()
    with pytest.raises(ValueError, match=named):
        model.forward(replace(valid(), **change))
    assert torch.equal(model.forward(valid()), expected)
