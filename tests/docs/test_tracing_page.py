"""The page about OpenTelemetry names every attribute of a span."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_attribute_is_on_the_page() -> None:
    page = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    source = (ROOT / "src" / "paceline" / "server" / "spans.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(gen_ai\.[\w.]+\w|error\.type)"', source))
    assert len(names) > 15
    assert names == set(re.findall(r"`(gen_ai\.[\w.]+|error\.type)`", page))
