"""How much KV cache there is, and what a stage is made from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from paceline import kernels
from paceline.errors import ConfigError
from paceline.pipeline import build
from tests.pipeline.tiny import engine_config, write_model

GIB = 2**30


@contextmanager
def chosen_kernels(monkeypatch: pytest.MonkeyPatch, path: str) -> Iterator[None]:
    """Kernels are chosen anew, by PACELINE_KERNELS, and once more afterwards."""
    monkeypatch.setenv("PACELINE_KERNELS", path)
    kernels._native.cache_clear()
    try:
        yield
    finally:
        kernels._native.cache_clear()


def blocks(sizes: list[int], free: list[int], max_len: int = 1 << 30, **options: object) -> int:
    return build.cache_blocks(engine_config(**({"num_blocks": None} | options)), sizes, free, max_len)


def test_stages_share_the_free_memory_of_their_host() -> None:
    assert blocks([1000, 3000], [8_000_000, 10_000_000], memory_utilization=0.5) == 1000


def test_a_given_number_of_bytes_is_per_stage_and_the_largest_block_decides() -> None:
    assert blocks([1000, 3000], [GIB, GIB], kv_cache_memory_bytes=30_000) == 10


def test_no_more_blocks_than_all_requests_can_fill() -> None:
    assert blocks([100, 100], [GIB, GIB], max_len=9, max_num_seqs=5) == 5 * 3


def test_a_given_number_of_blocks_is_kept_as_given() -> None:
    assert blocks([100], [GIB], max_len=9, max_num_seqs=1, num_blocks=777) == 777


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_cache_memory_bytes": 2999}, "--kv-cache-memory-bytes 2999: leaves no room"),
        ({"memory_utilization": 0.01}, "--memory-utilization 0.01: leaves no room"),
        ({"num_blocks": 26}, "--num-blocks 26: asks for"),
        ({"kv_cache_memory_bytes": 90_000}, "--kv-cache-memory-bytes 90000: asks for"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        blocks([1000, 3000], [100_000, 100_500], **options)
    assert str(raised.value).startswith(said)


def test_as_many_blocks_as_fit_are_not_refused() -> None:
    assert blocks([1000, 3000], [100_000, 100_500], num_blocks=25) == 25


def test_layer_ranges_follow_each_other() -> None:
    assert build.layer_ranges([3, 1, 2]) == [(0, 3), (3, 4), (4, 6)]


def test_a_device_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = engine_config(device="cuda")
    checkpoint = build.open_model(config, write_model(tmp_path))
    with pytest.raises(ConfigError, match="--device cuda"):
        build.load_stage(config, checkpoint, (0, 1), 16, lambda done, what: None)


def test_kernels_that_cannot_run_are_refused_before_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = engine_config()
    checkpoint = build.open_model(config, write_model(tmp_path))
    with (
        chosen_kernels(monkeypatch, "sse9"),
        pytest.raises(ConfigError, match=r"^PACELINE_KERNELS=sse9: cannot be used"),
    ):
        build.load_stage(config, checkpoint, (0, 1), 16, lambda done, what: None)


def test_8_bit_activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = engine_config(activation_dtype="int8")
    checkpoint = build.open_model(config, write_model(tmp_path))
    model = build.load_stage(config, checkpoint, (0, 4), 16, lambda done, what: None)
    assert isinstance(model.head, kernels.PackedLinear)
    assert [matrix.format_name for matrix in model.head.matrices] == ["INT8"]
    with (
        chosen_kernels(monkeypatch, "torch"),
        pytest.raises(ConfigError, match=r"^--activation-dtype int8: needs the native kernels"),
    ):
        build.load_stage(config, checkpoint, (0, 4), 16, lambda done, what: None)


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"dtype": "bfloat16"}, {"linear_backend": "torch"}])
def test_8_bit_activations_need_packed_weights(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^--activation-dtype int8: needs packed weights"):
        engine_config(activation_dtype="int8", **options)


def test_types_are_resolved_for_the_device() -> None:
    assert build.resolved_dtype(engine_config()) == "float32"
    assert build.resolved_dtype(engine_config(device="cuda")) == "bfloat16"
    assert build.resolved_cache_dtype(engine_config()) == "float16"
    assert build.resolved_cache_dtype(engine_config(kv_cache_dtype="float32")) == "float32"
    assert build.resolved_cache_dtype(engine_config(dtype="bfloat16")) == "bfloat16"
    assert build.resolved_cache_dtype(engine_config(dtype="bfloat16", kv_cache_dtype="float16")) == "float16"


def test_progress_is_told_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 10.1, 10.15, 10.3, 10.31])
    monkeypatch.setattr(build.time, "monotonic", lambda: next(now))
    told: list[float] = []
    progress = build.now_and_then(told.append)
    for done in (0.1, 0.2, 0.3, 0.4, 1.0):
        progress(done, "x")
    assert told == [0.1, 0.4, 1.0]
