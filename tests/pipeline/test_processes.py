"""Stages as processes: the same numbers as inline, and every death is noticed, named and cleaned up after."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest
import zmq

from paceline.errors import ConfigError, PipelineError
from paceline.host import share_cores, usable_cores
from paceline.messages import Plan
from paceline.pipeline import wire
from tests.pipeline.running import RANGES, check_times, load, next_result, results, stages
from tests.pipeline.tiny import PlanMaker, inline_pipeline, write_model
from tests.processes import all_end, children_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def some_plans() -> list[Plan]:
    maker = PlanMaker()
    return [
        maker.plan([(0, [1, 2, 3, 4, 5], True), (1, list(range(20)), False)]),
        maker.plan([(1, [7], True), (2, [8, 8, 8], True)]),
        maker.plan([(0, [6], True), (3, list(range(30)), False)]),
        maker.plan([(3, [1], False)]),  # nothing is sampled at all
        maker.plan([(2, [1], True), (3, [2], True), (1, [3], True)], released=(0,)),
    ]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_processes_compute_bitwise_what_inline_does(folder: Path, number: int) -> None:
    expected = [result.tokens for result in results(inline_pipeline(folder, RANGES[1]), some_plans())]
    with stages(folder, number, loop_back=False) as pipeline:
        assert pipeline.depth == number
        told = load(pipeline)
        assert {progress.stage for progress in told} == set(range(number))
        assert not Path(pipeline._folder.path).exists(), "sockets are reachable only while stages connect"
        done = results(pipeline, some_plans())
        assert [result.batch for result in done] == [0, 1, 2, 3, 4]
        assert [result.tokens for result in done] == expected
        check_times(done, number)


def test_stages_work_on_neighbouring_batches_at_the_same_time(folder: Path) -> None:
    """Stage 0 begins a batch while stage 1 still has the one before; one after another, this could never be seen."""
    maker = PlanMaker()
    plans = [maker.plan([(request, [request] * 30, True)]) for request in range(8)]
    with stages(folder, 2) as pipeline:
        load(pipeline)
        done = results(pipeline, plans)
    pairs = itertools.pairwise(done)
    assert any(later.times[0].started < earlier.times[1].finished for earlier, later in pairs)


KILLED = r"stage 1 was killed by signal 9 \(SIGKILL\)"


def test_a_stage_killed_at_the_start_is_named(folder: Path) -> None:
    with stages(folder, 2) as pipeline:
        pipeline._children[1].kill()
        with pytest.raises(PipelineError, match=KILLED):
            pipeline.load(lambda progress: None)


def test_a_stage_killed_while_idle_is_noticed_by_whoever_waits(folder: Path) -> None:
    with stages(folder, 2) as pipeline:
        load(pipeline)
        pipeline._children[1].kill()
        with pytest.raises(PipelineError, match=KILLED):
            pipeline.wait(60)


def test_a_stage_killed_with_batches_in_flight_is_noticed(folder: Path) -> None:
    with stages(folder, 2) as pipeline:
        load(pipeline)
        os.kill(pipeline._children[1].pid, signal.SIGSTOP)
        for plan in some_plans()[:2]:
            pipeline.submit(plan)
        pipeline._children[1].kill()
        with pytest.raises(PipelineError, match=KILLED):
            next_result(pipeline)


def test_submitting_to_a_dead_stage_never_hangs(folder: Path) -> None:
    with stages(folder, 2) as pipeline:
        load(pipeline)
        pipeline._children[1].kill()
        assert all_end([pipeline._children[1].pid])
        with pytest.raises(PipelineError, match="stage 1"):
            results(pipeline, some_plans())


def test_a_batch_that_a_stage_cannot_run_ends_the_pipeline_with_its_reason(folder: Path) -> None:
    maker = PlanMaker()
    maker.plan([(0, [1, 2], True)])  # never submitted, so no stage was told of request 0
    with stages(folder, 2) as pipeline:
        load(pipeline)
        pipeline.submit(maker.plan([(0, [3], True)]))
        with pytest.raises(PipelineError, match="request 0"):
            next_result(pipeline)


def test_a_stage_that_cannot_start_says_why(folder: Path, tmp_path: Path) -> None:
    with (
        stages(tmp_path / "nothing here", 2) as pipeline,
        pytest.raises(PipelineError, match=r"stage \d could not start: .*no such file or folder"),
    ):
        pipeline.load(lambda progress: None)


def test_a_cache_that_cannot_be_had_is_refused_before_it_is_made(folder: Path) -> None:
    with stages(folder, 1, num_blocks=2**31 - 1) as pipeline, pytest.raises(ConfigError, match="--num-blocks"):
        pipeline.load(lambda progress: None)


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_stages_leave_signals_to_their_parent(folder: Path, signal_: signal.Signals) -> None:
    with stages(folder, 2) as pipeline:
        load(pipeline)
        for child in pipeline._children:
            os.kill(child.pid, signal_)
        assert [len(result.tokens) for result in results(pipeline, some_plans())] == [1, 2, 1, 0, 3]


def test_waiting_ends_with_the_timeout_and_with_mail(folder: Path) -> None:
    with stages(folder, 1) as pipeline:
        load(pipeline)
        pipeline.wait(0.01)
        sender = wire.make_socket(pipeline._mail.context, zmq.PAIR)
        sender.connect("inproc://mail")
        sender.send(b"mail")
        pipeline.wait(60)
        assert pipeline.collect() is None


def test_stages_get_the_cores_that_were_shared_out(folder: Path) -> None:
    shares = share_cores(usable_cores(), 2, 1, pin=True)
    with stages(folder, 2) as pipeline:
        load(pipeline)
        masks = [os.sched_getaffinity(child.pid) for child in pipeline._children]
    everything = os.sched_getaffinity(0)
    assert masks == [set(share.cpus) or everything for share in shares]


def test_closing_while_stages_still_load_ends_them(folder: Path) -> None:
    with stages(folder, 3) as pipeline:
        assert len(children_of(os.getpid())) >= 3
        pipeline.close()
        assert pipeline._children == []


def test_the_reason_of_a_stage_that_ended_is_waited_for(folder: Path) -> None:
    """Its end may be seen before its last message: no message is there yet when the core looks."""
    with stages(folder / "nothing here", 1) as pipeline:
        assert all_end([pipeline._children[0].pid], 60)
        ended = dict.fromkeys(pipeline._death_fds, zmq.POLLIN)
        with pytest.raises(PipelineError, match=r"stage 0 could not start: .*no such file or folder"):
            pipeline._check_alive(ended)


def test_clocks_are_compared_at_the_start_and_again_while_there_is_work(folder: Path) -> None:
    """All processes of a machine read one clock, so the true offset is 0, and must lie within what is said."""
    told: list[list[tuple[float, float]]] = []
    with stages(folder, 2) as pipeline:
        load(pipeline)
        first = pipeline.clocks()
        assert all(abs(offset) <= uncertainty < 1.0 for offset, uncertainty in first)
        pipeline.on_clocks = told.append
        pipeline._pinged = 0.0  # long ago
        results(pipeline, [PlanMaker().plan([(0, [1, 2, 3], True)])])
        while len(told) < 2:  # both stages
            pipeline.wait(20)
            pipeline.collect()
        for (_, before), (offset, after) in zip(first, told[-1], strict=True):
            assert abs(offset) <= after <= before
