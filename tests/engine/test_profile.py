"""Profiles: what the fit finds in made-up steps, what is kept on disk, and that real stages can be measured."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from paceline.engine.costs import KnownCosts, profile_conditions
from paceline.engine.profile import Step, errors_of, fit_parts, grid, measure_profile
from paceline.errors import ConfigError
from paceline.messages import Slice
from paceline.models.model_cost import ModelCost, operation_count
from paceline.pipeline.build import open_model
from paceline.pipeline.profile_store import ProfileError, profile_path, read_profile, save_profile
from paceline.scheduling.cost_fit import fit_stages
from paceline.scheduling.cost_model import StageCost, Work, work_of
from tests.models.test_layer_split import spec
from tests.pipeline.tiny import engine_config, write_model

TRUE = ModelCost(
    layer=StageCost(fixed=2e-4, token=1.6e-4, sequence=1e-6, decode_context=4e-7, prefill_context=1.5e-7),
    head=StageCost(fixed=8e-3, sample=1.1e-3),
)


def work_of_shape(decodes: int, chunk: int, context: int) -> Work:
    lengths = [1] * decodes + [chunk] * (chunk > 0)
    return work_of([Slice(i, 0, context, [1] * n, n == 1, 0, []) for i, n in enumerate(lengths)])


def made_up(split: list[int], seed: int, noise: float = 0.03) -> list[Step]:
    """Steps of stages with these layers at the true prices; one in thirty was interrupted."""
    draw = random.Random(seed)
    steps = []
    for shape in grid() * 3:
        work = work_of_shape(*shape)
        late = 8.0 if draw.random() < 1 / 30 else 1.0
        steps.append(Step(work, [late * draw.gauss(1, noise) * s.time(work) for s in TRUE.pipeline(split).stages]))
    return steps


@pytest.mark.parametrize("split", [[17, 13], [30], [12, 12, 6]])
def test_stages_are_predicted_within_a_tenth(split: list[int]) -> None:
    works, seconds = zip(*made_up(split, 1), strict=True)
    stages = fit_stages(operation_count(spec()).pipeline(split), works, seconds)
    errors = errors_of(stages, made_up(split, 2))
    assert set(errors) == {"prefill", "decode", "mixed"}
    assert max(errors.values()) < 0.1


def test_another_split_is_predicted_from_the_parts() -> None:
    parts = fit_parts(operation_count(spec()), [17, 13], made_up([17, 13], 3))
    stages = list(parts.pipeline([10, 10, 10]).stages)
    assert max(errors_of(stages, made_up([10, 10, 10], 4)).values()) < 0.1


def test_the_grid_holds_every_kind_of_batch_once() -> None:
    assert len(set(grid())) == len(grid())
    assert {work_of_shape(*shape).kind for shape in grid()} == {"prefill", "decode", "mixed"}


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


def test_real_stages_are_measured_and_the_next_start_finds_it(tiny_folder: Path) -> None:
    config = engine_config(pipeline_parallel_size=2)
    told: list[float] = []
    profile = measure_profile(config, tiny_folder, 1.5, lambda progress: None, told.append)
    assert profile.num_steps > 50
    assert len(profile.stages) == 2
    assert all(stage.fixed + stage.token > 0.0 for stage in profile.stages)
    assert profile.errors
    assert told == sorted(told)
    model = open_model(config, tiny_folder).spec
    before = KnownCosts(config, model, tiny_folder)
    assert before.profile is None
    save_profile(profile, profile_path(profile.conditions))
    after = KnownCosts(config, model, tiny_folder)
    assert after.profile == profile
    assert after.stages(profile.layer_split).stages == tuple(profile.stages)
    assert after.split() == after.split()
    assert KnownCosts(engine_config(threads_per_stage=7), model, tiny_folder).profile is None


def test_stages_of_one_process_are_not_measured(tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match="take turns"):
        measure_profile(engine_config(pipeline="inline"), tiny_folder, 1.0, lambda progress: None, lambda done: None)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', "no json"])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(ProfileError, match="paceline profile"):
        read_profile(file)
    with pytest.raises(ProfileError, match="No such file"):
        read_profile(tmp_path / "missing.json")


def test_a_profile_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    fields = {
        "format": 99,
        "conditions": {},
        "cost": TRUE,
        "layer_split": [1],
        "stages": [],
        "errors": {},
        "num_steps": 1,
    }
    file.write_bytes(msgspec.json.encode(fields))
    with pytest.raises(ProfileError, match="format 99"):
        read_profile(file)


def test_conditions_tell_apart_what_changes_speed() -> None:
    one, two = (profile_conditions(engine_config(threads_per_stage=n), Path("m.gguf")) for n in (1, 2))
    assert profile_path(one) != profile_path(two)
    assert profile_path(one).name.startswith("m.gguf-")
    rounded = profile_conditions(engine_config(threads_per_stage=1, activation_dtype="int8"), Path("m.gguf"))
    assert profile_path(one) != profile_path(rounded)
