"""`paceline bench serve`, metrics and trace of a real server: what is reported is what the server did."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.server.metric_table import TABLE
from tests.collector import Collector
from tests.e2e.server import Server, serve
from tests.trace.trace_format import check

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


HIDDEN_SIZE = 576


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector().running() as running:
        yield running


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path, collector: Collector) -> Iterator[Server]:
    options = ["--pipeline-parallel-size", "2", "--num-blocks", "512", "--max-model-len", "512"]
    options += ["--log-stats-interval", "1", "--otlp-traces-endpoint", collector.url]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # milliseconds until spans are sent
        with serve(str(smollm2_gguf), *options) as running:
            yield running


def test_figures_agree_with_the_server_and_a_warm_cache_is_noticed(server: Server, tmp_path: Path) -> None:
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
    assert 0 <= pipeline["bubble_fraction"] < 1
    accounted = sum(pipeline["stage_idle_seconds"].values()) + sum(pipeline["stage_busy"]) * first["duration"]
    assert accounted >= 2 * first["duration"] * 0.9  # two stages, all the time
    again = bench(server.url, *load, "--save-detailed", "--result-dir", str(tmp_path))
    assert (again["prefix_cache"], again["total_output_tokens"]) == ("warm", first["total_output_tokens"])
    assert sum(again["output_lens"]) == sum(len(gaps) + 1 for gaps in again["itls"])  # an event for every token
    short = ["--random-input-len", "30", "--random-output-len", "4"]
    chat = bench(server.url, "--backend", "openai-chat", "--num-prompts", "2", *short)
    assert (chat["completed"], chat["prefix_cache"]) == (2, "cold")  # but for the template's beginning
    assert chat["cached_tokens"] > 0


def test_metrics_of_the_pipeline_add_up(server: Server) -> None:
    bench(server.url, "--num-prompts", "3", "--random-input-len", "40", "--random-output-len", "5", "--seed", "99")
    families = text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text)
    found = {family.name: family.samples for family in families}
    assert {name for name in TABLE if name not in found} == set()

    def total(name: str, **labels: str) -> float:
        rows = found[name.removesuffix("_total").removesuffix("_count").removesuffix("_sum")]
        return sum(row.value for row in rows if row.name == name and labels.items() <= row.labels.items())

    batches = total("paceline:batches_total")
    tokens = total("paceline:microbatch_tokens_sum")
    assert total("paceline:microbatch_tokens_count") == batches > 0
    assert total("paceline:link_bytes_total") == tokens * HIDDEN_SIZE * 4
    walls = []
    for stage in ("0", "1"):
        assert total("paceline:stage_step_seconds_count", stage=stage) == batches
        busy = total("paceline:stage_busy_seconds_total", stage=stage)
        idle = total("paceline:stage_idle_seconds_total", stage=stage)
        unattributed = total("paceline:stage_idle_seconds_total", stage=stage, cause="unattributed")
        assert unattributed <= 0.01 * (busy + idle)
        walls.append(busy + idle)
    assert walls[0] == pytest.approx(walls[1], rel=0.02)
    assert re.search(r"bubble [\d.]+%, imbalance [\d.]+", server.read_until(r"bubble \d.*\n").group(0))


def test_the_record_as_a_file_for_perfetto(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    command = [
        sys.executable,
        "-m",
        "paceline.cli.main",
        "trace",
        "--url",
        server.url,
        "--seconds",
        "600",
        "-o",
        str(file),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    document = json.loads(file.read_text())
    check(document)
    bars = [event for event in document["traceEvents"] if event["ph"] == "X"]
    made = {event["args"]["batch"] for event in bars if event["name"].startswith("make batch")}
    assert len(made) == counted(server.url, "paceline:batches_total")
    assert {event["cat"] for event in bars} >= {"prefill", "decode", "idle", "link", "core"}
    assert len(document["otherData"]["layers"]) == 2
    assert all(0 < uncertainty < 50 for uncertainty in document["otherData"]["stage_clock_uncertainty_ms"])


def test_a_span_says_where_a_requests_time_went(server: Server, collector: Collector) -> None:
    trace = "ab" * 16
    body = {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    headers = {"traceparent": f"00-{trace}-{'cd' * 8}-01"}
    assert httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60).status_code == 200
    span = next(
        span for span in iter(lambda: collector.spans(1)[0], None) if span.trace_id == trace and span.attributes
    )
    seconds = {name[15:]: value for name, value in span.attributes.items() if name.startswith("gen_ai.latency.")}
    assert (span.parent_id, span.error) == ("cd" * 8, "")
    assert span.attributes["gen_ai.usage.completion_tokens"] == 5
    assert 0 < seconds["time_in_model_forward"] <= seconds["time_in_model_execute"] <= seconds["e2e"]
    assert 0 <= seconds["time_in_scheduler"] <= seconds["e2e"] - seconds["time_in_model_execute"]
    assert 0 <= seconds["time_in_queue"] < seconds["time_to_first_token"] < seconds["e2e"]
