"""Real stage processes over the tiny model, for tests: started, loaded, fed with plans, and gone afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from paceline.messages import BatchResult, CoreProgress, Plan
from paceline.pipeline import wire
from paceline.pipeline.processes import ProcessPipeline
from tests.pipeline.tiny import LAYERS, MAX_LEN, NUM_BLOCKS, engine_config
from tests.processes import all_end

RANGES = {
    1: [(0, LAYERS)],
    2: [(0, 2), (2, LAYERS)],
    3: [(0, 1), (1, 3), (3, LAYERS)],
    4: [(0, 1), (1, 2), (2, 3), (3, LAYERS)],
}


@contextmanager
def stages(folder: Path, number: int, **options: Any) -> Iterator[ProcessPipeline]:
    """A pipeline that is not loaded yet; whatever happens, none of its processes and files may be left."""
    context: zmq.Context[Any] = zmq.Context()
    mail = wire.make_socket(context, zmq.PAIR)
    mail.bind("inproc://mail")
    pipeline = ProcessPipeline(engine_config(**options), folder, RANGES[number], MAX_LEN, mail, context)
    pids = [child.pid for child in pipeline._children]
    sockets = Path(pipeline._folder.path)
    try:
        assert len(pids) == number
        yield pipeline
    finally:
        pipeline.close()
        pipeline.close()
        context.destroy(linger=0)
        assert all_end(pids, 0)
        assert not sockets.exists()


def load(pipeline: ProcessPipeline) -> list[CoreProgress]:
    told: list[CoreProgress] = []
    num_blocks, reports = pipeline.load(told.append)
    assert num_blocks == NUM_BLOCKS
    assert all(report.weight_bytes > 0 and report.cache_bytes_per_block > 0 for report in reports)
    return told


def results(pipeline: Any, plans: list[Plan]) -> list[BatchResult]:
    """Keeps as many batches in flight as the pipeline is deep."""
    done: list[BatchResult] = []
    for number, plan in enumerate(plans):
        pipeline.submit(plan)
        while number + 1 - len(done) >= pipeline.depth:
            done.append(next_result(pipeline))
    while len(done) < len(plans):
        done.append(next_result(pipeline))
    return done


def next_result(pipeline: Any) -> BatchResult:
    while (result := pipeline.collect()) is None:
        pipeline.wait(60)
    return result


def check_times(done: list[BatchResult], number: int) -> None:
    """All processes of one host share the monotonic clock."""
    for result in done:
        assert [times.stage for times in result.times] == list(range(number))
        for times in result.times:
            assert times.plan_received <= times.started
            assert times.input_received <= times.started <= times.finished
            assert times.cpu_seconds >= 0
        for before, after in zip(result.times, result.times[1:], strict=False):
            assert before.finished <= after.input_received
    for earlier, later in itertools.pairwise(done):
        for a, b in zip(earlier.times, later.times, strict=True):
            assert a.finished <= b.started, "a stage computes one batch after another"
