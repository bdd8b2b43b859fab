"""The inline pipeline keeps the seam's promises: depth, order, and computing only when waited for."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from paceline.messages import PLACEHOLDER, BatchResult
from paceline.models.inputs import BatchInputs
from paceline.pipeline.inline import InlinePipeline
from tests.pipeline.tiny import LAYERS, PlanMaker, inline_pipeline, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def collected(pipeline: InlinePipeline) -> BatchResult:
    pipeline.wait(None)
    result = pipeline.collect()
    assert result is not None
    return result


def test_the_depth_is_the_number_of_stages_and_one_more_with_loop_back(folder: Path) -> None:
    ranges = [(0, 1), (1, 2), (2, LAYERS)]
    assert inline_pipeline(folder, ranges).depth == 3
    assert inline_pipeline(folder, ranges, loop_back=True).depth == 4


def test_results_come_in_order_and_only_after_a_wait(folder: Path) -> None:
    pipeline, maker = inline_pipeline(folder, [(0, 2), (2, LAYERS)]), PlanMaker()
    pipeline.submit(maker.plan([(0, [1, 2, 3], True)]))
    pipeline.submit(maker.plan([(1, [4], False)]))
    assert pipeline.collect() is None
    first = collected(pipeline)
    assert pipeline.collect() is None
    second = collected(pipeline)
    assert (first.batch, second.batch) == (0, 1)
    assert ([t.request for t in first.tokens], second.tokens) == ([0], [])
    for result in (first, second):
        assert [times.stage for times in result.times] == [0, 1]
        for times in result.times:
            assert times.plan_received <= times.started <= times.finished
            assert times.cpu_seconds >= 0
        assert result.times[0].finished <= result.times[1].started


def test_a_row_that_fails_keeps_no_neighbour_from_running_ahead(folder: Path) -> None:
    def run(*, damaged: bool) -> list[BatchResult]:
        pipeline, maker = inline_pipeline(folder, [(0, 2), (2, LAYERS)], loop_back=True), PlanMaker()
        last = pipeline._stages[-1].model
        forward = last.forward

        def damage(batch: BatchInputs, hidden: Tensor | None) -> Tensor:
            logits = forward(batch, hidden).clone()
            logits[0] = float("nan")
            return logits

        if damaged:
            last.forward = damage  # type: ignore[method-assign]
        pipeline.submit(maker.plan([(0, [1, 2, 3], True), (1, [4, 5], True)]))
        pipeline.submit(maker.plan([(0, [PLACEHOLDER], True), (1, [PLACEHOLDER], True)]))
        return [collected(pipeline), collected(pipeline)]

    healthy, damaged = run(damaged=False), run(damaged=True)
    assert [result.tokens[0].token_id for result in damaged] == [-1, -1]
    assert [result.tokens[1] for result in damaged] == [result.tokens[1] for result in healthy]


def test_waiting_with_nothing_submitted_waits_for_mail() -> None:
    waits: list[float | None] = []
    pipeline = InlinePipeline([], waits.append)
    pipeline.wait(0.5)
    pipeline.wait(None)
    assert waits == [0.5, None]


def test_a_closed_pipeline_computes_nothing_more(folder: Path) -> None:
    waits: list[float | None] = []
    pipeline = InlinePipeline(inline_pipeline(folder, [(0, LAYERS)])._stages, waits.append)
    pipeline.submit(PlanMaker().plan([(0, [1], True)]))
    pipeline.close()
    pipeline.wait(0.0)
    assert (pipeline.collect(), waits) == (None, [0.0])
