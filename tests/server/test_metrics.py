"""What is exposed to Prometheus: exactly the frozen names, and values that follow what the server does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.config import ServerConfig
from paceline.kv_cache.residency import Ages
from paceline.messages import CoreStats, TraceChunk
from paceline.server.metric_table import TABLE, Kind, golden_lines
from tests.server.fakes import FakeEngine, Site

GOLDEN = Path(__file__).parents[1] / "data" / "metrics.txt"


def test_the_names_are_frozen() -> None:
    """Dashboards and alerts live by names, kinds and labels: add lines to the file, but change or remove none."""
    assert list(golden_lines()) == GOLDEN.read_text().splitlines()


async def site_with_history() -> Site:
    engine = FakeEngine()
    engine.stats = CoreStats(3, 2, 16, 64, 5, 1, 4, 100, 25, [1.0, 1.5], [0.5, 0.75], 2.0, num_deferred=1)
    site = Site(engine)
    await site.complete(nonsense=1)
    await site.complete(max_tokens=2)
    return site


async def test_exactly_what_the_table_names_is_exposed() -> None:
    site = await site_with_history()
    found = {family.name: family for family in text_string_to_metric_families(site.state.metrics.render().decode())}
    own = {name: family for name, family in found.items() if not name.startswith("process_")}
    assert set(own) == set(TABLE)
    assert "process_cpu_seconds" in found
    for name, row in TABLE.items():
        assert own[name].type == row.kind.value
        assert own[name].documentation == row.help
        for sample in own[name].samples:
            assert set(sample.labels) - {"le"} == set(row.all_labels), name
        if row.kind is Kind.HISTOGRAM:
            bounds = [float(sample.labels["le"]) for sample in own[name].samples if "le" in sample.labels]
            assert sorted(set(bounds)) == [*row.buckets, float("inf")]


def values(site: Site, name: str) -> dict[tuple[str, ...], float]:
    """By the labels that the table gives the metric."""
    families = text_string_to_metric_families(site.state.metrics.render().decode())
    family = next(family for family in families if family.name == name)
    labels = TABLE[name].labels
    counts = [sample for sample in family.samples if sample.name in (name, f"{name}_total", f"{name}_count")]
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in counts}


async def test_values_of_the_core() -> None:
    site = await site_with_history()
    assert values(site, "vllm:num_requests_running") == {(): 3}
    assert values(site, "vllm:num_requests_waiting_by_reason") == {("capacity",): 1, ("deferred",): 1}
    assert values(site, "vllm:kv_cache_usage_perc") == {(): 0.25}
    assert values(site, "vllm:num_preemptions") == {(): 4}
    assert values(site, "paceline:stage_busy_seconds") == {("0",): 1.0, ("1",): 1.5}
    assert values(site, "paceline:kv_blocks_free") == {("0",): 48, ("1",): 48}


async def test_ages_of_blocks_are_cumulative_and_what_is_not_here_is_zero() -> None:
    ages = Ages()
    for seconds in (0.0015, 0.3, 0.4, 5000.0):
        ages.add(seconds)
    site = await site_with_history()
    assert site.engine.stats is not None
    site.engine.stats = msgspec.structs.replace(site.engine.stats, block_idle=ages.so_far())
    families = text_string_to_metric_families(site.state.metrics.render().decode())
    idle = next(family for family in families if family.name == "vllm:kv_block_idle_before_evict_seconds")
    counts = {float(sample.labels["le"]): sample.value for sample in idle.samples if "le" in sample.labels}
    expected = {0.001: 0, 0.002: 1, 0.2: 1, 0.5: 3, 1800.0: 3, float("inf"): 4}
    assert {bound: counts[bound] for bound in expected} == expected
    assert values(site, "vllm:kv_block_idle_before_evict_seconds") == {(): 4}
    assert values(site, "vllm:kv_block_lifetime_seconds") == {(): 0}
    assert values(site, "vllm:lora_requests_info") == {("0", "", ""): 0}
    assert values(site, "vllm:spec_decode_num_drafts") == {(): 0}


async def test_a_core_that_does_not_answer_holds_no_scrape_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def silence(begin: int) -> TraceChunk:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("paceline.server.state.FOLLOW_SECONDS", 0.01)
    site = await site_with_history()
    monkeypatch.setattr(site.engine, "read_trace", silence)
    reply = await asyncio.wait_for(site.client.get("/metrics"), 20)
    assert asked.is_set()
    assert reply.status_code == 200
    assert "vllm:num_requests_running" in reply.text
    monkeypatch.undo()
    assert (await site.client.get("/metrics")).status_code == 200  # and it asks again


def test_before_the_first_report_nothing_has_happened() -> None:
    site = Site()
    assert values(site, "vllm:num_requests_running") == {(): 0}
    assert values(site, "paceline:kv_blocks_free") == {("0",): 64, ("1",): 64}
    assert values(site, "vllm:engine_sleep_state") == {("awake",): 1}


async def test_values_of_requests() -> None:
    site = await site_with_history()
    assert values(site, "vllm:prompt_tokens") == {(): 6}
    assert values(site, "vllm:prompt_tokens_by_source") == {("local_compute",): 2, ("local_cache_hit",): 4}
    assert values(site, "vllm:request_success") == {("stop",): 1, ("length",): 1, ("abort",): 0, ("timeout",): 0}
    assert values(site, "vllm:request_params_n") == {(): 2}
    assert values(site, "vllm:request_params_max_tokens") == {(): 2}  # 16, the default, and 2
    assert values(site, "paceline:unknown_request_fields") == {(): 1}
    site.engine.time_out_after = 1
    await site.complete(stream=True)
    assert values(site, "vllm:request_success")[("timeout",)] == 1


async def test_http_answers_are_counted_by_route_and_kind_of_status() -> None:
    site = Site(config=ServerConfig(api_key=("key",)))
    await site.client.get("/health")
    await site.client.get("/v1/models")
    await site.client.get("/v1/models/some/long/name", headers={"Authorization": "Bearer key"})
    await site.client.request("BREW", "/somewhere/that/is/not")
    await site.client.get("/health", headers={"Host": "evil.example"})
    assert values(site, "http_requests") == {
        ("/health", "GET", "2xx"): 1,
        ("/v1/models", "GET", "4xx"): 1,
        ("/v1/models/{model:path}", "GET", "4xx"): 1,
        ("none", "other", "4xx"): 1,
        ("none", "GET", "4xx"): 1,
    }
    assert values(site, "http_request_duration_seconds")[("/health", "GET")] == 1


async def test_an_answer_that_breaks_counts_as_500(caplog: pytest.LogCaptureFixture) -> None:
    def broken(prompt: list[int]) -> list[int]:
        raise ValueError

    site = Site(FakeEngine(broken))
    await site.complete()
    assert values(site, "http_requests") == {("/v1/completions", "POST", "5xx"): 1}
