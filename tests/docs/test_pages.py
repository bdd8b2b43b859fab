"""What the README and the pages of documentation promise is there: links, options, rooms, and printed tables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.config import EngineConfig, ServerConfig
from paceline.option_table import options
from tests.test_house import ROOMS

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/quickstart.md",
    "docs/architecture.md",
    "docs/pages.md",
    "docs/pacing.md",
]
PAGES += ["docs/trace.md"]
FLAGS = {row.flag for config in (EngineConfig, ServerConfig) for row in options(config).values()}
# Flags that are not options of the server: `paceline complete`, `--print-config`, and curl's and pip's own.
OTHER_FLAGS = {"--quick", "--temperature", "--max-tokens", "--print-config"}
OTHER_FLAGS |= {"--cost", "--load", "--part"}  # of `paceline simulate` and its benchmark
OTHER_FLAGS |= {"--seconds"}  # of `paceline trace`
OTHER_FLAGS |= {"--once"}  # of `paceline top`
OTHER_FLAGS |= {"--batch", "--request", "--trace", "--json"}  # of `paceline explain`
OTHER_FLAGS |= {"--no-loop-back", "--stream"}  # an option switched off; of benchmarks/trace.py


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted({*PAGES, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))}))
def test_local_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text_of(page))
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_flags_that_a_page_names_exist(page: str) -> None:
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text_of(page))) <= FLAGS | OTHER_FLAGS


def test_the_schedule_in_the_readme_is_what_is_printed() -> None:
    file, table = re.findall(r"\$ paceline schedule (\S+)\n(.*?)\n```", text_of("README.md"), re.DOTALL)[0]
    command = [sys.executable, "-m", "paceline.cli.main", "schedule", file]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip() == table


def test_the_architecture_page_names_every_room_in_order() -> None:
    first_cells = re.findall(r"^\| (`[^|]*) \|", text_of("docs/architecture.md"), re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", " ".join(first_cells))) == ROOMS


def test_the_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)|\$ make ([a-z-]+)", " ".join(map(text_of, PAGES))))
    assert {a or b for a, b in named} <= targets
