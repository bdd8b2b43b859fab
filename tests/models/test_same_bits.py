"""A token's logits have the same bits however its sequence was cut into batches, over stages and over threads.

True for float32 on a CPU with the native kernels, for packed weights of every kind, for 8-bit activations, and for oneDNN's
prepacked products.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.models.decoder import StageModel
from paceline.weights.checkpoint import open_checkpoint
from paceline.weights.quantize import quantized
from tests.models.steps import allocate, logits
from tests.models.test_against_transformers import save_tiny

LENGTH = 60
TOKENS = torch.randint(0, 97, (LENGTH,), generator=torch.Generator().manual_seed(3)).tolist()
NUM_LAYERS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Wide enough (more than 1024 columns) for oneDNN to treat a lone row apart where it does."""
    folder = tmp_path_factory.mktemp("wide")
    save_tiny(folder, hidden_size=64, intermediate_size=1120, num_attention_heads=4, num_key_value_heads=2)
    before = torch.get_num_threads()
    yield folder
    torch.set_num_threads(before)


def _stages(folder: Path, weights: str, cuts: list[int]) -> list[StageModel]:
    checkpoint = quantized(open_checkpoint(folder, "auto"), "none" if weights in ("torch", "int8") else weights)
    ends = [0, *cuts, NUM_LAYERS]
    packed = weights != "torch"
    stages = [
        StageModel(checkpoint.spec, a, b, checkpoint, packed=packed, int8=weights == "int8") for a, b in pairwise(ends)
    ]
    allocate(stages)
    return stages


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["torch", "none", "f16", "q8_0", "q4_1", "int8"]),
    st.sets(st.integers(1, LENGTH - 1)),
    st.sets(st.integers(1, NUM_LAYERS - 1)),
    st.integers(1, 2),
)
def test_any_chunks_stages_and_threads(
    model: Path, weights: str, chunk_cuts: set[int], stage_cuts: set[int], threads: int
) -> None:
    torch.set_num_threads(1)
    expected = logits(_stages(model, weights, []), TOKENS, [LENGTH])
    torch.set_num_threads(threads)
    ends = [0, *sorted(chunk_cuts), LENGTH]
    chunks = [b - a for a, b in pairwise(ends)]
    assert torch.equal(logits(_stages(model, weights, sorted(stage_cuts)), TOKENS, chunks), expected)
