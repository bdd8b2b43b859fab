"""The record as a trace file: by the format's rules, and saying what the record says."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.messages import StageTimes
from paceline.trace import History
from paceline.trace import events as ev
from paceline.trace.perfetto import MAX_NAMES, MAX_SECONDS, trace_json
from tests.engine.harness import Scenario, scenarios
from tests.trace.timed import TimedHarness
from tests.trace.trace_format import check

PHASES = ("prefill", "decode", "mixed")
FACTS = ev.Facts(model="tiny", stages=2, depth=2, layers=[18, 12], num_blocks=64, block_size=16, pacing="greedy")


def history_of(*events: ev.AnyEvent) -> History:
    history = History()
    history.feed(
        b"".join(msgspec.json.encode(event) + b"\n" for event in (ev.Page(0.0, 1, 1e9, FACTS, {}, []), *events))
    )
    return history


def arrived(number: int, at: float = 0.0) -> ev.Arrived:
    return ev.Arrived(at, number, f"req-{number}", 12, 4, 0, "", "")


def made(at: float, batch: int, requests: dict[int, tuple[int, int]], running: int = 1, free: int = 60) -> ev.Made:
    starts, lengths = [first for first, _ in requests.values()], [length for _, length in requests.values()]
    return ev.Made(at, batch, [*requests], starts, lengths, [*requests], [], "", running, 0, free, 1)


def done(at: float, batch: int, spans: list[tuple[float, float, float, float]], delivered: list[int]) -> ev.Done:
    """`spans`: per stage, when the input came, when it was worked on, and when the output left."""
    times = [StageTimes(stage, came, came, a, b, b - a, sent) for stage, (came, a, b, sent) in enumerate(spans)]
    return ev.Done(at, batch, times, delivered)


def two_batches_events(with_page: bool = False, base: float = 0.0) -> list[ev.AnyEvent]:
    """A prompt in two chunks, one after the other through both stages, some seconds after `base`."""

    def after(*spans: tuple[float, float, float, float]) -> list[tuple[float, float, float, float]]:
        return [(base + a, base + b, base + c, base + d) for a, b, c, d in spans]

    return [
        *([ev.Page(base, 1, 1e9, FACTS, {}, [])] if with_page else []),
        arrived(0, base + 0.9),
        made(base + 1.0, 0, {0: (0, -8)}),
        made(base + 1.1, 1, {0: (8, 4)}, free=59),
        done(base + 2.6, 0, after((1.1, 1.2, 1.6, 1.7), (1.8, 1.8, 2.5, 2.5)), []),
        ev.Sent(base + 2.61),
        done(base + 3.5, 1, after((1.2, 1.7, 2.0, 2.1), (2.5, 2.5, 3.4, 3.4)), [0]),
        ev.Sent(base + 3.6),
    ]


def two_batches() -> History:
    return history_of(*two_batches_events())


def document_of(history: History, seconds: float = 100.0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(b"".join(trace_json(history, seconds)))
    return document


def bars(document: dict[str, Any], track: str) -> list[tuple[str, float, float]]:
    """Slices of a track in the order of time: name, start, end in seconds."""
    events = document["traceEvents"]
    (tid,) = [e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"].startswith(track)]
    found = [
        (e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events if e["ph"] == "X" and e["tid"] == tid
    ]
    return sorted(found, key=lambda bar: bar[1])


def test_every_track_tells_what_happened_there() -> None:
    history = two_batches()
    document = document_of(history, history.now)
    check(document)
    busy = [bar for bar in bars(document, "stage 0 (18 layers)") if not bar[0].startswith("idle")]
    assert busy == [("prefill batch 0", 1.2, 1.6), ("prefill batch 1", 1.7, 2.0)]
    assert [bar for bar in bars(document, "stage 1") if not bar[0].startswith("idle")] == [
        ("prefill batch 0", 1.8, 2.5),
        ("prefill batch 1", 2.5, 3.4),
    ]
    assert bars(document, "link 0 → 1") == [("batch 0", 1.7, 1.8), ("batch 1", 2.1, 2.5)]
    assert bars(document, "link core → 0") == [("batch 0", 1.0, 1.1), ("batch 1", 1.1, 1.2)]
    assert bars(document, "link 1 → core") == [("batch 0", 2.5, 2.6), ("batch 1", 3.4, 3.5)]
    assert bars(document, "engine core") == [
        ("make batch 0", 1.0, 1.0),
        ("make batch 1", 1.1, 1.1),
        ("deliver batch 0", 2.6, 2.61),
        ("deliver batch 1", 3.5, 3.6),
    ]


def test_a_request_is_followed_through_stages_and_batches() -> None:
    history = two_batches()
    flow = [e for e in document_of(history, history.now)["traceEvents"] if e["ph"] in "stf"]
    assert {e["name"] for e in flow} == {"req-0"}
    tracks = {2: "core", 4: "stage 0", 6: "stage 1"}
    assert [(tracks[e["tid"]], e["ts"] / 1e6) for e in flow] == [
        ("core", 1.0),
        ("core", 1.1),
        ("stage 0", 1.2),
        ("stage 0", 1.7),
        ("stage 1", 1.8),
        ("stage 1", 2.5),
        ("core", 3.5),
    ]


def test_counters_and_the_bubble() -> None:
    history = two_batches()
    document = document_of(history, history.now)
    counters = [(e["name"], e["ts"] / 1e6, e["args"]) for e in document["traceEvents"] if e["ph"] == "C"]
    assert ("requests", 1.0, {"running": 1, "waiting": 0}) in counters
    assert ("blocks", 1.1, {"free": 59}) in counters
    bubble = {at: args["percent"] for name, at, args in counters if name.startswith("bubble")}
    # From 2.5 on stage 1 works all the time, and stage 0's idle time is not known before it works again.
    assert bubble[2.5] == bubble[3.0] == 0.0
    idle = [e for e in document["traceEvents"] if e.get("cat") == "idle" and e["args"]["cause"] != "no_work"]
    lost = sum(min(e["ts"] + e["dur"], 1.5e6) - max(e["ts"], 1e6) for e in idle if e["ts"] < 1.5e6 < e["ts"] + 1e6)
    assert bubble[1.0] == pytest.approx(100 * lost / (lost + 0.3e6), abs=0.1)
    assert 0 < bubble[1.0] < 100


def test_the_file_says_when_it_was_and_how_far_the_clocks_may_be_off() -> None:
    history = two_batches()
    history.feed(msgspec.json.encode(ev.Clocks(3.7, [(0.0, 1e-6), (0.5, 2e-4)])))
    other = document_of(history, 3.7)["otherData"]
    assert other["unix_time_at_0"] == 1e9
    assert other["stage_clock_ahead_ms"] == [0.0, 500.0]
    assert other["stage_clock_uncertainty_ms"] == [pytest.approx(0.001), pytest.approx(0.2)]
    assert other["layers"] == [18, 12]


def test_only_what_was_asked_for_and_whole_batches() -> None:
    document = document_of(two_batches(), 0.9)  # from 2.7 on: batch 1 was in stage 1 then
    check(document)
    names = {e["name"] for e in document["traceEvents"] if e["ph"] == "X"}
    assert "prefill batch 1" in names
    assert "prefill batch 0" not in names
    assert min(e["ts"] for e in document["traceEvents"] if "ts" in e) == 0.0


def test_nothing_happened_yet() -> None:
    for history in (History(), history_of()):
        document = document_of(history)
        check(document)
        assert not [e for e in document["traceEvents"] if e["ph"] in "stfC"]


def test_a_crowded_batch_names_only_some_of_its_requests() -> None:
    crowd = range(3 * MAX_NAMES)
    history = history_of(
        *(arrived(number) for number in crowd),
        made(1.0, 0, dict.fromkeys(crowd, (0, 1))),
        done(2.0, 0, [(1.1, 1.1, 1.4, 1.4), (1.5, 1.5, 1.9, 1.9)], [*crowd]),
    )
    document = document_of(history)
    check(document)
    (bar,) = [e for e in document["traceEvents"] if e["name"] == "decode batch 0" and e["tid"] == 4]
    assert (bar["args"]["num_requests"], len(bar["args"]["requests"])) == (3 * MAX_NAMES, MAX_NAMES)
    assert len({e["id"] for e in document["traceEvents"] if e["ph"] == "s"}) == 3 * MAX_NAMES


@settings(max_examples=100)
@given(scenarios(), st.floats(0.001, 100))
def test_any_run_gives_a_file_by_the_rules(scenario: Scenario, seconds: float) -> None:
    run = TimedHarness(scenario, clocks_differ=True)
    run.run()
    history = run.history()
    check(document_of(history, seconds))
    document = document_of(history, MAX_SECONDS)
    check(document)
    batches = {e["args"]["batch"] for e in document["traceEvents"] if e.get("cat") in PHASES}
    assert batches == {seen["batch"] for seen in run.seen_batches}


def broken(change: Any) -> dict[str, Any]:
    document = document_of(two_batches())
    change(document["traceEvents"])
    return document


@pytest.mark.parametrize(
    "change",
    [
        lambda events: events.append(
            copy.deepcopy(next(e for e in events if e["ph"] == "X")) | {"dur": 10.0, "ts": -5}
        ),
        lambda events: next(e for e in events if e["name"] == "prefill batch 0").update(dur=0.6e6),  # into batch 1
        lambda events: events.remove(next(e for e in events if e["ph"] == "f")),
        lambda events: next(e for e in events if e["ph"] == "t").update(tid=77),
        lambda events: next(e for e in events if e["ph"] == "C").update(args={"running": "many"}),
    ],
    ids=["negative time", "overlap", "flow without end", "flow in the air", "counter of text"],
)
def test_the_rules_notice_what_breaks_them(change: Any) -> None:
    check(document_of(two_batches()))
    with pytest.raises((AssertionError, KeyError)):
        check(broken(change))
