"""The cases with known right answers come out of the engine core exactly as written."""

from pathlib import Path

import msgspec
import pytest
import yaml

from paceline.simulate.scenario import ScenarioError, load_scenario, run_scenario

CASES = sorted((Path(__file__).parents[1] / "data" / "schedule").glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    report = msgspec.to_builtins(run_scenario(load_scenario(path)))
    expected = yaml.safe_load(path.read_text())["expected"]
    for batch in report["batches"]:
        batch["slices"] = {request: list(span) for request, span in batch["slices"].items()}
    assert report == expected


def test_all_cases_are_here() -> None:
    assert len(CASES) == 28


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"stages": 0}, "stages"),
        ({"stages": "two"}, "stages"),
        ({"stagse": 2}, "stagse"),
        ({"loop_back": "perhaps"}, "loop_back"),
        ({"scheduling_policy": "random"}, "scheduling_policy"),
        ({"requests": [{"id": "a", "prompt_tokens": 1}]}, "output_tokens"),
        ({"requests": [{"id": "a", "prompt_tokens": 1, "output_tokens": 1}] * 2}, "'a'"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, change: dict[str, object], named: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump({"stages": 1, "requests": []} | change))
    with pytest.raises(ScenarioError, match=named):
        load_scenario(path)
