"""A model with 8-bit activations: what its products are, and which of its matrices are 8-bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.kernels import Linear, PackedLinear, PackedMatrix
from paceline.models.decoder import StageModel
from paceline.weights.checkpoint import open_checkpoint
from paceline.weights.quantize import quantized
from tests.kernels.test_int8 import expected
from tests.models.steps import allocate, logits
from tests.models.test_against_transformers import save_tiny

TOKENS = torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(3)).tolist()


def stages(folder: Path, *ranges: tuple[int, int], kind: str = "none", int8: bool = True) -> list[StageModel]:
    checkpoint = quantized(open_checkpoint(folder), kind)
    made = [StageModel(checkpoint.spec, first, last, checkpoint, packed=True, int8=int8) for first, last in ranges]
    allocate(made)
    return made


class Rule:
    """The product that the rule of 8-bit activations gives, by numpy, of a product in floats."""

    def __init__(self, linear: Linear) -> None:
        assert isinstance(linear, PackedLinear)
        self.nbytes = linear.nbytes
        self.bias = linear.bias
        self.weight = torch.cat([matrix.rows(torch.arange(matrix.out_features)) for matrix in linear.matrices])

    def __call__(self, x: Tensor) -> Tensor:
        return expected(x, self.weight, self.bias)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
@pytest.mark.parametrize("kind", ["none", "q8_0"])
def test_it_is_the_model_in_floats_with_the_rule_for_every_product(
    tmp_path: Path, changes: dict[str, bool], kind: str
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    save_tiny(tmp_path, **sizes, **changes)  # type: ignore[arg-type]
    (exact,) = stages(tmp_path, (0, 4), kind=kind, int8=False)
    in_floats = logits([exact], TOKENS, [40])
    exact.native_layers = None
    for layer in exact.layers:
        layer.qkv, layer.output = Rule(layer.qkv), Rule(layer.output)
        layer.gate_up, layer.down = Rule(layer.gate_up), Rule(layer.down)
    assert exact.head is not None
    exact.head = Rule(exact.head)
    wanted = logits([exact], TOKENS, [40])
    assert torch.equal(logits(stages(tmp_path, (0, 4), kind=kind), TOKENS, [40]), wanted)
    assert torch.equal(logits(stages(tmp_path, (0, 2), (2, 4), kind=kind), TOKENS, [13, 27]), wanted)
    assert 0 < ((wanted - in_floats).norm() / in_floats.norm()).item() < 0.1


def matrices(model: StageModel) -> list[PackedMatrix]:
    products = [model.head] if model.head is not None else []
    for layer in model.layers:
        products += [layer.qkv, layer.output, layer.gate_up, layer.down]
    return [matrix for product in products if isinstance(product, PackedLinear) for matrix in product.matrices]


def test_a_tied_head_is_8_bit_and_the_embedding_stays_as_it_is(tmp_path: Path) -> None:
    save_tiny(tmp_path, tie_word_embeddings=True)
    (exact,) = stages(tmp_path, (0, 4), int8=False)
    (whole,) = stages(tmp_path, (0, 4))
    first, last = stages(tmp_path, (0, 1), (1, 4))
    assert exact.embedding is not None
    assert whole.embedding is not None
    tokens = torch.arange(97)
    assert torch.equal(whole.embedding(tokens), exact.embedding(tokens))
    for model in (whole, first, last):
        found = matrices(model)
        assert len(found) == 4 * len(model.layers) + model.is_last
        assert {matrix.format_name for matrix in found} == {"INT8"}
    assert torch.equal(matrices(whole)[0].rows(tokens), matrices(last)[0].rows(tokens))
    head = matrices(whole)[0]
    assert whole.weight_bytes == first.weight_bytes + last.weight_bytes  # both hold an embedding and an 8-bit head
    assert whole.weight_bytes > head.nbytes + whole.embedding.nbytes
