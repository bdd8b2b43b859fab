"""The Grafana dashboard uses only metrics and labels that exist, and Grafana can read it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.server.metric_table import TABLE, Kind

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "paceline.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
OUTSIDE = {"process_cpu_seconds_total": set[str]()}  # the client library's own
NAME = re.compile(r"\b(?:vllm:|paceline:|http_|process_)[a-z0-9_:]+")


def series() -> dict[str, set[str]]:
    """Every series that a server exposes, and its labels."""
    found = dict(OUTSIDE)
    for row in TABLE.values():
        labels = set(row.all_labels)
        if row.kind is Kind.HISTOGRAM:
            found |= {f"{row.name}_{part}": labels for part in ("count", "sum")} | {
                f"{row.name}_bucket": labels | {"le"}
            }
        else:
            found[row.name + "_total" * (row.kind is Kind.COUNTER)] = labels
    return found


def labels_used(query: str) -> set[str]:
    by = re.findall(r"by \(([^)]*)\)", query)
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    return {label.strip() for group in by for label in group.split(",")} | set(matched)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_uses_names_and_labels_that_exist(query: str) -> None:
    known = series()
    names = NAME.findall(query)
    assert names
    assert set(names) <= set(known)
    assert labels_used(query) <= set.union(*(known[name] for name in names))
    assert query.count("(") == query.count(")")


def test_legends_use_labels_that_the_query_leaves() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = {
                label.strip() for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(",")
            }
            assert legend <= grouped, target


def test_every_metric_of_the_pipeline_is_shown() -> None:
    shown = {name for query in QUERIES for name in NAME.findall(query)}
    own = {name for name in TABLE if name.startswith("paceline:") and name != "paceline:unknown_request_fields"}
    assert {name for name in own if not any(seen.startswith(name) for seen in shown)} == set()


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert 0 < place["w"] <= 24 - place["x"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert {v["name"] for v in BOARD["templating"]["list"]} == {"datasource", "model"}


def test_the_scrape_configuration_names_the_servers_port() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert jobs[0]["static_configs"][0]["targets"] == ["127.0.0.1:8000"]
