"""--profile: every part of a step is timed, and the parts add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.models.laps import Laps
from paceline.models.native_layers import OPERATIONS
from paceline.pipeline.build import load_stage, open_model
from paceline.pipeline.stage import StageRunner
from tests.pipeline.tiny import BLOCK_SIZE, LAYERS, MAX_LEN, NUM_BLOCKS, PlanMaker, engine_config, write_model


def runner(folder: Path, **options: object) -> StageRunner:
    config = engine_config(**options)
    model = load_stage(config, open_model(config, folder), (0, LAYERS), MAX_LEN, lambda done, what: None)
    model.allocate_cache(NUM_BLOCKS, BLOCK_SIZE, model.dtype)
    return StageRunner(model, BLOCK_SIZE)


def test_every_part_of_a_step_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage, maker = runner(write_model(tmp_path), profile=True), PlanMaker()
    for part in ([(0, [1, 2, 3], True)], [(0, [4], True), (1, [5, 6], True)]):
        stage.execute(maker.plan(part))
    laps = stage.model.laps
    assert laps is not None
    assert (laps.steps, laps.rows) == (2, 6)
    assert set(laps.nanoseconds) == {"inputs", "embedding", *OPERATIONS, "layers, the rest", "head", "sampling"}
    assert all(nanoseconds > 0 for nanoseconds in laps.nanoseconds.values())
    stage.show_profile(0)
    shown = capsys.readouterr().err
    assert shown.startswith("stage 0: 2 steps of 3.0 rows on average")
    assert "attention" in shown


def test_without_the_option_nothing_is_timed_or_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = runner(write_model(tmp_path))
    stage.execute(PlanMaker().plan([(0, [1], True)]))
    stage.show_profile(0)
    assert stage.model.laps is None
    assert capsys.readouterr().err == ""


def test_parts_are_taken_out_of_their_lap(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100, 600, 1000])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(times))
    laps = Laps()
    laps.begin(rows=4)
    laps.lap("layers", [("attention", 300)])
    laps.lap("head")
    assert laps.nanoseconds == {"attention": 300, "layers": 200, "head": 400}
    assert "33.3%   attention" in laps.table("stage 1")
