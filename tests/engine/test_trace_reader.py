"""The record of whole engines, followed from the front end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from paceline.engine.trace_reader import TraceReader
from paceline.errors import EngineDeadError
from paceline.messages import TraceChunk
from paceline.trace import History
from paceline.trace.events import Held, Page
from paceline.trace.explain import explain_batch, explain_request
from paceline.trace.file import read_lines
from paceline.trace.log import PagedLog
from tests.engine.engines import engine, outputs, pids_of, sampling, tokens
from tests.pipeline.tiny import write_model
from tests.processes import all_end
from tests.trace.test_idle import check


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("options", [{"pipeline_parallel_size": 3, "trace_text": True}, {"pipeline": "inline"}])
async def test_what_real_stages_did(folder: Path, options: dict[str, object]) -> None:
    async with engine(folder, **options) as running:
        assert list((await running.trace.catch_up()).batches) == []
        answer = tokens(await outputs(running, "asked", list(range(1, 30)), sampling(max_tokens=9)))
        history = await running.trace.catch_up()
        stages = running.info.num_stages
        assert (history.facts.stages, sum(history.facts.layers)) == (stages, 4)
        request = history.request("asked")
        assert request is not None
        told = explain_request(history, request)
        assert (told.status, told.output_tokens, told.prompt_tokens) == ("FINISHED_LENGTH", len(answer), 29)
        assert told.total_parts is not None
        assert sum(told.total_parts.values()) == pytest.approx(told.total)
        assert min(told.total_parts["prefill_compute"], told.total_parts["decode_compute"]) > 0
        first = explain_batch(history, 0)
        assert first is not None
        assert (first.slices, len(first.stages)) == ({"asked": (0, 29)}, stages)
        for batch in history.batches.values():
            for passage in batch.passages:
                assert passage.input_received <= passage.started <= passage.finished <= passage.sent
        assert all(abs(offset) <= uncertainty for offset, uncertainty in history.offsets), "one machine, one clock"
        assert (request.prompt_token_ids is not None) == ("trace_text" in options)
        check(history, tolerance=1e-3)


async def test_a_trace_file_outlives_whatever_dies(folder: Path, tmp_path: Path) -> None:
    for victim in (0, 1):  # the core, stage 0
        file = tmp_path / f"trace-{victim}.jsonl"
        async with engine(folder, pipeline_parallel_size=2, trace_file=str(file)) as running:
            pids = pids_of(running)
            stream = running.generate("cut", [1, 2, 3], sampling(max_tokens=100))
            await anext(stream)
            os.kill(pids[victim], signal.SIGKILL)
            await asyncio.wait_for(running.died.wait(), 20)
            with pytest.raises(EngineDeadError):
                await running.trace.catch_up()
            assert all_end(pids)
            await stream.aclose()
        history = History()
        history.feed(read_lines(file))
        request = history.request("cut")
        assert request is not None
        assert request.num_output_tokens >= 1
        assert request.status == ("RUNNING" if victim == 0 else "FINISHED_ERROR")


class Forgetful:
    """A record that keeps less than a reader missed."""

    def __init__(self) -> None:
        facts = History().facts
        self.log = PagedLog(2000, lambda: Page(0.0, 1, 0.0, facts, {}, []), 500)

    async def read_trace(self, begin: int) -> TraceChunk:
        chunk = self.log.read(begin, 300)
        return TraceChunk(chunk.begin, chunk.end, chunk.total, 1.0, chunk.lines)


async def test_a_reader_that_missed_too_much_begins_anew() -> None:
    source = Forgetful()
    reader = TraceReader(source, 10**6)
    source.log.append(Held(0.0, "pace"))
    before = await reader.catch_up()
    assert await reader.catch_up() is before
    for i in range(200):
        source.log.append(Held(float(i), "pace"))
    after = await reader.catch_up()
    assert after is not before
    assert after.now == 199.0
