"""The rules of the Trace Event Format that viewers rely on."""

from __future__ import annotations

from collections import defaultdict
from numbers import Real
from typing import Any


def check(document: dict[str, Any]) -> None:
    """Raises AssertionError at the first event that breaks a rule."""
    events = document["traceEvents"]
    assert isinstance(events, list)
    for event in events:
        _check_common(event)
    bars = _bars_by_track(events)
    for on_track in bars.values():
        _check_nesting(on_track)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert set(bars) <= named, "every track has a name"
    _check_flows(events, bars)


def _check_common(event: dict[str, Any]) -> None:
    assert event["ph"] in {"M", "X", "C", "s", "t", "f"}, event
    assert isinstance(event["name"], str)
    assert isinstance(event["pid"], int)
    assert isinstance(event["tid"], int)
    if event["ph"] == "M":
        assert set(event["args"]) <= {"name", "sort_index"}
        return
    assert isinstance(event["ts"], int), "viewers cut fractions off, each in its own way"
    assert event["ts"] >= 0, event
    if event["ph"] == "X":
        assert isinstance(event["dur"], int)
        assert event["dur"] >= 0, event
        assert isinstance(event["cat"], str)
    if event["ph"] == "C":
        assert event["args"]
        assert all(isinstance(value, Real) for value in event["args"].values())


def _bars_by_track(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    bars = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            bars[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return {track: sorted(found, key=lambda bar: (bar[0], -bar[1])) for track, found in bars.items()}


def _check_nesting(bars: list[tuple[float, float]]) -> None:
    """Two slices of a track lie apart or one within the other."""
    open_ends: list[float] = []
    for start, end in bars:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], (start, end, open_ends)
        open_ends.append(end)


def _check_flows(events: list[dict[str, Any]], bars: dict[tuple[int, int], list[tuple[float, float]]]) -> None:
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    for flow in flows.values():
        assert len(flow) >= 2
        assert [event["ph"] for event in flow] == ["s", *"t" * (len(flow) - 2), "f"]
        assert flow[-1]["bp"] == "e", "the end binds to the slice around it, not to the next one"
        assert len({(event["name"], event["cat"]) for event in flow}) == 1
        times = [event["ts"] for event in flow]
        assert times == sorted(times)
        for event in flow:
            around = bars[event["pid"], event["tid"]]
            assert any(start <= event["ts"] <= end for start, end in around), event
