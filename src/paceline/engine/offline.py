"""A whole engine behind blocking calls: what offline generation and offline benchmarks run on."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from paceline.config import EngineConfig
from paceline.engine.choice import Choice, Delta
from paceline.engine.client import AsyncEngine
from paceline.engine.loop_thread import LoopThread
from paceline.engine.model_files import FoundModel, find_model
from paceline.errors import RequestError
from paceline.messages import CoreProgress, CoreReady, CoreStats
from paceline.sampling_params import SamplingParams, validate, validate_request

SETTLE_SECONDS = 2.0  # the longest wait for the figures that follow the last token


class Job(NamedTuple):
    """One prompt and how to continue it."""

    prompt_token_ids: list[int]
    sampling: SamplingParams  # with a seed


class Outcome(NamedTuple):
    """How a job ended: its answer's state, and the engine's reason if it failed."""

    choice: Choice
    error: str


class OfflineEngine:
    """Starts an engine, runs jobs through it, and ends it; usable from any thread.

    Args:
        config: everything about model and pipeline.
        on_progress: told about loading, from another thread.

    Raises:
        PacelineError: it cannot start; the reason, and nothing left running.
    """

    def __init__(self, config: EngineConfig, on_progress: Callable[[CoreProgress], None] | None = None) -> None:
        self.config = config
        self.model: FoundModel = find_model(config)
        self._engine = AsyncEngine(config, self.model.files.path, self.model.eos_token_ids)
        self._numbers = itertools.count()
        self._thread = LoopThread("paceline-engine")
        # Also when the object is forgotten, and at the interpreter's end.
        self._end = weakref.finalize(self, _end, self._thread, self._engine)
        try:
            self._thread.run(self._engine.start(on_progress))
        except BaseException:
            self._end()
            raise

    @property
    def info(self) -> CoreReady:
        """Sizes of the running engine."""
        return self._engine.info

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        """End the engine and its processes. May be called twice."""
        self._end()

    def check(self, job: Job) -> Job:
        """The job, if it can be served as it is.

        Raises:
            RequestError: names the parameter at fault.
        """
        vocab_size = self.model.vocab_size
        validate_request(job.prompt_token_ids, 0, "", None, vocab_size=vocab_size)
        sampling = validate(
            job.sampling,
            vocab_size=vocab_size,
            max_model_len=self.info.max_model_len,
            num_prompt_tokens=len(job.prompt_token_ids),
        )
        return job._replace(sampling=sampling)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        concurrency: int | None = None,
        on_start: Callable[[int], None] = lambda index: None,
        on_delta: Callable[[int, Delta], None] = lambda index, delta: None,
    ) -> list[Outcome]:
        """Run checked jobs side by side; outcomes in the order of `jobs`.

        Args:
            concurrency: at most so many at once; None: as many as the engine's queue takes.
            on_start: told of each job's index when it is sent to the engine.
            on_delta: told of each job's index and new tokens. Both are called on the engine's thread.

        Raises:
            EngineDeadError: the engine is gone; so are all outcomes.
        """
        most = self.config.max_num_queued_reqs
        limit = asyncio.Semaphore(most if concurrency is None else min(most, concurrency))

        async def one(index: int, job: Job) -> Outcome:
            choice = Choice(
                index, f"offline-{next(self._numbers)}", job.prompt_token_ids, job.sampling, self.model.tokenizer
            )
            async with limit:
                on_start(index)
                try:
                    async with aclosing(self._deltas(choice)) as deltas:
                        async for delta in deltas:
                            on_delta(index, delta)
                except RequestError as error:
                    return Outcome(choice, str(error))
            return Outcome(choice, "")

        async def everything() -> list[Outcome]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(index, job)) for index, job in enumerate(jobs)]
            return [task.result() for task in tasks]

        try:
            return self._thread.run(everything())
        except BaseExceptionGroup as group:  # one dead engine makes all tasks fail alike
            raise group.exceptions[0] from None

    async def _deltas(self, choice: Choice) -> AsyncGenerator[Delta, None]:
        outputs = self._engine.generate(choice.request_id, choice.prompt_token_ids, choice.sampling)
        async with aclosing(outputs):
            async for output in outputs:
                delta = choice.push(output)
                if choice.finish_reason is not None and not output.status:  # a stop string: the engine cannot know
                    self._engine.finish(choice.request_id, choice.num_output_tokens)
                yield delta
                if choice.finish_reason is not None:
                    return

    def stats(self) -> CoreStats:
        """The core's figures, up to and including the last token delivered when nothing runs."""
        return self._thread.run(self._settled_stats())

    async def _settled_stats(self) -> CoreStats:
        """The core sends its figures right after the outputs that ended its last request."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS
        while self._engine.num_unfinished == 0 and _is_stale(self._engine.stats) and loop.time() < deadline:
            await asyncio.sleep(0.005)
        return self._engine.stats or _NO_STATS


def _is_stale(stats: CoreStats | None) -> bool:
    return stats is not None and bool(stats.num_running or stats.num_waiting)


_NO_STATS = CoreStats(0, 0, 0, 0, 0, 0, 0, 0, 0, [], [], 0.0)


def _end(thread: LoopThread, engine: AsyncEngine) -> None:
    thread.run(engine.close())
    thread.close()
