"""`paceline bench serve` against a real server: what it reports is what the server counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import serve

pytestmark = pytest.mark.e2e


def bench(url: str, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "paceline.cli.main", "bench", "serve", "--base-url", url, "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counted(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


def test_figures_agree_with_the_server_and_a_warm_cache_is_noticed(smollm2_gguf: Path, tmp_path: Path) -> None:
    options = ["--pipeline-parallel-size", "2", "--num-blocks", "512", "--max-model-len", "512"]
    with serve(str(smollm2_gguf), *options) as server:
        load = ["--dataset-name", "lognormal", "--input-median", "40", "--output-median", "6", "--num-warmups", "0"]
        load += ["--num-prompts", "12", "--request-rate", "8", "--burstiness", "0.5", "--seed", "7"]
        first = bench(server.url, *load)
        assert (first["completed"], first["prefix_cache"]) == (12, "cold")
        assert first["total_input_tokens"] == counted(server.url, "vllm:prompt_tokens_total")
        assert first["total_output_tokens"] == counted(server.url, "vllm:generation_tokens_total")
        assert first["duration"] >= 12 / 8  # the last request is sent then
        pipeline = first["pipeline"]
        assert pipeline["stages"] == 2
        assert pipeline["batches"] == counted(server.url, "paceline:batches_total")
        assert all(0 < busy <= 1 for busy in pipeline["stage_busy"])
        assert pipeline["imbalance"] >= 1
        again = bench(server.url, *load, "--save-detailed", "--result-dir", str(tmp_path))
        assert (again["prefix_cache"], again["total_output_tokens"]) == ("warm", first["total_output_tokens"])
        assert sum(again["output_lens"]) == sum(len(gaps) + 1 for gaps in again["itls"])  # an event for every token
        short = ["--random-input-len", "30", "--random-output-len", "4"]
        chat = bench(server.url, "--backend", "openai-chat", "--num-prompts", "2", *short)
        assert (chat["completed"], chat["prefix_cache"]) == (2, "cold")  # but for the template's beginning
        assert chat["cached_tokens"] > 0
