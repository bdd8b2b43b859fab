"""Whole engines over a tiny random model, as a front end uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from paceline.engine.client import AsyncEngine
from paceline.messages import RequestOutput
from paceline.sampling_params import SamplingParams
from tests.pipeline.tiny import engine_config
from tests.processes import all_end, children_of


@asynccontextmanager
async def engine(folder: Path, **options: Any) -> AsyncIterator[AsyncEngine]:
    """A started engine; when the block ends, none of its processes may be left."""
    running = AsyncEngine(engine_config(**options), folder, eos_token_ids=(0,))
    await running.start()
    pids = pids_of(running)
    try:
        yield running
    finally:
        await running.close()
        await running.close()
        assert all_end(pids, 0)


def pids_of(running: AsyncEngine) -> list[int]:
    """The core, then the stages in order."""
    core = running._core.pid
    return [core, *children_of(core)]


def sampling(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "seed": 7} | fields))


async def outputs(
    running: AsyncEngine, request_id: str, prompt: list[int], params: SamplingParams | None = None
) -> list[RequestOutput]:
    return [output async for output in running.generate(request_id, prompt, params or sampling())]


def tokens(received: list[RequestOutput]) -> list[int]:
    return [token for output in received for token in output.token_ids]
