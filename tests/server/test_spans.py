"""OpenTelemetry spans, as a collector receives them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

import pytest

from paceline.config import ServerConfig
from paceline.errors import ConfigError
from paceline.server.spans import Spans, Times
from tests.collector import Collector
from tests.server.caller import Caller
from tests.server.fakes import FakeEngine, Site

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector().running() as running:
        yield running


def traced_site(collector: Collector, engine: FakeEngine | None = None) -> Site:
    site = Site(engine)
    site.state.spans = Spans(collector.url)
    return site


async def sent(site: Site) -> None:
    assert site.state.spans is not None
    await site.state.spans.close()


async def test_a_request_is_one_span_with_its_phases(collector: Collector) -> None:
    site = traced_site(collector)
    before = time.time_ns()
    reply = await site.complete(prompt=["one", "seven"], temperature=0.5, top_p=0.9, top_k=7, max_tokens=5)
    await sent(site)
    after = time.time_ns()
    queue, prefill, decode, span = collector.spans(4)
    assert collector.none_left()
    assert collector.paths == ["/v1/traces"]
    assert (span.name, span.service, span.parent_id, span.error) == ("llm_request", "paceline", "", "")
    assert [phase.name for phase in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    assert {phase.parent_id for phase in (queue, prefill, decode)} == {span.span_id}
    assert {phase.trace_id for phase in (queue, prefill, decode)} == {span.trace_id}
    assert before - 10**6 <= span.start == queue.start <= queue.end == prefill.start <= prefill.end == decode.start
    assert decode.end <= span.end <= after + 10**6
    told = span.attributes
    seconds = {name: told.pop(name) for name in list(told) if name.startswith("gen_ai.latency.")}
    assert told == {
        "gen_ai.request.id": reply.json()["id"],
        "gen_ai.request.n": 1,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.usage.prompt_tokens": 8,
        "gen_ai.usage.completion_tokens": 10,
        "gen_ai.usage.cached_tokens": 4,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["length", "length"],
    }
    parts = [seconds[f"gen_ai.latency.time_in_{name}"] for name in ("queue", "model_prefill", "model_decode")]
    assert parts[0] + parts[1] == pytest.approx(seconds["gen_ai.latency.time_to_first_token"])
    assert parts[1] + parts[2] == pytest.approx(seconds["gen_ai.latency.time_in_model_inference"])
    assert sum(parts) <= seconds["gen_ai.latency.e2e"]
    assert (span.end - span.start) / 1e9 == pytest.approx(seconds["gen_ai.latency.e2e"], abs=1e-6)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_span_joins_the_clients_trace(collector: Collector, stream: bool) -> None:
    site = traced_site(collector)
    headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    await site.client.post("/v1/completions", json={"prompt": "one", "stream": stream}, headers=headers)
    await sent(site)
    span = collector.spans(4)[-1]
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT)


@pytest.mark.parametrize("header", ["nonsense", f"00-{'0' * 32}-{PARENT}-01", "ff" * 40, ""])
async def test_a_traceparent_that_is_none_starts_a_trace_of_its_own(collector: Collector, header: str) -> None:
    site = traced_site(collector)
    await site.client.post("/v1/completions", json={"prompt": "one"}, headers={"traceparent": header})
    await sent(site)
    span = collector.spans(4)[-1]
    assert span.parent_id == ""
    assert int(span.trace_id, 16) != 0


async def test_a_client_that_does_not_sample_gets_no_span(collector: Collector) -> None:
    site = traced_site(collector)
    await site.client.post("/v1/completions", json={"prompt": "a"}, headers={"traceparent": TRACEPARENT[:-1] + "0"})
    await site.complete()
    await sent(site)
    assert collector.spans(4)[-1].trace_id != TRACE
    assert collector.none_left()


async def test_failures_are_told_by_their_code(collector: Collector) -> None:
    site = traced_site(collector)
    site.engine.fail_after = 0
    await site.complete()
    await sent(site)
    (span,) = collector.spans(1)  # it came to no phase
    assert (span.error, span.attributes["error.type"]) == ("engine_error", "engine_error")
    assert span.attributes["gen_ai.usage.completion_tokens"] == 0


async def test_a_client_that_goes_away(collector: Collector) -> None:
    engine = FakeEngine()
    engine.gate = asyncio.Event()  # never opened
    site = traced_site(collector, engine)
    caller = Caller(site, "/v1/completions", {"prompt": "one"})
    await engine.first_out.wait()
    caller.hang_up()
    await asyncio.wait_for(caller.task, 20)
    await sent(site)
    assert collector.spans(4)[-1].error == "cancelled"


async def test_what_is_refused_before_it_is_generated_has_no_span(collector: Collector) -> None:
    site = traced_site(collector)
    await site.complete(temperature=-1)
    await sent(site)
    assert collector.none_left()


async def test_an_address_with_a_path_is_used_as_it_is(collector: Collector) -> None:
    spans = Spans(collector.url + "/otlp/traces")
    times = Times(time.perf_counter())
    times.end = times.arrival + 1
    spans.record({}, times, {})
    await spans.close()
    (span,) = collector.spans(1)
    assert span.end - span.start == pytest.approx(1e9, abs=2)
    assert collector.paths == ["/otlp/traces"]


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://localhost:4317", "http://"])
def test_addresses_that_are_none(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="OTLP over HTTP"):
        ServerConfig(otlp_traces_endpoint=endpoint)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"Install paceline\[otel\]"):
        Spans("http://localhost:4318")


async def test_a_collector_that_is_not_there_costs_no_answer() -> None:
    site = Site()
    site.state.spans = Spans("http://127.0.0.1:1")
    assert (await site.complete()).status_code == 200
    await sent(site)
