"""Stages as processes: the same numbers as inline, and every death is noticed, named and cleaned up after."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from paceline.errors import ConfigError, PipelineError
from paceline.host import share_cores, usable_cores
from paceline.messages import PLACEHOLDER, BatchResult, CoreProgress, NewRequest, Plan, Slice
from paceline.pipeline import wire
from paceline.pipeline.processes import ProcessPipeline
from paceline.sampling_params import SamplingParams
from tests.pipeline.tiny import LAYERS, MAX_LEN, NUM_BLOCKS, PlanMaker, engine_config, inline_pipeline, write_model
from tests.processes import all_end, children_of

RANGES = {
    1: [(0, LAYERS)],
    2: [(0, 2), (2, LAYERS)],
    3: [(0, 1), (1, 3), (3, LAYERS)],
    4: [(0, 1), (1, 2), (2, 3), (3, LAYERS)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


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


def some_plans() -> list[Plan]:
    maker = PlanMaker()
    return [
        maker.plan([(0, [1, 2, 3, 4, 5], True), (1, list(range(20)), False)]),
        maker.plan([(1, [7], True), (2, [8, 8, 8], True)]),
        maker.plan([(0, [6], True), (3, list(range(30)), False)]),
        maker.plan([(3, [1], False)]),  # nothing is sampled at all
        maker.plan([(2, [1], True), (3, [2], True), (1, [3], True)], released=(0,)),
    ]


def ahead_plans(told: list[BatchResult] | None) -> list[Plan]:
    """Decodes scheduled ahead, on time and early; with the results at hand, the same with their tokens known."""
    maker = PlanMaker()

    def token(batch: int, row: int) -> list[int]:
        return [PLACEHOLDER if told is None else told[batch].tokens[row].token_id]

    return [
        maker.plan([(0, [1, 2, 3, 4, 5], True), (1, list(range(20)), False)]),
        maker.plan([(1, [7], True), (2, [8, 8, 8], True)]),
        maker.plan([(0, token(0, 0), True), (3, list(range(30)), True)]),
        maker.plan([(2, token(1, 1), True), (3, token(2, 1), True)]),
        maker.plan([(1, token(1, 0), True), (2, token(3, 0), True), (4, [5, 6], True)], released=(0,)),
        maker.plan([(4, token(4, 2), True), (3, token(3, 1), True)]),
    ]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_tokens_that_were_handed_over_are_those_that_the_core_would_have_told(folder: Path, number: int) -> None:
    expected = results(inline_pipeline(folder, RANGES[1], loop_back=True), ahead_plans(None))
    again = results(inline_pipeline(folder, RANGES[1]), ahead_plans(expected))
    assert [result.tokens for result in again] == [result.tokens for result in expected]
    with stages(folder, number, loop_back=True) as pipeline:
        assert pipeline.depth == number + 1
        load(pipeline)
        done = results(pipeline, ahead_plans(None))
        assert [result.tokens for result in done] == [result.tokens for result in expected]
        check_times(done, number)


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


def test_stages_work_on_neighbouring_batches_at_the_same_time(folder: Path) -> None:
    """Stage 0 begins a batch while stage 1 still has the one before; one after another, this could never be seen."""
    maker = PlanMaker()
    plans = [maker.plan([(request, [request] * 30, True)]) for request in range(8)]
    with stages(folder, 2) as pipeline:
        load(pipeline)
        done = results(pipeline, plans)
    pairs = itertools.pairwise(done)
    assert any(later.times[0].started < earlier.times[1].finished for earlier, later in pairs)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("successor", [(0, 1), (7, 0)], ids=["same number", "other number"])
def test_a_late_token_does_not_enter_the_next_request_in_its_row(
    folder: Path, number: int, successor: tuple[int, int]
) -> None:
    """While a token is on its way its request is released, and another gets its row, its blocks and its positions."""
    request, generation = successor

    def new(number: int, generation: int) -> NewRequest:
        return NewRequest(number, generation, 5, SamplingParams(temperature=0.0, logprobs=3), ())

    def alone(token: int) -> list[Plan]:
        first = Slice(request, generation, 0, [9, 8, 7, 6, 5], True, 0, [0, 1])
        return [
            Plan(0, 0, [first], [new(request, generation)], []),
            Plan(0, 1, [Slice(request, generation, 5, [token], True, 2, [])], [], []),
        ]

    stale = Plan(0, 0, [Slice(0, 0, 0, [1, 2, 3, 4, 5], True, 0, [0, 1])], [new(0, 0)], [])
    reused = [
        stale,
        Plan(0, 1, alone(0)[0].slices, [new(request, generation)], [0]),
        Plan(0, 2, alone(PLACEHOLDER)[1].slices, [], []),
    ]
    first = results(inline_pipeline(folder, RANGES[1]), alone(0))[0].tokens[0]
    expected = [result.tokens for result in results(inline_pipeline(folder, RANGES[1]), alone(first.token_id))]
    with stages(folder, number, loop_back=True) as pipeline:
        load(pipeline)
        os.kill(pipeline._children[-1].pid, signal.SIGSTOP)  # the first token is late
        for plan in reused[: pipeline.depth]:
            pipeline.submit(plan)
        os.kill(pipeline._children[-1].pid, signal.SIGCONT)
        done = [next_result(pipeline)]
        for plan in reused[pipeline.depth :]:
            pipeline.submit(plan)
        done += [next_result(pipeline), next_result(pipeline)]
    assert done[0].tokens[0].token_id != first.token_id, "else nothing would show"
    assert [result.tokens for result in done[1:]] == expected


def waiting_plans() -> list[Plan]:
    """The third needs a token that no batch samples."""
    maker = PlanMaker()
    return [
        maker.plan([(0, [1, 2, 3], True), (5, [4], False)]),
        maker.plan([(1, [4, 5], True)]),
        maker.plan([(0, [PLACEHOLDER], True), (5, [PLACEHOLDER], True)]),
    ]


def test_a_batch_that_waits_for_a_token_holds_up_none_before_it(folder: Path) -> None:
    with stages(folder, 2, loop_back=True) as pipeline:
        load(pipeline)
        for plan in waiting_plans():
            pipeline.submit(plan)
        assert [next_result(pipeline).batch, next_result(pipeline).batch] == [0, 1]
        pipeline.wait(0.05)
        assert pipeline.collect() is None
        # Closing must end the stage that waits, too; leaving the block checks it.


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_while_a_batch_waits_for_a_token_is_noticed(folder: Path, victim: int) -> None:
    with stages(folder, 2, loop_back=True) as pipeline:
        load(pipeline)
        for plan in waiting_plans():
            pipeline.submit(plan)
        pipeline._children[victim].kill()
        with pytest.raises(PipelineError, match=rf"stage {victim} was killed by signal 9"):
            [next_result(pipeline) for _ in range(3)]


def test_a_token_message_that_cannot_be_read_ends_the_pipeline(folder: Path) -> None:
    with stages(folder, 2, loop_back=True) as pipeline:
        intruder = wire.make_socket(pipeline._mail.context, zmq.PUSH)
        intruder.connect(pipeline._folder.address("tokens"))  # nobody else can: the folder is private, and soon gone
        load(pipeline)
        intruder.send(b"nonsense")
        with pytest.raises(PipelineError, match="stage 0 failed: a damaged loop-back message"):
            next_result(pipeline)


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
