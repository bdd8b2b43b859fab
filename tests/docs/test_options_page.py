"""The page of options is the option table."""

from __future__ import annotations

from pathlib import Path

from paceline.cli.options_doc import options_markdown

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == options_markdown(), (
        "run: python -m paceline.cli.options_doc > docs/options.md"
    )
