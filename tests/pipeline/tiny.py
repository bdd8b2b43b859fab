"""A tiny random model without weight files, and plans made by hand."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.config import EngineConfig
from paceline.messages import NewRequest, Plan, Slice
from paceline.pipeline.build import load_stage, open_model, resolved_cache_dtype, torch_dtype
from paceline.pipeline.inline import InlinePipeline
from paceline.pipeline.stage import StageRunner
from paceline.sampling_params import SamplingParams

LAYERS = 4
BLOCK_SIZE = 4
NUM_BLOCKS = 64
MAX_LEN = 128


def write_model(folder: Path) -> Path:
    """A folder with a config.json; the weights are random (`load_format="dummy"`)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_LEN,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def engine_config(**options: object) -> EngineConfig:
    defaults: dict[str, object] = {
        "load_format": "dummy",
        "block_size": BLOCK_SIZE,
        "num_blocks": NUM_BLOCKS,
        "threads_per_stage": 1,
    }
    return EngineConfig(**(defaults | options))  # type: ignore[arg-type]


def stage_runner(folder: Path, first: int = 0, last: int = LAYERS) -> StageRunner:
    """A stage of this process, with its cache."""
    config = engine_config()
    model = load_stage(config, open_model(config, folder), (first, last), MAX_LEN, lambda done, what: None)
    model.allocate_cache(NUM_BLOCKS, BLOCK_SIZE, torch_dtype(resolved_cache_dtype(config)))
    return StageRunner(model, BLOCK_SIZE)


def inline_pipeline(folder: Path, ranges: list[tuple[int, int]], *, loop_back: bool = False) -> InlinePipeline:
    def no_mail(timeout: float | None) -> None:
        raise AssertionError("nothing was submitted")

    return InlinePipeline([stage_runner(folder, *layers) for layers in ranges], no_mail, loop_back=loop_back)


class PlanMaker:
    """Plans for requests that each own a contiguous run of blocks, numbered from 0."""

    def __init__(self, blocks_each: int = 8) -> None:
        self._blocks_each = blocks_each
        self._batch = 0
        self._told: set[int] = set()
        self._filled: dict[int, int] = {}

    def plan(self, parts: list[tuple[int, list[int], bool]], released: tuple[int, ...] = ()) -> Plan:
        """A plan of (request, its next tokens or one PLACEHOLDER, whether one is sampled at their end)."""
        slices, new = [], []
        for request, tokens, samples in parts:
            if request not in self._told:
                self._told.add(request)
                sampling = SamplingParams(temperature=0.0, logprobs=3, seed=request)
                new.append(NewRequest(request, 0, len(tokens), sampling, (0,)))
            start = self._filled.get(request, 0)
            have, need = -(-start // BLOCK_SIZE), -(-(start + len(tokens)) // BLOCK_SIZE)
            assert need <= self._blocks_each
            blocks = [request * self._blocks_each + i for i in range(have, need)]
            slices.append(Slice(request, 0, start, tokens, samples, have, blocks))
            self._filled[request] = start + len(tokens)
        self._batch += 1
        return Plan(0, self._batch - 1, slices, new, list(released))
