"""S10: every interval in which a stage idles has one cause, and causes and busy time add up to the wall time."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from paceline.trace import History
from paceline.trace.idle import CAUSES, Idle, IdleAccount, Passage
from tests.engine.harness import Scenario, scenarios
from tests.trace.timed import TimedHarness

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
TINY = 1e-6


@SETTINGS
@given(scenarios())
def test_causes_and_busy_time_add_up_to_the_wall_time(scenario: Scenario) -> None:
    check(TimedHarness(scenario).run().history())  # type: ignore[attr-defined]


@SETTINGS
@given(scenarios(few_blocks=True))
def test_so_they_do_with_few_blocks_and_clocks_that_differ(scenario: Scenario) -> None:
    check(TimedHarness(scenario, clocks_differ=True).run().history())  # type: ignore[attr-defined]


def check(history: History, tolerance: float = TINY) -> None:
    """With clocks that are measured anew during the run, times shift by as much as was uncertain."""
    account = history.account
    assert account is not None
    intervals = defaultdict(list)
    for idle in history.idle:
        intervals[idle.stage].append((idle.start, idle.end, idle.cause))
    for batch in history.batches.values():
        for passage in batch.passages:
            intervals[passage.stage].append((passage.started, passage.finished, "busy"))
    for stage in range(history.facts.stages):
        line = sorted(intervals[stage])
        for (_, end, _), (start, _, _) in pairwise(line):
            assert start == pytest.approx(end, abs=tolerance), "nothing overlaps, nothing is left out"
        wall = line[-1][1] - line[0][0] if line else 0.0
        assert account.until[stage] == pytest.approx(history.now, abs=tolerance)
        assert account.busy[stage] + sum(account.idle[stage].values()) == pytest.approx(
            wall, abs=max(1e-4, tolerance * len(line))
        )
        assert account.idle[stage]["unattributed"] <= 0.01 * wall
    for idle in history.idle:
        check_cause(history, idle, tolerance)


def check_cause(history: History, idle: Idle, tolerance: float) -> None:
    """What the cause claims can be seen in the record by other means."""
    assert idle.cause in CAUSES
    middle = (idle.start + idle.end) / 2
    if idle.end - idle.start < 2 * tolerance:
        return
    live = [
        r
        for r in history.requests.values()
        if r.ended is not None and r.arrived + tolerance < middle < r.ended.at - tolerance
    ]
    flying = [
        b for b in history.batches.values() if b.done is not None and b.at - tolerance <= middle <= b.done + tolerance
    ]
    if idle.cause == "no_work":
        assert not live
    elif idle.cause == "starved":
        assert any(
            p.started - tolerance <= middle <= p.sent + tolerance for b in flying for p in b.passages[: idle.stage]
        )
    elif idle.cause == "link":
        assert any(
            before.sent - tolerance <= middle <= after.started + tolerance
            for batch in flying
            for before, after in pairwise(batch.passages)
        )
    elif idle.cause in ("tokens_in_flight", "blocks", "pace"):
        assert flying, "only a batch that comes back can end this"
    else:
        assert idle.cause in ("core", "startup")


def passage(stage: int, received: float, came: float, started: float, finished: float) -> Passage:
    return Passage(stage, received, came, started, finished, finished)


def test_each_cause_by_hand() -> None:
    """Two stages, one batch that is made after a wait for blocks, then one whose plan comes late at stage 1."""
    account = IdleAccount(2, 0.0, "startup")
    account.core_state(2.0, "no_work")
    account.core_state(3.0, "core")
    account.core_state(3.5, "blocks")
    account.returned(4.0, 4.5)
    account.core_state(4.5, "core")
    found = list(account.passed(5.0, [passage(0, 5.5, 5.5, 6.0, 8.0), passage(1, 9.0, 8.5, 9.5, 10.0)]))
    assert [(i.start, i.end, i.cause) for i in found if i.stage == 0] == [
        (0.0, 2.0, "startup"),
        (2.0, 3.0, "no_work"),
        (3.0, 3.5, "core"),
        (3.5, 4.0, "blocks"),
        (4.0, 4.5, "core"),
        (4.5, 5.0, "core"),
        (5.0, 5.5, "core"),
        (5.5, 6.0, "core"),
    ]
    assert [(i.start, i.end, i.cause) for i in found if i.stage == 1][-4:] == [
        (6.0, 8.0, "starved"),
        (8.0, 8.5, "link"),
        (8.5, 9.0, "core"),
        (9.0, 9.5, "link"),
    ]
    assert account.busy == [2.0, 0.5]
    assert [account.until[s] for s in (0, 1)] == [8.0, 10.0]


def test_a_batch_that_is_not_on_record_is_not_explained() -> None:
    account = IdleAccount(1, 0.0)
    assert list(account.passed(None, [passage(0, 1.0, 1.0, 2.0, 3.0)])) == [Idle(0, 0.0, 2.0, "unattributed")]


def test_with_loop_back_the_first_stage_waits_for_tokens() -> None:
    account = IdleAccount(1, 0.0, "no_work")
    account.core_state(1.0, "core")
    found = list(account.passed(1.0, [passage(0, 1.5, 2.5, 2.6, 3.0)]))
    assert [(i.end, i.cause) for i in found] == [
        (1.0, "no_work"),
        (1.5, "core"),
        (2.5, "tokens_in_flight"),
        (2.6, "core"),
    ]


def test_what_happens_while_a_result_is_applied_belongs_to_applying_it() -> None:
    account = IdleAccount(1, 0.0, "no_work")
    account.core_state(1.0, "tokens_in_flight")
    account.core_state(2.5, "core")  # a request ended ...
    account.core_state(2.0, "core")  # ... by the result that was taken up at 2.0
    account.core_state(3.0, "no_work")
    found = list(account.nothing_in_flight(4.0))
    assert [(i.end, i.cause) for i in found] == [
        (1.0, "no_work"),
        (2.0, "tokens_in_flight"),
        (3.0, "core"),
        (4.0, "no_work"),
    ]
