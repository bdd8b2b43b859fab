"""Puts a stage together from the engine's options: its model, its types, and how much KV cache it may have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config import EngineConfig
from paceline.errors import ConfigError
from paceline.weights.checkpoint import Checkpoint, open_checkpoint
from paceline.weights.quantize import quantized

if TYPE_CHECKING:
    import torch

    from paceline.models.decoder import StageModel

PROGRESS_INTERVAL = 0.2  # seconds


def resolved_dtype(config: EngineConfig) -> str:
    """`auto` is float32 on a CPU, where 16-bit products are several times slower, and bfloat16 on a GPU."""
    if config.dtype != "auto":
        return config.dtype
    return "float32" if config.device == "cpu" else "bfloat16"


def resolved_cache_dtype(config: EngineConfig) -> str:
    """`auto` is float16 beside float32: half the bytes, and no greedy token of the real model changes."""
    if config.kv_cache_dtype != "auto":
        return config.kv_cache_dtype
    dtype = resolved_dtype(config)
    return "float16" if dtype == "float32" else dtype


def torch_dtype(name: str) -> torch.dtype:
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def open_model(config: EngineConfig, path: Path) -> Checkpoint:
    return quantized(open_checkpoint(path, config.load_format, config.seed), config.quantization)


def packs_weights(config: EngineConfig) -> bool:
    """Whether matrices stay in their blocks: by default wherever the native kernels compute in float32."""
    from paceline import kernels

    if config.activation_dtype == "int8":
        return True
    if config.linear_backend != "auto":
        return config.linear_backend == "packed"
    return config.device == "cpu" and resolved_dtype(config) == "float32" and kernels.path() != "torch"


def now_and_then(report: Callable[[float], None]) -> Callable[[float, str], None]:
    """A progress callback for :func:`load_stage` that reports a few times a second, and the end always."""
    last = -math.inf

    def progress(done: float, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= 1.0 or now - last >= PROGRESS_INTERVAL:
            last = now
            report(done)

    return progress


def load_stage(
    config: EngineConfig,
    checkpoint: Checkpoint,
    layers: tuple[int, int],
    max_model_len: int,
    progress: Callable[[float, str], None],
) -> StageModel:
    """Load the layers [first, last) of a model.

    Raises:
        ConfigError: the device is not there, or the kernels cannot run as PACELINE_KERNELS says.
        ModelError: a tensor is missing or damaged.
    """
    import torch

    from paceline import kernels
    from paceline.models.decoder import StageModel

    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", "cuda", "torch sees no CUDA device", "Use --device cpu")
    if config.device == "cpu":
        path = kernels.path()  # refuses now rather than at the first batch
        if config.activation_dtype == "int8" and path == "torch":
            problem = "needs the native kernels, and PACELINE_KERNELS is torch"
            raise ConfigError("activation_dtype", "int8", problem, "Unset PACELINE_KERNELS.")
    return StageModel(
        checkpoint.spec,
        layers[0],
        layers[1],
        checkpoint,
        dtype=torch_dtype(resolved_dtype(config)),
        device=config.device,
        max_position=max_model_len,
        packed=packs_weights(config),
        int8=config.activation_dtype == "int8",
        profile=config.profile,
        progress=progress,
    )


def layer_ranges(split: list[int]) -> list[tuple[int, int]]:
    """From layers per stage to [first, last) of each."""
    ranges = []
    first = 0
    for count in split:
        ranges.append((first, first + count))
        first += count
    return ranges


def cache_blocks(
    config: EngineConfig, bytes_per_block: list[int], available_memory: list[int], max_model_len: int
) -> int:
    """How many KV blocks every stage can have: the smallest stage decides.

    Stages of one host share its memory, so each gets the part of it that its blocks take of one block over all stages.
    Unless a number is asked for, no more blocks are made than all requests at once could fill.

    Args:
        bytes_per_block: of each stage.
        available_memory: free bytes that each stage saw after loading its weights.

    Raises:
        ConfigError: not even one block fits, or more is asked for than there is.
    """
    free, all_stages = min(available_memory), sum(bytes_per_block)
    if config.num_blocks is not None:
        option, given, blocks = "num_blocks", str(config.num_blocks), config.num_blocks
    elif config.kv_cache_memory_bytes is not None:
        option, given = "kv_cache_memory_bytes", str(config.kv_cache_memory_bytes)
        blocks = config.kv_cache_memory_bytes // max(bytes_per_block)
    else:
        option, given = "memory_utilization", str(config.memory_utilization)
        blocks = int(free * config.memory_utilization) // all_stages
    if blocks < 1:
        raise ConfigError(
            option,
            given,
            f"leaves no room for a single block of {max(bytes_per_block)} bytes per stage",
            "Give more memory, or a smaller --block-size.",
        )
    if config.num_blocks is None:
        blocks = min(blocks, config.max_num_seqs * -(-max_model_len // config.block_size))
    if blocks * all_stages > free:
        raise ConfigError(
            option,
            given,
            f"asks for {blocks * all_stages / 2**30:.1f} GiB of KV cache over all stages, and {free / 2**30:.1f} GiB "
            "are free",
            f"At most {free // all_stages} blocks of {config.block_size} tokens fit.",
        )
    return blocks
