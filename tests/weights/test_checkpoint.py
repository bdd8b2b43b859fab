"""Opening a model: which files are meant, what must be in them, and what each stage reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.errors import ConfigError, ModelError
from paceline.models.decoder import StageModel
from paceline.weights.checkpoint import open_checkpoint, stage_bytes
from tests.models.steps import allocate, logits
from tests.weights.files import HIDDEN, VOCABULARY, gguf_arrays, tiny_model, write_folder, write_gguf

NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return dict(tiny_model().state_dict())


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return gguf_arrays(tiny_model())


# ---------------------------------------------------------------- which files


def test_a_folder_with_one_gguf_means_that_file(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", arrays)
    assert open_checkpoint(tmp_path).spec == open_checkpoint(tmp_path / "m.gguf", "gguf").spec


def test_a_folder_with_several_ggufs_asks_which(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    for name in ("m.gguf", "n.gguf"):
        write_gguf(tmp_path / name, arrays)
    with pytest.raises(ModelError, match=r"2 \.gguf files; name one of them: m\.gguf, n\.gguf"):
        open_checkpoint(tmp_path)


def test_a_config_beside_the_gguf_does_not_hide_it(
    arrays: dict[str, np.ndarray], weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Repositories of GGUF files often keep the config.json of the model they were made from."""
    folder = write_folder(tmp_path, weights)
    write_gguf(folder / "m.gguf", arrays)
    assert open_checkpoint(folder).generation_config["eos_token_id"] == [7, 3]  # safetensors come first
    assert open_checkpoint(folder, "gguf").generation_config["eos_token_id"] == [2]
    (folder / "model.safetensors").unlink()
    assert open_checkpoint(folder).generation_config["eos_token_id"] == [2]


def test_files_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    write_folder(tmp_path, {"x": torch.ones(1)})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="other kinds of weights are not read"):
        open_checkpoint(tmp_path)


def test_a_format_that_does_not_fit_the_path(
    arrays: dict[str, np.ndarray], weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "m.gguf", arrays)
    write_folder(tmp_path / "hf", weights)
    for path, load_format in ((file, "safetensors"), (tmp_path / "hf" / "model.safetensors", "auto")):
        with pytest.raises(ConfigError, match=r"--model .*Name the folder"):
            open_checkpoint(path, load_format)
    with pytest.raises(ConfigError, match="--load-format gguf"):
        open_checkpoint(tmp_path / "hf", "gguf")


# ---------------------------------------------------------------- what must be in them


def test_missing_tensors_are_named(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    fewer = {name: tensor for name, tensor in weights.items() if name != NORM}
    with pytest.raises(ModelError, match=rf"tensor {NORM} is missing"):
        open_checkpoint(write_folder(tmp_path, fewer))


def test_many_missing_tensors_are_counted(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    fewer = {name: tensor for name, tensor in weights.items() if ".layers.1." not in name}
    with pytest.raises(ModelError, match=r"tensors model\.layers\.1\..* and 4 more are missing"):
        open_checkpoint(write_folder(tmp_path, fewer))


def test_tensors_that_the_model_does_not_have_are_named(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    more = weights | {"model.layers.0.self_attn.q_proj.bias": torch.ones(HIDDEN)}
    with pytest.raises(ModelError, match=r"q_proj\.bias is not part of a llama model with these settings"):
        open_checkpoint(write_folder(tmp_path, more))


def test_a_tensor_of_another_shape_is_named(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"{NORM} has the shape \(5,\), and the configuration says \({HIDDEN},\)"):
        open_checkpoint(write_folder(tmp_path, weights | {NORM: torch.ones(5)}))


def test_a_gguf_is_held_to_its_header_too(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    fewer = {name: array for name, array in arrays.items() if name != "blk.1.ffn_up.weight"}
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", fewer))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_sinks\.weight is not part of"):
        open_checkpoint(write_gguf(tmp_path / "n.gguf", arrays | {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b'{"a":' + b"[" * 100_000])
def test_a_config_that_is_not_a_json_object(raw: bytes, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, weights)
    (folder / "config.json").write_bytes(raw)
    with pytest.raises(ModelError, match="JSON"):
        open_checkpoint(folder)


# ---------------------------------------------------------------- the end of a sequence


@pytest.mark.parametrize(
    ("in_config", "in_generation_config", "expected"),
    [
        (None, None, []),
        (2, None, [2]),
        ([7, 3], None, [7, 3]),
        (2, {"eos_token_id": [9, 8]}, [9, 8]),
        (2, {"temperature": 0.5}, [2]),
    ],
)
def test_eos_token_ids(
    in_config: Any, in_generation_config: Any, expected: list[int], weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, weights, eos_token_id=in_config)
    if in_generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(in_generation_config))
    config = open_checkpoint(folder).generation_config
    assert config["eos_token_id"] == expected
    assert config.get("temperature") == (in_generation_config or {}).get("temperature")


@pytest.mark.parametrize("value", ["2", -1, True, [2, None], 1.5])
def test_eos_token_ids_of_another_kind(value: Any, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="eos_token_id"):
        open_checkpoint(write_folder(tmp_path, weights, eos_token_id=value))


# ---------------------------------------------------------------- random weights


def test_dummy_weights_need_no_files_of_weights(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, weights)
    (folder / "model.safetensors").unlink()
    checkpoint = open_checkpoint(folder, "dummy")
    assert checkpoint.shapes() == {name: tuple(tensor.shape) for name, tensor in weights.items()}
    assert checkpoint.generation_config["eos_token_id"] == [7, 3]


def test_dummy_weights_depend_on_the_seed_and_the_name_alone(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", arrays)
    one, again, other = (open_checkpoint(path, "dummy", seed) for seed in (1, 1, 2))
    tokens = [1, 5, 9, 13]
    results = []
    for checkpoint, split in ((one, [(0, 2)]), (again, [(0, 1), (1, 2)]), (other, [(0, 2)])):
        stages = [StageModel(checkpoint.spec, *layers, checkpoint) for layers in reversed(split)][::-1]
        allocate(stages)
        results.append(logits(stages, tokens, [4]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert results[0].isfinite().all()
    up = "model.layers.{}.mlp.up_proj.weight"
    assert not torch.equal(one.tensor(up.format(0)), one.tensor(up.format(1)))


# ---------------------------------------------------------------- what a stage reads


def test_stages_read_every_byte_once_and_a_tied_embedding_twice(
    weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    total = sum(tensor.nbytes for tensor in weights.values())
    plain = open_checkpoint(write_folder(tmp_path / "plain", weights))
    assert stage_bytes(plain, 0, 1) + stage_bytes(plain, 1, 2) == stage_bytes(plain, 0, 2) == total
    tied = open_checkpoint(write_folder(tmp_path / "tied", weights, tie_word_embeddings=True))
    embedding = VOCABULARY * HIDDEN * 4
    assert stage_bytes(tied, 0, 2) == total - embedding
    assert stage_bytes(tied, 0, 1) + stage_bytes(tied, 1, 2) == total


def test_headers_open_without_torch(smollm2_gguf: Path, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """The engine core decides the layer split without ever loading torch."""
    folder = write_folder(tmp_path, weights)
    program = f"""
import sys
from pathlib import Path
from paceline.models.layer_split import split_layers
from paceline.weights.checkpoint import open_checkpoint
for path, stages in (({str(smollm2_gguf)!r}, 2), ({str(folder)!r}, 2)):
    print(split_layers(open_checkpoint(Path(path)).spec, stages))
print("torch" in sys.modules, "transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[16, 14]", "[1, 1]", "False False"]
