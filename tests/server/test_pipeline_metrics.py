"""Metrics of the pipeline against the record that they are counted from, on random runs with virtual time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from paceline.server.metric_maker import MetricMaker
from paceline.server.pipeline_metrics import WINDOW_SECONDS, PipelineMetrics
from paceline.trace import History
from paceline.trace.idle import CAUSES
from paceline.trace.use import latest_use
from tests.engine.harness import Scenario, make_scenario, scenarios
from tests.trace.timed import TimedHarness

BYTES_PER_TOKEN = 100


class Scrapes:
    """Pipeline metrics and a way to read them."""

    def __init__(self, stages: int) -> None:
        self.registry = CollectorRegistry()
        self.metrics = PipelineMetrics(MetricMaker(self.registry, ("m", "0")), stages, BYTES_PER_TOKEN)

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(name, {"model_name": "m", "engine": "0", **labels})
        assert found is not None, (name, labels)
        return found


def in_pieces(run: TimedHarness, scrapes: Scrapes, chunk_bytes: int) -> History:
    """Reads the record piece by piece, as scrapes while it is written would."""
    history, read, log = History(), 0, run.core.recorder._log
    while read < log.total:
        chunk = log.read(read, chunk_bytes)
        history.feed(chunk.lines)
        scrapes.metrics.update(history)
        read = chunk.end
    history.settle(run.now)
    scrapes.metrics.update(history)
    return history


@settings(max_examples=100)
@given(scenarios(), st.integers(100, 5000))
def test_everything_on_record_is_counted_once(scenario: Scenario, chunk_bytes: int) -> None:
    run = TimedHarness(scenario, clocks_differ=True)
    run.run()
    stages = scenario.options.stages
    scrapes = Scrapes(stages)
    history = in_pieces(run, scrapes, chunk_bytes)
    done = [batch for batch in history.batches.values() if batch.done is not None]
    tokens = sum(batch.num_tokens for batch in done)
    assert scrapes.value("vllm:iteration_tokens_total_count") == len(done)
    assert scrapes.value("paceline:microbatch_tokens_sum") == tokens
    kinds = Counter(batch.kind for batch in done)
    for stage in range(stages):
        counts = {k: scrapes.value("paceline:stage_step_seconds_count", stage=str(stage), phase=k) for k in kinds}
        assert counts == kinds
    if history.account is not None:
        for stage, idle in enumerate(history.account.idle):
            for cause in CAUSES:
                counted = scrapes.value("paceline:stage_idle_seconds_total", stage=str(stage), cause=cause)
                assert counted == pytest.approx(idle[cause], abs=1e-9)
    for stage in range(stages - 1):
        link = {"from": str(stage), "to": str(stage + 1)}
        assert scrapes.value("paceline:link_bytes_total", **link) == tokens * BYTES_PER_TOKEN
        assert scrapes.value("paceline:link_send_seconds_count", **link) == len(done)


def test_a_record_that_began_anew_adds_to_the_counters() -> None:
    """What was forgotten before it was read is lost, but nothing is counted twice and no counter goes back."""
    run = TimedHarness(next_scenario())
    run.run()
    history = run.history()
    assert history.account is not None
    scrapes = Scrapes(run.scenario.options.stages)
    scrapes.metrics.update(history)
    again = run.history()
    scrapes.metrics.update(again)
    first = history.account.idle[0]
    for cause in CAUSES:
        counted = scrapes.value("paceline:stage_idle_seconds_total", stage="0", cause=cause)
        assert counted == pytest.approx(2 * first[cause])
    assert scrapes.value("vllm:iteration_tokens_total_count") == len(history.batches)


def next_scenario() -> Scenario:
    return next(s for s in map(make_scenario, range(100)) if s.options.stages == 2 and len(s.arrivals) > 3)


def test_bubble_and_imbalance_are_those_of_the_record() -> None:
    run = TimedHarness(next_scenario())
    run.run()
    scrapes = Scrapes(run.scenario.options.stages)
    assert (scrapes.metrics.bubble, scrapes.metrics.imbalance) == (None, None)
    scrapes.metrics.update(History())
    assert scrapes.value("paceline:bubble_ratio") == 0.0
    history = run.history()
    scrapes.metrics.update(history)
    use = latest_use(history, WINDOW_SECONDS)
    assert use.bubble is not None
    assert use.imbalance is not None
    assert scrapes.value("paceline:bubble_ratio") == scrapes.metrics.bubble == use.bubble > 0
    assert scrapes.value("paceline:stage_imbalance_ratio") == scrapes.metrics.imbalance == use.imbalance >= 1
