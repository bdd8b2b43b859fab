"""The page that answers the project's question shows what `paceline schedule` really prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")


def printed(*arguments: str) -> str:
    command = [sys.executable, "-m", "paceline.cli.main", "schedule", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_tables_on_the_page_are_what_is_printed() -> None:
    shown = re.findall(r"\$ paceline schedule (\S+)\n(.*?)\n```", PAGE, re.DOTALL)
    assert [Path(file).stem[:2] for file, _ in shown] == ["01", "02", "26"]
    for file, table in shown:
        assert printed(file).rstrip() == table


@pytest.mark.parametrize(
    "case", ["01-the-question-prompt-fits", "02-the-question-prompt-cut", "15-preemption-with-four-stages"]
)
def test_json_has_the_shape_of_the_cases(case: str) -> None:
    file = ROOT / "tests" / "data" / "schedule" / f"{case}.yaml"
    assert json.loads(printed(str(file), "--json")) == yaml.safe_load(file.read_text())["expected"]


def test_no_torch_is_needed() -> None:
    code = (
        "import sys; from paceline.cli.main import main;"
        f"main(['schedule', {str(ROOT / 'tests/data/schedule/01-the-question-prompt-fits.yaml')!r}]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_reason_is_explained() -> None:
    from paceline.scheduling import Reason

    assert all(f"| `{reason.name}` |" in PAGE for reason in Reason)
