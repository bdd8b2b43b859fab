"""Simulated serving: the same engine core, the same figures for the same seed, and what the policies promise."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.bench.simulated import simulated_figures
from paceline.cli.main import main
from paceline.errors import ConfigError
from paceline.messages import StageTimes
from paceline.scheduling import Batch
from paceline.scheduling.cost_model import StageCost, uniform
from paceline.simulate.loads import LOADS, SimulatedRequest, draw_load, read_load
from paceline.simulate.presets import PRESETS, RATES
from paceline.simulate.run import Simulation, SimulationOptions, simulate


def serve(
    pacing: str, *, preset: str = "cpu-2", load: str = "short", part: float = 1.0, **options: object
) -> Simulation:
    requests = draw_load(load, 80, RATES[preset, load] * part, seed=1)
    return simulate(PRESETS[preset], requests, SimulationOptions(pacing=pacing, **options))  # type: ignore[arg-type]


def figures(pacing: str, requests: list[SimulatedRequest], preset: str = "cpu-2") -> dict[str, float]:
    options = SimulationOptions(pacing=pacing)
    return simulated_figures(simulate(PRESETS[preset], requests, options), requests, options)


@pytest.mark.parametrize("pacing", ["greedy", "throttle", "paced"])
def test_the_same_seed_gives_the_same_moments(pacing: str) -> None:
    runs = [serve(pacing, jitter=0.1, seed=seed) for seed in (3, 3, 4)]
    assert runs[0].requests == runs[1].requests
    assert runs[0].seconds != runs[2].seconds


def test_every_token_comes_and_in_order_of_time() -> None:
    requests = draw_load("mixed", 30, 0.35, seed=2)
    simulation = simulate(PRESETS["cpu-2"], requests, SimulationOptions())
    for request, times in zip(requests, simulation.requests, strict=True):
        assert len(times.outputs) == request.output_tokens
        assert times.sent == request.arrival < times.outputs[0]
        assert all(a < b for a, b in pairwise(times.outputs))


def test_a_request_alone_takes_what_its_batches_take() -> None:
    cost = uniform(2, StageCost(fixed=1.0, token=0.5))
    (times,) = simulate(cost, [SimulatedRequest(3.0, 10, 3)], SimulationOptions(pacing="greedy")).requests
    assert times.outputs == [3.0 + 2 * 6.0, 15.0 + 3.0, 18.0 + 3.0]


def test_equal_time_beats_equal_tokens_and_full_batches() -> None:
    """Near capacity, where it matters; docs/pacing.md has all the cells."""
    requests = draw_load("short", 120, RATES["cpu-2", "short"], seed=5)
    greedy, throttle, paced = (figures(pacing, requests) for pacing in ("greedy", "throttle", "paced"))
    assert paced["output_throughput"] > throttle["output_throughput"] > greedy["output_throughput"]
    assert paced["p99_tpot_ms"] < 0.7 * throttle["p99_tpot_ms"] < 0.7 * greedy["p99_tpot_ms"]


@pytest.mark.parametrize("stages", [2, 8])
def test_where_splitting_cannot_help_paced_does_not_lose(stages: int) -> None:
    """Few requests, or stages whose time hardly grows with the batch."""
    heavy = uniform(stages, StageCost(fixed=0.05, token=1e-6))
    few = [SimulatedRequest(0.0, 50, 40), SimulatedRequest(0.1, 60, 40)]
    many = [SimulatedRequest(0.01 * i, 50, 40) for i in range(60)]
    for requests in (few, many):
        ends = {
            pacing: simulate(heavy, requests, SimulationOptions(pacing=pacing)).seconds
            for pacing in ("greedy", "paced")
        }
        assert ends["paced"] <= 1.02 * ends["greedy"]


def test_batches_of_paced_take_equal_time_on_the_slowest_stage() -> None:
    """While all requests decode, successive batches differ by about one decode."""
    requests = [SimulatedRequest(0.0, 30 + 40 * (i % 7), 60) for i in range(64)]
    seconds: list[float] = []

    def note(batch: Batch) -> None:
        if all(s.num_tokens == 1 for s in batch.plan.slices):
            seconds.append(len(batch.plan.slices))

    simulate(PRESETS["gpu-70b-4"], requests, SimulationOptions(), on_batch=note)
    steady = seconds[20:120]
    assert max(steady) - min(steady) <= 4
    assert 14 <= sum(steady) / len(steady) <= 18


def test_a_model_that_has_to_be_learned_costs_little() -> None:
    requests = draw_load("short", 100, RATES["gpu-70b-4", "short"], seed=3)
    known, learned = (
        simulate(PRESETS["gpu-70b-4"], requests, SimulationOptions(known_cost=known, jitter=0.05))
        for known in (True, False)
    )
    assert learned.seconds < 1.03 * known.seconds
    assert learned.cost_errors["decode"] < 0.1


def test_few_blocks_preempt_less_under_paced_than_under_greedy() -> None:
    preemptions = {p: serve(p, preset="gpu-70b-4", num_blocks=500).stats.num_preemptions for p in ("greedy", "paced")}
    assert preemptions["paced"] < preemptions["greedy"]


@pytest.mark.parametrize("pacing", ["greedy", "paced"])
def test_busy_and_idle_time_add_up_and_nothing_is_unattributed(pacing: str) -> None:
    simulation = serve(pacing, preset="gpu-70b-4", part=0.6)
    total = sum(simulation.stats.stage_busy_seconds) + sum(simulation.idle.values())
    assert total == pytest.approx(4 * simulation.seconds, rel=0.01)
    assert simulation.idle.get("unattributed", 0.0) <= 0.01 * total


def test_loop_back_runs_on_it_too() -> None:
    simulation = serve("paced", loop_back=True)
    assert all(times.outputs for times in simulation.requests)


# ---------------------------------------------------------------- loads and the command


@pytest.mark.parametrize("kind", LOADS)
def test_loads_are_drawn_by_seed(kind: str) -> None:
    assert draw_load(kind, 20, 1.0, 7) == draw_load(kind, 20, 1.0, 7) != draw_load(kind, 20, 1.0, 8)
    at_once = draw_load(kind, 20, None, 7)
    assert {request.arrival for request in at_once} == {0.0}


def test_medians_of_the_short_load() -> None:
    requests = draw_load("short", 4001, 1.0, 1)
    assert sorted(r.prompt_tokens for r in requests)[2000] == pytest.approx(200, rel=0.1)
    assert sorted(r.output_tokens for r in requests)[2000] == pytest.approx(150, rel=0.1)
    assert requests[-1].arrival == pytest.approx(4000, rel=0.1)


def test_a_load_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text(
        '{"arrival": 2, "prompt_tokens": 5, "output_tokens": 2}\n\n{"arrival": 0.5, "prompt_tokens": 9, "output_tokens": 1}'
    )
    assert read_load(file) == [SimulatedRequest(0.5, 9, 1), SimulatedRequest(2, 5, 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"arrival": -1, "prompt_tokens": 5, "output_tokens": 2}', "line 1.*arrival"),
        ('{"arrival": 1, "prompt_tokens": 5, "output_tokens": 2}\n[]', "line 2"),
        ("", "no requests"),
    ],
)
def test_a_load_that_cannot_be_read(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_load(file)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["simulate", *arguments]) == 0
    return capsys.readouterr().out


def test_the_command_prints_the_keys_of_bench(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cost", "gpu-70b-4", "--num-prompts", "20", "--seed", "3", "--json"]
    result = json.loads(printed(capsys, *arguments))
    assert result["completed"] == 20
    assert {"output_throughput", "p99_tpot_ms", "median_ttft_ms", "mean_itl_ms", "p99_e2el_ms"} <= result.keys()
    assert {"stages", "stage_busy", "stage_idle_seconds", "bubble_fraction", "imbalance"} <= result["pipeline"].keys()
    assert json.loads(printed(capsys, *arguments)) == result


def test_more_stages_of_the_same_layers_take_less_time_each(capsys: pytest.CaptureFixture[str]) -> None:
    two, eight = (
        json.loads(printed(capsys, "--num-prompts", "20", "--rate", "inf", "--stages", n, "--json")) for n in "28"
    )
    assert len(eight["pipeline"]["stage_busy"]) == 8
    assert eight["output_throughput"] > 1.7 * two["output_throughput"]


def test_the_table_names_what_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--num-prompts", "9", "--pacing", "throttle", "--loop-back")
    assert "cpu-2: 2 stage(s), pacing throttle, loop-back" in text
    assert "9 prompts (short), 2.2 requests/s" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cost", "tpu"], "--cost tpu"),
        (["--load", "nowhere.jsonl"], "--load"),
        (["--rate", "0"], "--rate 0"),
        (["--rate", "1e-300"], "--rate 1e-300"),
        (["--jitter", "1e308"], "--jitter 1e308"),
        (["--num-blocks", "1", "--num-prompts", "5"], "--num-blocks 1: holds 16 tokens, and no request"),
        (["--rate", "fast"], "--rate fast"),
        (["--num-prompts", "0"], "--num-prompts 0"),
        (["--stages", "none"], "--pipeline-parallel-size none"),
        (["--jitter", "-1"], "--jitter -1"),
    ],
)
def test_a_bad_option_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["simulate", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_stage_times_are_told() -> None:
    told: list[list[StageTimes]] = []
    requests = [SimulatedRequest(0.0, 5, 2)]
    simulate(PRESETS["cpu-2"], requests, SimulationOptions(), on_times=lambda batch, times: told.append(times))
    assert [len(times) for times in told] == [2, 2]
