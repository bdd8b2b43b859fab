"""The page about benchmarks names flags that there are, and every key of the result."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from paceline.bench.figures import Timeline, request_figures
from paceline.bench.server_facts import Counters, pipeline_facts
from paceline.cli.bench import add_parser
from paceline.cli.parser import Parser

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarking.md").read_text(encoding="utf-8")
SERVER_FLAGS = {"--pipeline-parallel-size", "--num-blocks"}


def test_the_flags_on_the_page_exist() -> None:
    parser = Parser(prog="paceline")
    add_parser(parser.add_subparsers())
    bench = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    known = bench.choices["bench"].flags() | SERVER_FLAGS
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert len(named) > 20
    assert named <= known


def test_every_key_is_on_the_page() -> None:
    words = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))
    figures = request_figures([Timeline(1, 0.0, [1.0], 1)], 1.0, goodput={"ttft": 1})
    spreads = {key for key in figures if re.match(r"(mean|median|std|p99)_(ttft|tpot|itl|e2el)_ms$", key)}
    assert set(figures) - spreads <= words
    assert {key.partition("_")[2] for key in spreads} <= words
    assert set(pipeline_facts(Counters(), Counters(), None, 1.0)) <= words
