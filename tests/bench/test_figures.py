"""Figures against calculations by hand, and against numpy on random timelines."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.figures import Timeline, pipeline_figures, request_figures
from paceline.messages import CoreReady, CoreStats


def timeline(sent, *outputs, inputs=10, error=""):
    return Timeline(inputs, sent, list(outputs), len(outputs), error)


def test_by_hand():
    lines = [
        timeline(0.0, 1.0, 1.5, 2.5),  # TTFT 1000, gaps 500 and 1000, TPOT 750, E2EL 2500
        timeline(0.5, 1.0),  # TTFT 500, E2EL 500; one token has no gap
        timeline(1.0, 1.2, error="failed on the way"),
        timeline(1.0),
    ]
    figures = request_figures(lines, duration=4.0)
    expected = {
        "duration": 4.0,
        "completed": 2,
        "failed": 2,
        "total_input_tokens": 20,
        "total_output_tokens": 4,
        "request_throughput": 0.5,
        "output_throughput": 1.0,
        "total_token_throughput": 6.0,
        "mean_ttft_ms": 750.0,
        "median_ttft_ms": 750.0,
        "std_ttft_ms": 250.0,
        "p99_ttft_ms": 995.0,
        "mean_tpot_ms": 750.0,
        "median_itl_ms": 750.0,
        "mean_itl_ms": 750.0,
        "mean_e2el_ms": 1500.0,
        "p99_e2el_ms": 2480.0,
        "max_output_tokens_per_s": 3.0,  # three of them in the second second: 1.0, 1.0, 1.5
        "max_concurrent_requests": 2,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


def test_percentiles_and_goodput_as_asked():
    lines = [timeline(0.0, *(0.1 * (1 + place) for place in range(1 + count))) for count in range(4)]
    lines.append(timeline(0.0, 5.0))
    lines.append(timeline(0.0, 0.1, error="late"))
    figures = request_figures(lines, 2.0, percentiles=(50, 99.9), goodput={"ttft": 200, "e2el": 350})
    assert figures["p50_e2el_ms"] == figures["median_e2el_ms"] == pytest.approx(300)
    assert figures["p99.9_ttft_ms"] == pytest.approx(1e3 * np.percentile([0.1] * 4 + [5.0], 99.9))
    assert "p99_ttft_ms" not in figures
    assert figures["request_goodput"] == 1.5  # those that end after 0.1, 0.2 and 0.3 seconds
    assert request_figures(lines, 2.0, goodput={"tpot": 99})["request_goodput"] == 1.0  # single tokens: no wait between


def test_names_are_those_that_tools_read():
    names = set(request_figures([timeline(0.0, 1.0)], 1.0))
    spreads = {
        f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")
    }
    assert names == spreads | {
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
    }


@pytest.mark.parametrize("lines", [[], [timeline(0.0)], [timeline(0.0, error="x")]], ids=["none", "empty", "failed"])
def test_nothing_completed_gives_zeros_not_nan(lines):
    figures = request_figures(lines, 2.0)
    assert figures.pop("failed") == len(lines)
    assert figures.pop("duration") == 2.0
    assert set(figures.values()) == {0}


times = st.floats(0.001, 5.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.lists(times, min_size=1, max_size=8)), min_size=1, max_size=12))
def test_latencies_fit_together(requests):
    lines = [timeline(sent, *(sent + np.cumsum(gaps)).tolist()) for sent, gaps in requests]
    figures = request_figures(lines, 100.0)
    assert all(math.isfinite(value) for value in figures.values())
    everything = [gap for _, gaps in requests for gap in gaps[1:]]
    if everything:
        assert figures["p99_itl_ms"] == pytest.approx(1e3 * np.percentile(everything, 99), abs=1e-6)
    assert figures["mean_e2el_ms"] == pytest.approx(1e3 * np.mean([sum(gaps) for _, gaps in requests]))
    assert figures["mean_ttft_ms"] <= figures["mean_e2el_ms"] + 1e-9
    overlaps = [
        sum(line.sent <= moment < line.outputs[-1] for line in lines) for moment in [line.sent for line in lines]
    ]
    assert figures["max_concurrent_requests"] == max(overlaps)


def stats(batches, busy, cpu, hits=0, preemptions=0):
    return CoreStats(0, 0, 0, 64, batches, 0, preemptions, 0, hits, busy, cpu, 99.0)


def test_pipeline_figures_are_differences_over_the_measured_time():
    info = CoreReady(64, 16, 512, 2, [18, 12], "float32")
    before = stats(10, [3.0, 4.0], [1.0, 2.0], hits=5, preemptions=1)
    after = stats(30, [11.0, 13.0], [6.0, 4.0], hits=25, preemptions=4)
    assert pipeline_figures(info, before, after, 10.0, num_delivered=420) == {
        "stages": 2,
        "layer_split": [18, 12],
        "busy_fraction": [0.8, 0.9],
        "cpu_fraction": [0.5, 0.2],
        "batches": 20,
        "mean_batch_tokens": 20.0,
        "preemptions": 3,
        "prefix_cache_hit_tokens": 20,
    }


def test_pipeline_figures_of_a_first_run_and_of_no_run():
    info = CoreReady(64, 16, 512, 2, [1, 1], "float32")
    first = pipeline_figures(info, stats(0, [], []), stats(4, [1.0, 2.0], [0.5, 0.5]), 4.0, 8)
    assert (first["busy_fraction"], first["cpu_fraction"]) == ([0.25, 0.5], [0.125, 0.125])
    none = pipeline_figures(info, stats(0, [], []), stats(0, [], []), 4.0, 0)
    assert (none["busy_fraction"], none["mean_batch_tokens"]) == ([0.0, 0.0], 0.0)
