"""What a reader makes of the record equals what was true when it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.engine.core import EngineCore
from paceline.simulate import scenario as scripted
from paceline.trace import History
from paceline.trace.explain import explain_batch, explain_request
from paceline.trace.parts import PARTS
from paceline.trace.story import tell_request
from tests.engine.harness import Scenario, make_scenario, scenarios
from tests.simulate.test_scenario import CASES
from tests.trace.timed import TimedHarness

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(scenarios(), st.integers(1, 5000))
def test_every_batch_is_explained_as_it_was(scenario: Scenario, chunk_bytes: int) -> None:
    run = TimedHarness(scenario)
    run.run()
    history = run.history(chunk_bytes)
    assert list(history.batches) == [seen["batch"] for seen in run.seen_batches]
    for seen, lengths in zip(run.seen_batches, run.seen_lengths, strict=True):
        assert history.batches[seen["batch"]].made().lengths == lengths
        told = explain_batch(history, seen["batch"])
        assert told is not None
        for field in ("slices", "status", "why_not"):
            assert getattr(told, field) == seen[field], field


@SETTINGS
@given(scenarios())
def test_every_request_is_explained_as_it_was(scenario: Scenario) -> None:
    run = TimedHarness(scenario)
    run.run()
    history = run.history()
    for request_id, seen in run.seen.items():
        refused = [event for event in history.refused if event.id == request_id]
        if refused:
            assert seen.status == "FINISHED_REFUSED"
            continue
        record = history.request(request_id)
        assert record is not None
        told = explain_request(history, record)
        assert told.status == seen.status
        cut = seen.told_to_finish and told.output_tokens == seen.arrival.stop_text_at
        assert cut or told.output_tokens == len(seen.tokens)
        assert told.complete
        assert told.total is not None
        assert told.total_parts is not None
        assert set(told.total_parts) == set(PARTS)
        assert all(seconds >= 0 for seconds in told.total_parts.values())
        assert sum(told.total_parts.values()) == pytest.approx(told.total)
        if seen.tokens:
            assert told.time_to_first_token_parts is not None
            assert sum(told.time_to_first_token_parts.values()) == pytest.approx(told.time_to_first_token)
        positions = [step.tokens for step in told.batches if step.tokens is not None]
        assert positions == [b["slices"][request_id] for b in run.seen_batches if request_id in b["slices"]]
        assert tell_request(told)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_scripted_cases_are_explained_as_expected(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = []

    class Core(EngineCore):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]
            cores.append(self)

    monkeypatch.setattr(scripted, "EngineCore", Core)
    scenario = scripted.load_scenario(case)
    scripted.run_scenario(scenario)
    history = History()
    history.feed(cores[0].recorder.read(0).lines)
    for expected in scenario.expected["batches"]:
        told = explain_batch(history, expected["batch"])
        assert told is not None
        assert {name: list(positions) for name, positions in told.slices.items()} == expected["slices"]
        assert told.status == expected["status"]
        assert told.why_not == expected["why_not"]


@given(st.integers(0, 2**32), st.integers(300, 5000))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_history_forgets_the_oldest_and_tells_the_rest_as_it_was(seed: int, max_bytes: int) -> None:
    run = TimedHarness(make_scenario(seed))
    run.run()
    history = History(max_bytes)
    history.feed(run.core.recorder._log.read(0, 2**30).lines)
    kept = sum(len(batch.line) for batch in history.batches.values())
    live = sum(request.num_bytes for request in history.requests.values())
    assert history._bytes == kept + live
    assert len(history.batches) <= 1 or kept + live <= max_bytes
    for seen in run.seen_batches:
        told = explain_batch(history, seen["batch"])
        assert (told is None) == (seen["batch"] not in history.batches)
        if told is not None and set(seen["status"]) == set(told.status):
            assert (told.status, told.why_not) == (seen["status"], seen["why_not"])
    for record in history.requests.values():
        timeline = explain_request(history, record)
        assert timeline.complete == (record.first_batch < 0 or record.first_batch in history.batches)
