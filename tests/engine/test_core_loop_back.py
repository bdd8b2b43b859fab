"""What the core does with tokens that come after their successors were scheduled, one result at a time."""

from __future__ import annotations

from collections import deque

from paceline.engine.core import EngineCore
from paceline.messages import AbortRequests, AddRequest, BatchResult, Plan, RequestOutput, SampledToken, ToCore
from paceline.request import RequestStatus
from paceline.sampling_params import SamplingParams
from paceline.scheduling import SchedulerOptions

STOP = 99


class ByHand:
    """Mailbox and pipeline of one core: results are made by the test, and nothing is computed."""

    def __init__(self, *, stages: int = 1, loop_back: bool = True, num_blocks: int = 16, block_size: int = 2) -> None:
        options = SchedulerOptions(
            stages=stages, loop_back=loop_back, num_blocks=num_blocks, block_size=block_size, max_model_len=16
        )
        self.depth = options.depth
        self.plans: list[Plan] = []
        self.outputs: list[RequestOutput] = []
        self._mail: list[ToCore] = []
        self._ready: deque[BatchResult] = deque()
        self._num_back = 0
        self.core = EngineCore(options, self, self, self.outputs.extend)

    def add(self, request_id: str, prompt: list[int], *, step: bool = True, **fields: object) -> None:
        sampling = SamplingParams(**({"max_tokens": 10, "stop_token_ids": (STOP,)} | fields))  # type: ignore[arg-type]
        self._mail.append(AddRequest(request_id, prompt, sampling))
        if step:
            self.core.step()

    def tell(self, message: ToCore) -> None:
        self._mail.append(message)
        self.core.step()

    def back(self, *token_ids: int) -> None:
        """The oldest batch comes back with these tokens; -1: the row failed."""
        plan = self.plans[self._num_back]
        self._num_back += 1
        sampling = [s for s in plan.slices if s.samples]
        tokens = [
            SampledToken(s.request, s.generation, t, error="" if t >= 0 else "not finite")
            for s, t in zip(sampling, token_ids, strict=True)
        ]
        self._ready.append(BatchResult(plan.epoch, plan.batch, tokens, []))
        self.core.step()

    def back_all(self, token_id: int) -> None:
        """The oldest batch comes back with this token for every row."""
        self.back(*(token_id for s in self.plans[self._num_back].slices if s.samples))

    def spans(self, batch: int) -> list[tuple[int, int, bool]]:
        return [(s.start, s.end, s.runs_ahead) for s in self.plans[batch].slices]

    def drain(self) -> list[ToCore]:
        mail, self._mail = self._mail, []
        return mail

    def submit(self, plan: Plan) -> None:
        self.plans.append(plan)

    def collect(self) -> BatchResult | None:
        return self._ready.popleft() if self._ready else None

    def wait(self, timeout: float | None) -> None:
        pass

    def close(self) -> None:
        pass


def test_positions_after_a_stop_are_discarded_and_their_blocks_return_at_once() -> None:
    by = ByHand()
    by.add("r", [1, 2, 3])
    assert (by.spans(0), by.spans(1)) == ([(0, 3, False)], [(3, 4, True)])
    by.back(7)
    assert by.spans(2) == [(4, 5, True)]
    by.back(STOP)
    assert [(o.token_ids, o.status) for o in by.outputs] == [([7], ""), ([STOP], "FINISHED_STOPPED")]
    assert by.core.scheduler.kv_cache.num_free == 16, "also the block of position 4, whose batch is still in flight"
    assert len(by.core.in_flight) == 1
    by.back(8)
    assert (len(by.outputs), len(by.core.in_flight)) == (2, 0)


def test_no_position_is_scheduled_after_the_last_token() -> None:
    by = ByHand()
    by.add("r", [1, 2, 3], max_tokens=2)
    by.back(7)
    assert len(by.plans) == 2, "the token of batch 1 is the last one"
    by.back(8)
    assert [o.status for o in by.outputs] == ["", "FINISHED_LENGTH"]
    assert by.core.in_flight == deque()


def test_a_block_with_a_placeholder_is_found_when_its_token_is_known_and_not_before() -> None:
    by = ByHand()
    by.add("first", [1, 2, 3])  # position 3, which fills the second block, runs ahead
    assert len(by.core.scheduler.kv_cache.index) == 1
    by.back(7)
    assert len(by.core.scheduler.kv_cache.index) == 2
    by.add("second", [1, 2, 3, 7, 5])
    by.back(8)
    by.back(9)
    slices = [s for plan in by.plans for s in plan.slices if s.request == 1]
    assert slices[0].start == 4


def test_a_victim_with_two_tokens_on_their_way_delivers_both_and_then_is_recomputed() -> None:
    by = ByHand(num_blocks=6)
    by.add("r", [1, 2, 3])
    request = by.core.requests["r"]
    by.core.scheduler.preempt(request)
    by.back(7)
    assert (request.token_ids, request.status) == ([1, 2, 3, 7], RequestStatus.PREEMPTED)
    assert request.num_scheduled_tokens == 0
    by.back(8)
    assert (request.token_ids, request.status) == ([1, 2, 3, 7, 8], RequestStatus.RUNNING)
    assert by.spans(2) == [(2, 5, False)], "the block of position 3 was given back before its token was known"


def test_nobody_is_preempted_for_a_token_that_is_not_known() -> None:
    by = ByHand(num_blocks=6)
    by.add("one", [1, 2, 3], step=False)
    by.add("two", [5, 6, 7])
    one, two = by.core.requests["one"], by.core.requests["two"]
    for _ in range(3):
        by.back_all(9)
    assert by.core.scheduler.kv_cache.num_free == 0
    assert one.num_scheduled_tokens == one.num_known_tokens == 6, "position 6 needs a block, and may never be"
    assert (len(by.plans), by.core.scheduler.num_preemptions) == (4, 0)
    by.back_all(9)
    assert (one.num_known_tokens, two.status) == (7, RequestStatus.PREEMPTED)


def test_a_row_that_fails_after_its_request_has_ended_spoils_no_other() -> None:
    by = ByHand(stages=2, loop_back=False)
    by.add("first", [1, 2, 3, 4, 5])
    by.add("sharer", [1, 2, 3, 4, 6])
    sharer = by.core.requests["sharer"]
    assert by.spans(1) == [(4, 5, False)]
    by.tell(AbortRequests(["first"]))
    by.back(-1)
    assert (sharer.status, len(by.core.scheduler.kv_cache.index)) == (RequestStatus.PREEMPTED, 0)
    by.back(7)
    assert sharer.token_ids == [1, 2, 3, 4, 6], "its token was computed from the block that is not to be trusted"
    assert by.spans(2) == [(0, 5, False)]
