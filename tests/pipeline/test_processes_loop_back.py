"""Tokens that loop back between real processes: the right ones, to the right requests, and nothing waits for ever."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import zmq

from paceline.errors import PipelineError
from paceline.messages import PLACEHOLDER, BatchResult, NewRequest, Plan, Slice
from paceline.pipeline import wire
from paceline.sampling_params import SamplingParams
from tests.pipeline.running import RANGES, check_times, load, next_result, results, stages
from tests.pipeline.tiny import PlanMaker, inline_pipeline, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


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
