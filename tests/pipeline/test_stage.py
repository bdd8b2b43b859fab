"""What a stage makes of a plan, against loops that are too simple to be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import PipelineError
from paceline.messages import NewRequest, Plan, SampledToken, Slice
from paceline.models.inputs import BatchInputs
from paceline.pipeline.stage import StageRunner
from paceline.sampling_params import SamplingParams
from tests.pipeline.tiny import LAYERS, PlanMaker, stage_runner, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


class RecordingModel:
    """Keeps the inputs that a stage built."""

    is_first = True
    is_last = False
    device = torch.device("cpu")
    laps = None

    def __init__(self) -> None:
        self.seen: list[BatchInputs] = []

    def forward(self, batch: BatchInputs, hidden: torch.Tensor | None) -> torch.Tensor:
        self.seen.append(batch)
        return torch.zeros(len(batch.positions), 1)


def new_request(number: int) -> NewRequest:
    return NewRequest(number, 0, 1, SamplingParams(), ())


@st.composite
def block_histories(draw: st.DrawFn) -> tuple[int, list[Plan], list[dict[int, list[int]]]]:
    """A block size, plans with growing and rewritten block tables, and the true table of each request at each plan."""
    size = draw(st.integers(1, 5))
    numbers = draw(st.lists(st.integers(0, 50), min_size=1, max_size=5, unique=True))
    truth: dict[int, list[int]] = {number: [] for number in numbers}
    filled = dict.fromkeys(numbers, 0)
    plans, truths = [], []
    told: set[int] = set()
    for batch in range(draw(st.integers(1, 6))):
        slices = []
        chosen = draw(st.lists(st.sampled_from(numbers), min_size=1, unique=True))
        for number in chosen:
            if draw(st.booleans()) and filled[number]:  # preempted in between: a new table from the first block on
                truth[number], filled[number] = [], 0
            start, length = filled[number], draw(st.integers(1, 12))
            kept = len(truth[number])
            needed = max(0, -(-(start + length) // size) - kept)
            new = draw(st.lists(st.integers(0, 999), min_size=needed, max_size=needed + 2))
            truth[number] = truth[number] + new
            filled[number] = start + length
            tokens = draw(st.lists(st.integers(0, 255), min_size=length, max_size=length))
            slices.append(Slice(number, 0, start, tokens, draw(st.booleans()), kept, new))
        plans.append(Plan(0, batch, slices, [new_request(n) for n in chosen if n not in told], []))
        told.update(chosen)
        truths.append({number: list(blocks) for number, blocks in truth.items()})
    return size, plans, truths


@given(block_histories())
def test_inputs_equal_a_loop_over_rows(history: tuple[int, list[Plan], list[dict[int, list[int]]]]) -> None:
    size, plans, truths = history
    model = RecordingModel()
    runner = StageRunner(model, size)  # type: ignore[arg-type]
    for plan, tables in zip(plans, truths, strict=True):
        runner.execute(plan)
        seen = model.seen[-1]
        token_ids, positions, slots, sample_rows, starts, lengths = [], [], [], [], [0], []
        for row, slice_ in enumerate(plan.slices):
            blocks = tables[slice_.request]
            for offset, token in enumerate(slice_.token_ids):
                position = slice_.start + offset
                token_ids.append(token)
                positions.append(position)
                slots.append(blocks[position // size] * size + position % size)
            starts.append(len(positions))
            lengths.append(slice_.end)
            used = -(-slice_.end // size)
            assert seen.block_tables[row, :used].tolist() == blocks[:used]
            if slice_.samples:
                sample_rows.append(len(positions) - 1)
        assert seen.token_ids.tolist() == token_ids
        assert seen.positions.tolist() == positions
        assert seen.slots.tolist() == slots
        assert seen.query_starts.tolist() == starts
        assert seen.context_lens.tolist() == lengths
        assert seen.sample_rows.tolist() == sample_rows


def test_a_released_request_is_forgotten_before_the_plan_runs() -> None:
    runner = StageRunner(RecordingModel(), 4)  # type: ignore[arg-type]
    runner.execute(Plan(0, 0, [Slice(7, 0, 0, [1], False, 0, [3])], [new_request(7)], []))
    with pytest.raises(PipelineError, match="request 7"):
        runner.execute(Plan(0, 1, [Slice(7, 0, 1, [1], False, 1, [])], [], [7]))


def test_a_request_that_nobody_told_of_is_an_error_of_the_batch() -> None:
    runner = StageRunner(RecordingModel(), 4)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="request 5"):
        runner.execute(Plan(0, 0, [Slice(5, 0, 0, [1], False, 0, [0])], [], []))


def tokens_of(out: object) -> list[SampledToken]:
    assert isinstance(out, list)
    return out


def test_chunks_and_neighbours_change_nothing(folder: Path) -> None:
    prompt = list(range(1, 21))
    alone = tokens_of(stage_runner(folder).execute(PlanMaker().plan([(1, prompt, True)])))
    runner, maker = stage_runner(folder), PlanMaker()
    runner.execute(maker.plan([(0, [9, 8, 7], True), (1, prompt[:7], False)]))
    runner.execute(maker.plan([(1, prompt[7:8], False), (0, [5], True), (2, [3] * 11, True)]))
    chunked = tokens_of(runner.execute(maker.plan([(2, [4], True), (1, prompt[8:], True)])))
    assert [token.request for token in chunked] == [2, 1]
    assert chunked[1].token_id == alone[0].token_id
    assert chunked[1].logprobs is not None
    assert alone[0].logprobs is not None
    assert chunked[1].logprobs.top_ids == alone[0].logprobs.top_ids
    np.testing.assert_allclose(chunked[1].logprobs.top, alone[0].logprobs.top, atol=1e-4)


def test_a_damaged_row_ends_only_itself(folder: Path) -> None:
    healthy = tokens_of(stage_runner(folder).execute(PlanMaker().plan([(0, [5, 6], True), (2, [7, 8], True)])))
    runner = stage_runner(folder)
    forward = runner.model.forward

    def damage(batch: BatchInputs, hidden: torch.Tensor | None) -> torch.Tensor:
        logits = forward(batch, hidden).clone()
        logits[1, 3] = float("nan")
        return logits

    runner.model.forward = damage  # type: ignore[method-assign]
    tokens = tokens_of(runner.execute(PlanMaker().plan([(0, [5, 6], True), (1, [5, 6], True), (2, [7, 8], True)])))
    assert [token.request for token in tokens] == [0, 1, 2]
    assert (tokens[1].token_id, bool(tokens[1].error)) == (-1, True)
    assert [tokens[0].token_id, tokens[2].token_id] == [token.token_id for token in healthy]


def test_two_stages_compute_what_one_does(folder: Path) -> None:
    plan = PlanMaker().plan([(0, [1, 2, 3, 4, 5], True), (1, [9, 9], True)])
    whole = stage_runner(folder).execute(plan)
    hidden = stage_runner(folder, 0, 1).execute(plan)
    assert isinstance(hidden, torch.Tensor)
    assert hidden.shape == (7, 64)
    assert stage_runner(folder, 1, LAYERS).execute(plan, hidden) == whole
