"""Folders of safetensors: read as the `safetensors` library wrote them, and damaged ones refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from paceline.errors import ModelError
from paceline.weights import safetensors as reader
from paceline.weights.checkpoint import open_checkpoint
from tests.weights.files import LAYERS, tiny_model, write_folder
from tests.weights.test_gguf_header import survives

NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return dict(tiny_model().state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tensors_come_back_as_they_were_written(
    dtype: torch.dtype, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    written = {name: tensor.to(dtype) for name, tensor in weights.items()}
    checkpoint = open_checkpoint(write_folder(tmp_path, written))
    assert checkpoint.shapes() == {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name, tensor in written.items():
        got = checkpoint.tensor(name)
        assert got.dtype is (torch.float32 if dtype is torch.float64 else dtype)
        assert torch.equal(got, tensor.to(got.dtype))
        assert checkpoint.nbytes(name) == tensor.nbytes


def test_constants_of_old_files_and_a_repeated_tied_head_are_passed_over(
    weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(LAYERS)}
    checkpoint = open_checkpoint(write_folder(tmp_path, weights | extra, tie_word_embeddings=True))
    assert checkpoint.shapes().keys() == weights.keys() - {"lm_head.weight"}


def test_model_safetensors_is_preferred_to_its_neighbours(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, weights)
    save_file({"other": torch.ones(1)}, folder / "consolidated.safetensors")
    assert NORM in open_checkpoint(folder).shapes()


# ---------------------------------------------------------------- one file's header


def entry(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file_of(header: Any, data: int = 16) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(data)


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "does not fit"),
    "seven bytes": (bytes(7), "does not fit"),
    "header longer than the file": (struct.pack("<Q", 1 << 63) + b"{}", "header of 9223372036854775808 bytes"),
    "not JSON": (file_of(b"{]"), "cannot be understood"),
    "not an object": (file_of([1]), "cannot be understood"),
    "not UTF-8": (file_of(b'{"\xff\xff": 1}'), "cannot be understood"),
    "deep": (file_of(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "cannot be understood"),
    "entry is a number": (file_of({"x": 1}), "cannot be understood"),
    "no offsets": (file_of({"x": {"dtype": "F32", "shape": [4]}}), "data_offsets"),
    "three offsets": (file_of({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1, 2]}}), "Expected"),
    "text as offset": (file_of({"x": entry([4], "0", 16)}), "Expected `int`"),
    "fraction as dimension": (file_of({"x": entry([4.5], 0, 16)}), "Expected `int`"),
    "negative dimensions": (file_of({"x": entry([-2, -2], 0, 16)}), "make no sense"),
    "negative offset": (file_of({"x": entry([4], -16, 0)}), "does not begin where"),
    "backwards": (file_of({"x": entry([4], 0, -16)}), "make no sense"),
    "many dimensions": (file_of({"x": entry([1] * 9 + [4], 0, 16)}), "make no sense"),
    "shape larger than its bytes": (file_of({"x": entry([5], 0, 16)}), "16 bytes, and its shape needs 20"),
    "huge shape": (file_of({"x": entry([1 << 62, 4], 0, 16)}), "its shape needs"),
    "data cut": (file_of({"x": entry([4], 0, 16)}, data=15), "damaged or incomplete"),
    "data left over": (file_of({"x": entry([4], 0, 16)}, data=17), "damaged or incomplete"),
    "overlap": (file_of({"x": entry([4], 0, 16), "y": entry([4], 0, 16)}), "does not begin where"),
    "hole": (file_of({"x": entry([2], 0, 8), "y": entry([1], 12, 16)}), "does not begin where"),
    "offset past the end": (file_of({"x": entry([4], 0, 16), "y": entry([4], 16, 32)}), "damaged or incomplete"),
    "type": (file_of({"x": entry([16], 0, 16, "F8_E4M3")}), "has the type F8_E4M3; supported: F64, F32"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_refused_with_its_reason(name: str, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    raw, reason = BAD[name]
    folder = write_folder(tmp_path, weights)
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(ModelError, match=reason):
        open_checkpoint(folder)


def test_a_long_header_is_refused_before_it_is_read(
    weights: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 100)
    with pytest.raises(ModelError, match="a header of"):
        open_checkpoint(write_folder(tmp_path, weights))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_changed_anywhere_in_the_header(
    weights: dict[str, torch.Tensor], tmp_path: Path, data: st.DataObject
) -> None:
    file = write_folder(tmp_path, weights) / "model.safetensors"
    raw = bytearray(file.read_bytes())
    length = 8 + struct.unpack_from("<Q", raw)[0]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, length - 1))
        new = data.draw(st.one_of(st.binary(min_size=1, max_size=1), st.sampled_from([b"99999999", b"[[[[[[", b'"'])))
        raw[at : at + len(new)] = new
    file.write_bytes(raw)
    survives(lambda: open_checkpoint(tmp_path))


def test_a_file_that_shrinks_after_it_was_opened(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, weights)
    checkpoint = open_checkpoint(folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ModelError, match="became shorter"):
        checkpoint.tensor(NORM)
    file.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        checkpoint.tensor(NORM)


# ---------------------------------------------------------------- several files


def sharded(folder: Path, weights: dict[str, torch.Tensor], weight_map: Any = None) -> Path:
    write_folder(folder, weights)
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file)
    if weight_map is None:
        weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_are_found_through_the_index(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = sharded(tmp_path, weights)
    save_file({"other": torch.ones(1)}, folder / "not-in-the-index.safetensors")
    checkpoint = open_checkpoint(folder)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "a.bin", "a\0.safetensors"])
def test_an_index_may_name_only_safetensors_in_its_own_folder(
    name: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="not the name of a safetensors file"):
        open_checkpoint(sharded(tmp_path, weights, {NORM: name}))


@pytest.mark.parametrize("weight_map", [None, 7, {"x": 7}])
def test_a_weight_map_of_another_kind(weight_map: Any, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = sharded(tmp_path, weights)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match="weight_map"):
        open_checkpoint(folder)


def test_a_shard_that_is_not_there(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = sharded(tmp_path, weights)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors: missing"):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = sharded(tmp_path, weights)
    save_file(dict(weights), folder / "b.safetensors")
    with pytest.raises(ModelError, match=r"is also in a\.safetensors"):
        open_checkpoint(folder)
