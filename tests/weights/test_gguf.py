"""Reading weights from GGUF: every type against a dequantiser of our own, and whole models against transformers."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from paceline.errors import ModelError
from paceline.models.decoder import StageModel
from paceline.weights import gguf as reader
from paceline.weights.checkpoint import open_checkpoint
from tests.models.steps import allocate, logits
from tests.weights.files import HIDDEN, KV_HEADS, gguf_arrays, tiny_model, write_gguf

# ---------------------------------------------------------------- the published block layouts, written out


def half(raw: bytes, at: int) -> float:
    return struct.unpack_from("<e", raw, at)[0]


def f16(raw: bytes) -> list[float]:
    return [half(raw, 0)]


def bf16(raw: bytes) -> list[float]:
    return [struct.unpack("<f", b"\0\0" + raw)[0]]


def q8_0(raw: bytes) -> list[float]:
    return [half(raw, 0) * q for q in struct.unpack_from("<32b", raw, 2)]


def nibbles(raw: bytes) -> list[int]:
    """Low nibbles of all bytes, then high nibbles of all bytes."""
    return [b & 15 for b in raw] + [b >> 4 for b in raw]


def q4_0(raw: bytes) -> list[float]:
    return [half(raw, 0) * (q - 8) for q in nibbles(raw[2:18])]


def q4_1(raw: bytes) -> list[float]:
    return [half(raw, 0) * q + half(raw, 2) for q in nibbles(raw[4:20])]


def q5_0(raw: bytes) -> list[float]:
    high = struct.unpack_from("<I", raw, 2)[0]
    return [half(raw, 0) * ((q | (high >> i & 1) << 4) - 16) for i, q in enumerate(nibbles(raw[6:22]))]


def q5_1(raw: bytes) -> list[float]:
    high = struct.unpack_from("<I", raw, 4)[0]
    return [half(raw, 0) * (q | (high >> i & 1) << 4) + half(raw, 2) for i, q in enumerate(nibbles(raw[8:24]))]


def k_scales(raw: bytes) -> list[tuple[int, int]]:
    """The eight 6-bit (scale, minimum) pairs that 12 bytes of a K block hold."""
    pairs = []
    for j in range(8):
        if j < 4:
            pairs.append((raw[j] & 63, raw[j + 4] & 63))
        else:
            low, high = raw[j + 4], (raw[j - 4] >> 6, raw[j] >> 6)
            pairs.append((low & 15 | high[0] << 4, low >> 4 | high[1] << 4))
    return pairs


def q4_k(raw: bytes) -> list[float]:
    scale, minimum, pairs = half(raw, 0), half(raw, 2), k_scales(raw[4:16])
    out = []
    for j, (s, m) in enumerate(pairs):  # 32 elements each; two of them share 32 bytes
        part = raw[16 + 32 * (j // 2) : 48 + 32 * (j // 2)]
        out += [scale * s * (b >> 4 * (j % 2) & 15) - minimum * m for b in part]
    return out


def q5_k(raw: bytes) -> list[float]:
    scale, minimum, pairs = half(raw, 0), half(raw, 2), k_scales(raw[4:16])
    high = raw[16:48]
    out = []
    for j, (s, m) in enumerate(pairs):
        part = raw[48 + 32 * (j // 2) : 80 + 32 * (j // 2)]
        out += [
            scale * s * ((b >> 4 * (j % 2) & 15) | (h >> j & 1) << 4) - minimum * m
            for b, h in zip(part, high, strict=True)
        ]
    return out


def q6_k(raw: bytes) -> list[float]:
    low, high, scales, scale = raw[:128], raw[128:192], struct.unpack_from("<16b", raw, 192), half(raw, 208)
    out = [0.0] * 256
    for n in range(2):
        for i in range(32):
            bits = high[32 * n + i]
            for quarter in range(4):
                byte = low[64 * n + 32 * (quarter % 2) + i]
                q = (byte >> 4 * (quarter // 2) & 15 | (bits >> 2 * quarter & 3) << 4) - 32
                at = 128 * n + 32 * quarter + i
                out[at] = scale * scales[at // 16] * q
    return out


WRITTEN_OUT: dict[Kind, Callable[[bytes], list[float]]] = {
    Kind.F16: f16,
    Kind.BF16: bf16,
    Kind.Q8_0: q8_0,
    Kind.Q4_0: q4_0,
    Kind.Q4_1: q4_1,
    Kind.Q5_0: q5_0,
    Kind.Q5_1: q5_1,
    Kind.Q4_K: q4_k,
    Kind.Q5_K: q5_k,
    Kind.Q6_K: q6_k,
}
# Where a block's float16 scales lie: they must be ordinary numbers, the rest of a block may be any bytes.
SCALES_AT = {
    Kind.F16: [0],
    Kind.Q8_0: [0],
    Kind.Q4_0: [0],
    Kind.Q4_1: [0, 2],
    Kind.Q5_0: [0],
    Kind.Q5_1: [0, 2],
    Kind.Q4_K: [0, 2],
    Kind.Q5_K: [0, 2],
    Kind.Q6_K: [208],
}
OTHERS = [
    *(Kind.Q2_K, Kind.Q3_K, Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4, Kind.NVFP4, Kind.IQ1_S, Kind.IQ1_M, Kind.IQ2_XXS),
    *(Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ3_XXS, Kind.IQ3_S, Kind.IQ4_NL, Kind.IQ4_XS),
]


def random_blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    blocks = rng.integers(0, 256, (rows * columns // elements, nbytes), dtype=np.uint8)
    if kind is Kind.BF16:
        blocks[:, 1] &= 0xBF  # no infinities
    for at in SCALES_AT.get(kind, []):
        blocks[:, at : at + 2] = rng.normal(0, 0.01, len(blocks)).astype("<f2")[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def dequantised(folder: Path, kind: Kind, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Raw blocks of a tensor, and what our reader makes of it in a file."""
    raw = random_blocks(kind, rows, columns)
    writer_path = folder / "one.gguf"
    writer = gguf.GGUFWriter(writer_path, "llama")
    writer.add_tensor("before", np.ones(3, dtype=np.float32))
    writer.add_tensor("x", raw.view(np.float16) if kind is Kind.F16 else raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = reader.read_gguf_header(writer_path)
    assert header.tensors["x"].shape == (rows, columns)
    return raw, reader.dequantised(writer_path, np.memmap(writer_path, np.uint8, "r"), header.tensors["x"])


@pytest.mark.parametrize("kind", WRITTEN_OUT, ids=lambda kind: kind.name)
def test_values_are_those_of_the_published_layout(kind: Kind, tmp_path: Path) -> None:
    raw, values = dequantised(tmp_path, kind, 3, 512)
    blocks = raw.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    expected = np.array([WRITTEN_OUT[kind](block.tobytes()) for block in blocks], dtype=np.float64).reshape(3, 512)
    np.testing.assert_allclose(values, expected, rtol=2e-6, atol=1e-7)
    assert np.abs(expected).max() > 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # any bytes are a scale here, also infinite ones
@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_other_types_are_read_as_the_gguf_package_reads_them(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CHUNK_ELEMENTS", 1024)  # several chunks, the last one shorter
    raw, values = dequantised(tmp_path, kind, 5, 512)
    np.testing.assert_array_equal(values, gguf.dequantize(raw, kind))


def test_dequantising_takes_little_more_than_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "CHUNK_ELEMENTS", 1 << 14)
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", random_blocks(Kind.Q4_K, 2048, 1024), raw_dtype=Kind.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = reader.read_gguf_header(path).tensors["x"]
    data = np.memmap(path, np.uint8, "r")
    tracemalloc.start()
    try:
        values = reader.dequantised(path, data, tensor)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values.nbytes == 2048 * 1024 * 4
    assert peak < 1.25 * values.nbytes


# ---------------------------------------------------------------- whole models


def check_against_transformers(model: Any, path: Path) -> None:
    tokens = [5, 1, 39, 22, 8, 8, 17, 30, 2, 11, 4, 25]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    checkpoint = open_checkpoint(path)
    stages = [StageModel(checkpoint.spec, 0, 1, checkpoint), StageModel(checkpoint.spec, 1, 2, checkpoint)]
    allocate(stages)
    torch.testing.assert_close(logits(stages, tokens, [7, 1, 4]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_a_gguf_of_a_model_computes_what_the_model_does(changes: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model(**changes)
    check_against_transformers(model, write_gguf(tmp_path / "m.gguf", gguf_arrays(model)))


def test_frequency_factors_in_the_file_are_llama3_scaling(tmp_path: Path) -> None:
    """llama.cpp's converter writes Llama 3's scaling as one divisor per frequency."""
    rope = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
    model = tiny_model(rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0} | rope)
    factors = []
    for i in range(0, HIDDEN // 4, 2):
        frequency = 10000.0 ** (-i / (HIDDEN // 4))
        turns = 128 * frequency / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - 1) / 3))
        factors.append(1 / ((1 - smooth) / 8 + smooth))
    arrays = gguf_arrays(model) | {"rope_freqs.weight": np.array(factors, dtype=np.float32)}
    assert len(set(factors)) > 2
    check_against_transformers(model, write_gguf(tmp_path / "m.gguf", arrays))


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 16,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        ),
    ],
    ids=["linear", "yarn"],
)
def test_scaling_fields(fields: dict[str, Any], rope: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model(rope_parameters={"rope_theta": 10000.0} | rope)
    check_against_transformers(model, write_gguf(tmp_path / "m.gguf", gguf_arrays(model), fields=fields))


def test_end_of_sequence_ids(tmp_path: Path) -> None:
    fields = {"tokenizer.ggml.eot_token_id": 9, "tokenizer.ggml.eom_token_id": 2}
    path = write_gguf(tmp_path / "m.gguf", gguf_arrays(tiny_model()), fields=fields)
    assert open_checkpoint(path).generation_config["eos_token_id"] == [2, 9]


def test_smollm2_end_of_sequence_id(smollm2_gguf: Path) -> None:
    assert open_checkpoint(smollm2_gguf).generation_config["eos_token_id"] == [2]


# ---------------------------------------------------------------- refusals


def test_a_type_that_cannot_be_dequantised_is_refused_when_opened(tmp_path: Path) -> None:
    arrays = gguf_arrays(tiny_model()) | {"output_norm.weight": np.ones(HIDDEN, dtype=np.int32)}
    with pytest.raises(ModelError, match="I32 are not supported"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", arrays))


@pytest.mark.parametrize(
    ("factors", "problem"),
    [
        (np.ones((2, 2), dtype=np.float32), r"shape \(2, 2\)"),
        (np.ones(3, dtype=np.float32), "3 rotary frequency factors; 4"),
        (np.array([1, 1, 0, 1], dtype=np.float32), "not a positive number"),
        (np.array([1, 1, np.nan, 1], dtype=np.float32), "not a positive number"),
    ],
)
def test_unusable_frequency_factors(factors: np.ndarray, problem: str, tmp_path: Path) -> None:
    arrays = gguf_arrays(tiny_model()) | {"rope_freqs.weight": factors}
    with pytest.raises(ModelError, match=problem):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", arrays))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"split.count": 3}, "several files"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}, "'longrope' is not supported"),
        ({"llama.attention.value_length": 4}, "different length"),
        ({"llama.rope.dimension_count": 7}, "rotary dimension 7"),
    ],
)
def test_unsupported_settings_are_named(fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=problem):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", gguf_arrays(tiny_model()), fields=fields))


def test_an_unknown_architecture_is_named_with_the_known_ones(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", gguf_arrays(tiny_model()), architecture="mamba")
    with pytest.raises(ModelError, match="'mamba' is not supported; supported: llama"):
        open_checkpoint(path)


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", gguf_arrays(tiny_model()))
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 4])
    with pytest.raises(ModelError, match="became shorter"):
        checkpoint.tensor("lm_head.weight")


@pytest.mark.parametrize("heads", [[KV_HEADS, KV_HEADS], [KV_HEADS, 1]], ids=["same", "different"])
def test_a_list_of_heads_per_layer_counts_when_all_are_the_same(heads: list[int], tmp_path: Path) -> None:
    fields = {"llama.attention.head_count_kv": heads}
    path = write_gguf(tmp_path / "m.gguf", gguf_arrays(tiny_model()), fields=fields)
    if len(set(heads)) == 1:
        assert open_checkpoint(path).spec.num_kv_heads == KV_HEADS
    else:
        with pytest.raises(ModelError, match="same whole number for every layer"):
            open_checkpoint(path)
