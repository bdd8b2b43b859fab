"""--quantization: matrices in another type, everything else as it was."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from paceline.errors import ConfigError
from paceline.models.decoder import StageModel
from paceline.weights.checkpoint import open_checkpoint
from paceline.weights.quantize import quantized
from tests.models.steps import allocate, logits
from tests.models.test_against_transformers import save_tiny

MATRIX, NORM = "model.layers.0.mlp.down_proj.weight", "model.norm.weight"
MADE = ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
    return folder


def test_auto_is_the_checkpoint_itself(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert quantized(checkpoint, "auto") is checkpoint


@pytest.mark.parametrize("kind", MADE)
def test_matrices_are_what_gguf_makes_of_them_and_norms_stay(folder: Path, kind: str) -> None:
    plain, made = open_checkpoint(folder), quantized(open_checkpoint(folder), kind)
    stored = made.stored(MATRIX)
    assert stored is not None
    expected = gguf.quantize(plain.tensor(MATRIX).float().numpy(), Kind[kind.upper()])
    assert np.array_equal(stored.rows, expected.view(np.uint8).reshape(len(stored.rows), -1))
    values = torch.from_numpy(gguf.dequantize(expected, Kind[kind.upper()]))
    assert torch.equal(made.tensor(MATRIX), values)
    assert made.stored(NORM) is None
    assert torch.equal(made.tensor(NORM), plain.tensor(NORM))


@pytest.mark.parametrize("kind", ["none", *MADE])
def test_packed_and_torch_products_give_the_same_answers(folder: Path, kind: str) -> None:
    """The two backends read the same numbers; only the rounding of their sums differs."""
    tokens = list(range(3, 40))
    found = []
    for packed in (True, False):
        checkpoint = quantized(open_checkpoint(folder), kind)
        stage = StageModel(checkpoint.spec, 0, checkpoint.spec.num_layers, checkpoint, packed=packed)
        allocate([stage])
        found.append(logits([stage], tokens, [len(tokens)]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_packed_weights_are_small_and_a_tied_head_counts_once(tmp_path: Path) -> None:
    save_tiny(tmp_path, hidden_size=64, intermediate_size=96, tie_word_embeddings=True, num_attention_heads=4)
    checkpoint = quantized(open_checkpoint(tmp_path), "q8_0")
    stage = StageModel(checkpoint.spec, 0, checkpoint.spec.num_layers, checkpoint, packed=True)
    weights = sum(np.prod(shape) for shape in checkpoint.shapes().values())
    assert stage.weight_bytes <= 1.2 * weights * 34 / 32


def test_rows_that_cannot_be_cut_into_blocks_are_refused_at_start(tmp_path: Path) -> None:
    save_tiny(tmp_path)  # 48 columns
    with pytest.raises(ConfigError, match=r"--quantization q8_0: .*blocks of 32"):
        quantized(open_checkpoint(tmp_path), "q8_0")
    quantized(open_checkpoint(tmp_path), "f16")
