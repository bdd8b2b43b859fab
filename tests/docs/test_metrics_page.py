"""The page about metrics names every one of them, with its kind, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.server.metric_table import TABLE, Kind

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
KINDS = {row.name + "_total" * (row.kind is Kind.COUNTER): row.kind.value for row in TABLE.values()}


def test_the_tables_are_the_metrics() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| `")]
    told = {name: kinds.strip() for names, kinds in rows for name in re.findall(r"`([^`]+)`", names)}
    assert set(told) == set(KINDS)
    assert {name for name, kinds in told.items() if KINDS[name] not in kinds} == set()


def test_labels_on_the_page_exist() -> None:
    labels = {label for row in TABLE.values() for label in row.labels}
    for label in ("stage", "cause", "phase", "from", "to", "source", "finished_reason", "handler", "method", "status"):
        assert label in labels
        assert f"`{label}`" in PAGE
