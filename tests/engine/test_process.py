"""The engine as a front end meets it: real core and stage processes, tiny random model."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from paceline.engine.client import AsyncEngine, StartError, kv_cache_size
from paceline.errors import EngineDeadError, RequestError
from paceline.messages import CoreProgress, CoreReady, RequestOutput
from tests.engine.engines import engine, outputs, pids_of, sampling, tokens
from tests.pipeline.tiny import MAX_LEN, NUM_BLOCKS, engine_config, write_model
from tests.processes import all_end, children_of

PROMPTS = [list(range(1, 40)), [5] * 3, list(range(200, 140, -1)), [9]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


async def all_tokens(running: AsyncEngine) -> list[list[int]]:
    params = [sampling(), sampling(temperature=1.0), sampling(temperature=0.7, top_k=9), sampling()]
    received = await asyncio.gather(*(outputs(running, f"r{i}", prompt, params[i]) for i, prompt in enumerate(PROMPTS)))
    assert all(answer[-1].status == "FINISHED_LENGTH" for answer in received)
    return [tokens(answer) for answer in received]


async def test_every_number_of_stages_gives_the_same_tokens(folder: Path) -> None:
    async with engine(folder, pipeline="inline") as running:
        assert len(pids_of(running)) == 1
        expected = await all_tokens(running)
    assert [len(answer) for answer in expected] == [12] * 4
    for stages, pipeline, loop_back in (
        (2, "inline", False),
        (2, "inline", True),
        (1, "processes", True),
        (2, "processes", False),
        (3, "processes", True),
    ):
        options = {"pipeline": pipeline, "pipeline_parallel_size": stages, "loop_back": loop_back}
        async with engine(folder, **options) as running:
            assert running.info.num_stages == stages
            assert await all_tokens(running) == expected


async def test_the_core_says_what_it_made_and_counts(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with engine(folder, pipeline_parallel_size=2) as running:
        assert running.info == CoreReady(NUM_BLOCKS, 4, MAX_LEN, 2, [2, 2], "float32", 64 * 4)
        assert "KV cache: 256 tokens; at most 2 requests of the maximum length at once" in caplog.messages
        await all_tokens(running)
        await asyncio.wait_for(stats_where_idle(running), 20)
        stats = running.stats
        assert stats is not None
        assert (stats.num_waiting, stats.num_blocks_used, stats.num_batches_in_flight) == (0, 0, 0)
        assert stats.num_batches >= 12
        assert len(stats.stage_busy_seconds) == 2
        assert all(0 < busy < stats.wall_seconds for busy in stats.stage_busy_seconds)
        assert all(cpu > 0 for cpu in stats.stage_cpu_seconds)


async def stats_where_idle(running: AsyncEngine) -> None:
    while running.stats is None or running.stats.num_running or running.stats.num_batches_in_flight:
        await asyncio.sleep(0)


async def test_one_engine_many_situations(folder: Path) -> None:
    """Aborts, stop strings, refusals and duplicates, one after another on one engine: each leaves it in order."""
    async with engine(folder, pipeline_parallel_size=2, max_num_seqs=2, max_num_queued_reqs=1) as running:
        await closing_a_stream_aborts_it(running)
        await a_stop_string_ends_a_stream(running)
        await too_many_requests_are_refused(running)
        await a_prompt_that_cannot_fit_is_refused(running)
        await an_id_in_use_is_an_error(running)
        assert len(tokens(await outputs(running, "last", [1, 2, 3]))) == 12
        await a_batch_that_outlives_its_request_is_counted_when_it_is_back(running)
        await asyncio.wait_for(stats_where_idle(running), 20)
        assert running.stats is not None
        assert (running.stats.num_blocks_used, running.num_unfinished) == (0, 0)


@pytest.mark.parametrize("stages", [1, 2])
async def test_an_aborted_request_leaves_no_token_to_the_next_one(folder: Path, stages: int) -> None:
    """One seat and blocks for one request: each takes row and blocks of one whose next token is still on its way."""
    prompts = [[5, 6, 7], [5, 6, 8, 9], [100], [5, 6, 7, 8, 1, 2, 3]]
    options = {"max_num_seqs": 1, "num_blocks": 12, "enable_prefix_caching": False}
    async with engine(folder, pipeline="inline", **options) as running:
        expected = [tokens(await outputs(running, "alone", prompt)) for prompt in prompts]
    async with engine(folder, pipeline_parallel_size=stages, loop_back=True, **options) as running:
        for turn in range(4 * len(prompts)):
            async with aclosing(running.generate(f"abort{turn}", [turn], sampling(max_tokens=30))) as stream:
                for _ in range(1 + turn % 3):
                    await anext(stream)
            which = turn % len(prompts)
            assert tokens(await outputs(running, f"next{turn}", prompts[which])) == expected[which]


async def closing_a_stream_aborts_it(running: AsyncEngine) -> None:
    async with aclosing(running.generate("closed", [1, 2], sampling(max_tokens=100))) as stream:
        assert (await anext(stream)).status == ""
    assert running.num_unfinished == 0


async def a_batch_that_outlives_its_request_is_counted_when_it_is_back(running: AsyncEngine) -> None:
    """The last stage stands still before the request comes, so its batch is surely in flight when it is aborted."""
    last_stage = pids_of(running)[-1]

    async def until_dispatched() -> None:
        while not (await running.trace.catch_up()).in_flight():
            await asyncio.sleep(0)

    async def until_in_flight(expected: bool) -> None:
        while (
            running.stats is None or running.stats.num_running or bool(running.stats.num_batches_in_flight) != expected
        ):
            await asyncio.sleep(0)

    os.kill(last_stage, signal.SIGSTOP)
    try:
        async with aclosing(running.generate("outlived", [1, 2], sampling(max_tokens=100))) as stream:
            first = asyncio.ensure_future(anext(stream))
            await asyncio.wait_for(until_dispatched(), 20)
            first.cancel()
            await asyncio.wait([first])
        await asyncio.wait_for(until_in_flight(True), 20)
    finally:
        os.kill(last_stage, signal.SIGCONT)
    await asyncio.wait_for(until_in_flight(False), 20)


async def a_stop_string_ends_a_stream(running: AsyncEngine) -> None:
    received = []
    async for output in running.generate("stopped", [1, 2], sampling(max_tokens=100)):
        received.append(output)
        if len(tokens(received)) == 3:
            running.finish("stopped", 3)
    assert received[-1].status == "FINISHED_STOPPED"


async def too_many_requests_are_refused(running: AsyncEngine) -> None:
    first = running.generate("first", [1], sampling(max_tokens=100))
    second = asyncio.ensure_future(anext(first))
    await asyncio.sleep(0)  # it is sent, and no answer can be here yet
    with pytest.raises(RequestError) as refused:
        await anext(running.generate("refused", [1], sampling()))
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    await second
    assert len(tokens(await outputs(running, "fits again", [1]))) == 12
    await first.aclose()


async def a_prompt_that_cannot_fit_is_refused(running: AsyncEngine) -> None:
    (refusal,) = await outputs(running, "too long", [1] * MAX_LEN)
    assert refusal.status == "FINISHED_REFUSED"
    assert refusal.error


async def an_id_in_use_is_an_error(running: AsyncEngine) -> None:
    async with aclosing(running.generate("twice", [1], sampling(max_tokens=100))) as stream:
        await anext(stream)
        with pytest.raises(ValueError, match="twice"):
            await anext(running.generate("twice", [1], sampling()))


async def dies(running: AsyncEngine, victim: int, said: str) -> None:
    """Kill one process while a request runs: its stream ends with the reason, and everything else ends too."""
    pids = pids_of(running)
    stream = running.generate("r", [1, 2, 3], sampling(max_tokens=100))
    await anext(stream)
    os.kill(victim, signal.SIGSTOP)  # whatever the timing, the request cannot end first
    os.kill(victim, signal.SIGKILL)

    assert said in await asyncio.wait_for(how_it_ends(stream), 20)
    await asyncio.wait_for(running.died.wait(), 20)
    assert all_end(pids)
    with pytest.raises(EngineDeadError, match=said):
        await outputs(running, "later", [1])


async def how_it_ends(stream: AsyncGenerator[RequestOutput, None]) -> str:
    """A core that lives tells of a dead stage as the request's end; a core that died cannot."""
    try:
        async for output in stream:
            last = output
    except EngineDeadError as error:
        return str(error)
    assert last.status == "FINISHED_ERROR"
    return last.error


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_killed_stage_fails_every_stream(folder: Path, stage: int) -> None:
    async with engine(folder, pipeline_parallel_size=2) as running:
        await dies(running, pids_of(running)[1 + stage], f"stage {stage} was killed by signal 9")
        assert running._core._child is not None
        assert running._core._child.wait(20) == 1


async def test_a_killed_core_fails_every_stream_and_ends_the_stages(folder: Path) -> None:
    async with engine(folder, pipeline_parallel_size=2) as running:
        await dies(running, pids_of(running)[0], "the engine core was killed by signal 9")


async def test_a_stage_that_dies_while_nothing_runs_is_noticed(folder: Path) -> None:
    async with engine(folder, pipeline_parallel_size=2) as running:
        os.kill(pids_of(running)[2], signal.SIGKILL)
        await asyncio.wait_for(running.died.wait(), 20)
        assert running.dead == "stage 1 was killed by signal 9 (SIGKILL)"


async def test_closing_ends_running_streams(folder: Path) -> None:
    async with engine(folder, pipeline="inline") as running:
        stream = running.generate("r", [1, 2, 3], sampling(max_tokens=100))
        await anext(stream)
        await running.close()
        with pytest.raises(EngineDeadError, match="closed"):
            async for _ in stream:
                pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pipeline_parallel_size": 5}, "--pipeline-parallel-size 5"),
        ({"layer_split": "1,2", "pipeline_parallel_size": 2}, "--layer-split 1,2"),
        ({"num_blocks": None, "kv_cache_memory_bytes": 10, "pipeline_parallel_size": 2}, "--kv-cache-memory-bytes 10"),
        ({"num_blocks": None, "kv_cache_memory_bytes": 10, "pipeline": "inline"}, "--kv-cache-memory-bytes 10"),
        ({"load_format": "safetensors"}, "safetensors"),
    ],
)
async def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(
    folder: Path, options: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(children_of(os.getpid()))
    with pytest.raises(StartError, match=said):
        await AsyncEngine(engine_config(**options), folder).start()
    assert all_end(set(children_of(os.getpid())) - before, 0)
    assert list(tmp_path.iterdir()) == []


async def test_giving_up_while_the_stages_start_ends_them(folder: Path) -> None:
    begun = asyncio.Event()

    def on_progress(progress: CoreProgress) -> None:
        if progress.stage == 1:
            begun.set()

    starting = AsyncEngine(engine_config(pipeline_parallel_size=2), folder)
    task = asyncio.create_task(starting.start(on_progress))
    await asyncio.wait_for(begun.wait(), 60)
    pids = pids_of(starting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all_end(pids)


FRONT_END = """
import asyncio, sys
from pathlib import Path
from tests.engine.engines import outputs, pids_of, sampling
from tests.pipeline.tiny import engine_config
from paceline.engine.client import AsyncEngine

async def main():
    running = AsyncEngine(engine_config(pipeline_parallel_size=2), Path(sys.argv[1]))
    await running.start()
    print(*pids_of(running), flush=True)
    while True:
        await outputs(running, "r", [1, 2, 3], sampling(max_tokens=100))

asyncio.run(main())
"""


def test_a_killed_front_end_leaves_no_process_and_no_file(folder: Path, tmp_path: Path) -> None:
    front = subprocess.Popen(
        [sys.executable, "-c", FRONT_END, str(folder)],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        text=True,
    )
    assert front.stdout is not None
    with front:
        pids = [int(pid) for pid in front.stdout.readline().split()]
        assert len(pids) == 3
        front.kill()
        assert all_end(pids)
    assert list(tmp_path.iterdir()) == []


async def test_two_engines_rest_side_by_side_and_listen_to_nobody(folder: Path) -> None:
    """CPU time by the processes' own clocks over two idle seconds: under 1 % of a core for all, plus two clock ticks."""
    async with engine(folder, pipeline_parallel_size=2) as one, engine(folder, pipeline="inline") as two:
        assert await all_tokens(one) == await all_tokens(two)
        processes = [psutil.Process(pid) for pid in (*pids_of(one), *pids_of(two))]
        for process in processes:
            assert process.net_connections("inet") == []
            assert all(c.family == socket.AF_UNIX for c in process.net_connections("all"))
        before = sum(sum(process.cpu_times()[:2]) for process in processes)
        await asyncio.sleep(2.0)
        used = sum(sum(process.cpu_times()[:2]) for process in processes) - before
        assert used <= 0.01 * 2.0 + 2 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("blocks", "block_size", "max_len", "at_once"), [(3, 16, 20, 1), (64, 4, 128, 2), (8, 16, 128, 1), (65, 4, 128, 2)]
)
def test_requests_at_once_are_counted_in_whole_blocks(blocks: int, block_size: int, max_len: int, at_once: int) -> None:
    ready = CoreReady(blocks, block_size, max_len, 1, [1], "float32")
    assert kv_cache_size(ready) == (blocks * block_size, at_once)


async def test_the_model_length_is_capped_to_the_cache_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with engine(folder, pipeline="inline", num_blocks=5) as running:
        assert running.info.max_model_len == 20
        assert "the model length is capped to 20 tokens: the KV cache holds no more" in caplog.messages
        (answer,) = [await outputs(running, "r", [1] * 15, sampling(max_tokens=None))]
        assert (len(tokens(answer)), answer[-1].status) == (5, "FINISHED_LENGTH")


def test_the_core_imports_no_torch() -> None:
    code = "import paceline.engine.process, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
