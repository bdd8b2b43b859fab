"""Simulating by a record: prices, spread and requests come back out of what a run of known times has written."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from statistics import mean, median

import pytest

from paceline.bench.simulated import timelines_of
from paceline.cli.main import main
from paceline.pipeline.timing import BatchTimes, PricedTiming
from paceline.scheduling.cost_model import CostModel, LinkCost, StageCost, Work
from paceline.simulate.loads import SimulatedRequest, draw_load
from paceline.simulate.record import Record, read_record
from paceline.simulate.run import Simulation, SimulationOptions, simulate
from paceline.simulate.served import Seen, ServedTiming
from paceline.trace.file import TraceFile

STAGE = StageCost(fixed=2e-3, token=7e-4, sequence=1e-4, decode_context=2e-6, prefill_context=1e-7, sample=3e-4)
COST = CostModel((STAGE, STAGE.scaled(0.9)), LinkCost(fixed=1e-3))
OPTIONS = SimulationOptions(pacing="greedy", loop_back=True, max_num_batched_tokens=512)


class Stalls(PricedTiming):
    """Now and then a stage stands still for a while, as on a machine that others use."""

    def times(self, work: Work) -> BatchTimes:
        plan, stages, _, link, result = super().times(work)
        slow = [seconds + (0.03 if self._draw.random() < 0.1 else 0.0) for seconds in stages]
        return BatchTimes(plan, slow, 0.004, link, result + (0.01 if self._draw.random() < 0.1 else 0.0))


def requests(seed: int, count: int = 150) -> list[SimulatedRequest]:
    return draw_load("short", count, 1.4, seed)


def write(path: Path, load: list[SimulatedRequest], timing: PricedTiming, options: SimulationOptions = OPTIONS) -> None:
    file = TraceFile(path, 1 << 40)
    simulate(COST, load, options, timing=timing, trace_file=file)
    file.close()


def figures(simulation: Simulation, load: list[SimulatedRequest]) -> tuple[float, float]:
    lines = timelines_of(simulation, load)
    return sum(line.output_tokens for line in lines) / simulation.seconds, median(line.tpot for line in lines)


def test_prices_and_requests_are_those_of_the_run(tmp_path: Path) -> None:
    load = requests(seed=1)
    write(tmp_path / "record", load, PricedTiming(COST))
    record = Record(tmp_path / "record")
    first = load[0].arrival
    assert [(r.prompt_tokens, r.output_tokens) for r in record.load] == [
        (r.prompt_tokens, r.output_tokens) for r in load
    ]
    assert [r.arrival for r in record.load] == pytest.approx([r.arrival - first for r in load], abs=1e-6)
    for work in (Work(1, 8, 8, 2000, 0, 8), Work(1, 200, 2, 0, 20_000, 1), Work(1, 140, 12, 2500, 8000, 12)):
        for stage in range(2):
            assert record.served.cost.time(stage, work) == pytest.approx(COST.time(stage, work), rel=0.03)
    assert record.served.cost.link.fixed == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize("pacing", ["greedy", "throttle", "paced"])
def test_a_record_predicts_another_load_under_any_policy_better_than_the_prices_do(tmp_path: Path, pacing: str) -> None:
    write(tmp_path / "record", requests(seed=1), Stalls(COST, jitter=0.05, seed=1))
    served = Record(tmp_path / "record").served
    load = requests(seed=2, count=300)
    options = SimulationOptions(pacing=pacing, loop_back=True, max_num_batched_tokens=512)
    real = [figures(simulate(COST, load, options, timing=Stalls(COST, 0.05, seed)), load) for seed in (2, 3, 4)]
    by_record = [figures(simulate(served.cost, load, options, timing=ServedTiming(served, s)), load) for s in (2, 3, 4)]
    by_prices = figures(simulate(COST, load, options), load)
    for i in range(2):
        measured = mean(values[i] for values in real)
        guess = mean(values[i] for values in by_record)
        assert guess == pytest.approx(measured, rel=0.1)
    tpot = mean(values[1] for values in real)
    assert abs(mean(values[1] for values in by_record) - tpot) < abs(by_prices[1] - tpot)


def test_what_was_seen_comes_again_in_its_order_from_any_moment() -> None:
    seen = Seen([1.0, 2.0, 4.0], ["a", "b", "c"])
    for since, expected in ((0.0, "abcab"), (2.0, "bcabc"), (3.0, "cabca"), (9.0, "abcab")):
        assert "".join(islice(seen.replay(since), 5)) == expected


def test_size_classes_hold_every_batch_once_and_are_large_enough(tmp_path: Path) -> None:
    write(tmp_path / "record", requests(seed=1), Stalls(COST, jitter=0.05, seed=1))
    served = Record(tmp_path / "record").served
    sizes = [len(size.parts.values) for size in served.classes]
    assert sum(sizes) == json_lines(tmp_path / "record", "made")
    assert min(sizes) >= 32
    assert [size.most for size in served.classes] == sorted(size.most for size in served.classes)
    assert 1.0 < mean(parts[0] for parts in served.classes[0].parts.values) < 3.0  # 3 ms of stalls beside 3 ms of work
    assert mean(served.turnarounds.values) == pytest.approx(0.004)
    assert mean(served.results.values) == pytest.approx(0.002, rel=0.2)


def json_lines(path: Path, tag: str) -> int:
    return sum(json.loads(line)[0] == tag for line in path.read_bytes().splitlines())


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["simulate", "--json", *arguments]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_record_alone_says_what_to_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record"
    write(path, requests(seed=3, count=40), PricedTiming(COST))
    found = simulated(capsys, "--cost", str(path))
    assert (found["pacing"], found["loop_back"], found["num_prompts"]) == ("greedy", True, 40)
    assert found["load"] == str(path)
    other = simulated(
        capsys, "--cost", str(path), "--pacing", "paced", "--no-loop-back", "--load", "short", "--rate", "1"
    )
    assert (other["pacing"], other["loop_back"], other["num_prompts"]) == ("paced", False, 300)
    preset = simulated(capsys, "--cost", "cpu-2", "--load", str(path))
    assert preset["num_prompts"] == 40


def test_a_simulated_run_can_be_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "simulated"
    simulated(capsys, "--num-prompts", "5", "--trace-file", str(path))
    assert main(["explain", "--trace", str(path), "--batch", "0"]) == 0
    assert "batch 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stages", "3"], "--stages 3: is not what"),
        (["--jitter", "0.1"], "--jitter 0.1: is not for"),
        (["--rate", "3"], "--rate 3: is for requests that are drawn"),
        (["--num-prompts", "30"], "--num-prompts 30: is for requests that are drawn"),
        (["--trace-file", "RECORD"], "is what the simulation is made from"),
    ],
)
def test_what_a_record_fixes_cannot_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    path = tmp_path / "record"
    write(path, requests(seed=3, count=10), PricedTiming(COST))
    given = [str(path) if argument == "RECORD" else argument for argument in arguments]
    assert main(["simulate", "--cost", str(path), *given]) == 2
    assert said in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["record"]


@pytest.mark.parametrize(("read", "written"), [("t", "t"), ("t.1", "t"), ("t", "t.1"), ("./t.1", "t")])
@pytest.mark.parametrize("option", ["--cost", "--load"])
def test_no_record_is_written_over_what_is_read(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    read: str,
    written: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("t"), requests(seed=3, count=10), PricedTiming(COST))
    write(Path("t"), requests(seed=4, count=10), PricedTiming(COST))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(before) == {"t", "t.1"}
    assert main(["simulate", option, read, "--trace-file", written]) == 2
    assert f"--trace-file {written}: is what the simulation is made from" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_record_for_the_cost_alone_needs_a_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "record", requests(seed=3, count=10), PricedTiming(COST))
    assert main(["simulate", "--cost", str(tmp_path / "record"), "--load", "short"]) == 2
    assert "--rate" in (said := capsys.readouterr().err)
    assert "None" not in said
    for given in ("", str(tmp_path)):
        assert main(["simulate", "--cost", given]) == 2
        assert "is neither a preset nor a file" in capsys.readouterr().err


def test_too_short_a_record_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record"
    write(path, [SimulatedRequest(0.0, 10, 3)], PricedTiming(COST))
    assert main(["simulate", "--cost", str(path)]) == 2
    assert f"--cost {path}: has 3 whole batches on record" in capsys.readouterr().err
    (tmp_path / "empty").write_bytes(b"[")
    assert main(["simulate", "--cost", str(tmp_path / "empty")]) == 1
    assert "holds no record" in capsys.readouterr().err


def test_a_record_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "record", requests(seed=3, count=10), PricedTiming(COST))
    assert read_record(tmp_path / "record") is read_record(tmp_path / "record")
