"""Counts what the server does; `metric_table.py` has the names and what they mean."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest

from paceline.config import EngineConfig
from paceline.messages import CoreReady
from paceline.server.core_metrics import CoreCollector, StatsSource
from paceline.server.metric_table import CACHE_FACTS, TABLE

if TYPE_CHECKING:
    from paceline.engine.choice import Choice

M = TypeVar("M", Counter, Gauge, Histogram)

_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
)
FINISH_REASONS = ("stop", "length", "abort", "timeout")


class Metrics:
    """Counters and histograms of one server; those of the model are silent until :meth:`attach` names it."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._core = CoreCollector()
        self.registry.register(self._core)
        ProcessCollector(registry=self.registry)
        self._families = {name: self._histogram(f"vllm:{name}") for name in _HISTOGRAMS}
        self._prompt = self._make(Counter, "vllm:prompt_tokens")
        self._sources = self._make(Counter, "vllm:prompt_tokens_by_source")
        self._output = self._make(Counter, "vllm:generation_tokens")
        self._success = self._make(Counter, "vllm:request_success")
        self._cut = self._make(Counter, "paceline:requests_cut")
        self._unknown = self._make(Counter, "paceline:unknown_request_fields")
        self._http_total = self._make(Counter, "http_requests")
        self._http_seconds = self._histogram("http_request_duration_seconds")

    def _make(self, kind: type[M], name: str) -> M:
        row = TABLE[name]
        return kind(name, row.help, row.all_labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        row = TABLE[name]
        return Histogram(name, row.help, row.all_labels, buckets=row.buckets, registry=self.registry)

    def attach(self, model: str, info: CoreReady, config: EngineConfig, core: StatsSource) -> None:
        """Name the model, and read the engine core's own counters from `core` from now on."""
        labels = (model, "0")
        self._core.attach(labels, core, info.num_blocks, info.num_stages)
        self._histograms = {name: family.labels(*labels) for name, family in self._families.items()}
        self._ttft = self._histograms["time_to_first_token_seconds"]
        self._gap = self._histograms["inter_token_latency_seconds"]
        self._prompt_total, self._output_total = self._prompt.labels(*labels), self._output.labels(*labels)
        self._computed = self._sources.labels(*labels, "local_compute")
        self._cached = self._sources.labels(*labels, "local_cache_hit")
        self._cut_total = self._cut.labels(*labels)
        self._unknown_total = self._unknown.labels(*labels)
        self._ended = {reason: self._success.labels(*labels, reason) for reason in FINISH_REASONS}
        self._make(Gauge, "vllm:engine_sleep_state").labels(*labels, "awake").set(1)
        facts = (info.block_size, config.kv_cache_dtype, config.enable_prefix_caching, info.num_blocks, info.num_stages)
        assert len(facts) == len(CACHE_FACTS)
        self._make(Gauge, "vllm:cache_config_info").labels(*labels, *map(str, facts)).set(1)

    def on_tokens(self, count: int, first: bool, seconds: float) -> None:
        """`count` new tokens of a request, `seconds` after the ones before (or after its arrival)."""
        self.generation_tokens += count
        self._output_total.inc(count)
        (self._ttft if first else self._gap).observe(seconds)

    def on_prompt(self, count: int, num_cached: int) -> None:
        """A prompt of `count` tokens is there, so many of them from the prefix cache: its first output has come."""
        self.prompt_tokens += count
        self._prompt_total.inc(count)
        self._cached.inc(num_cached)
        self._computed.inc(count - num_cached)

    def on_finished(self, choice: Choice, arrival: float, first: float, last: float) -> None:
        """A request ended; times in seconds of the performance counter, `first` 0 without a token."""
        seen = self._histograms
        if choice.finish_reason in self._ended:
            self._ended[choice.finish_reason].inc()
        seen["e2e_request_latency_seconds"].observe(time.perf_counter() - arrival)
        seen["request_prompt_tokens"].observe(len(choice.prompt_token_ids))
        seen["request_generation_tokens"].observe(choice.num_output_tokens)
        seen["request_max_num_generation_tokens"].observe(choice.num_output_tokens)
        seen["request_params_n"].observe(1)
        if choice.sampling.max_tokens is not None:
            seen["request_params_max_tokens"].observe(choice.sampling.max_tokens)
        if not first:
            return
        queued = max(choice.queue_seconds, 0.0)
        seen["request_queue_time_seconds"].observe(queued)
        seen["request_prefill_time_seconds"].observe(max(first - arrival - queued, 0.0))
        seen["request_decode_time_seconds"].observe(last - first)
        seen["request_inference_time_seconds"].observe(max(last - arrival - queued, 0.0))
        if choice.num_output_tokens > 1:
            per_token = (last - first) / (choice.num_output_tokens - 1)
            seen["request_time_per_output_token_seconds"].observe(per_token)

    def on_unfinished(self) -> None:
        """A request went away before its end: client gone, refused by the engine, or failed."""
        self._cut_total.inc()

    def on_unknown_field(self) -> None:
        """A request had a field that nobody knows."""
        self._unknown_total.inc()

    def on_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """An HTTP answer is complete. `handler` is a route's path, never what a client wrote."""
        self._http_total.labels(handler, method, f"{status // 100}xx").inc()
        self._http_seconds.labels(handler, method).observe(seconds)

    def render(self) -> bytes:
        """The text that a Prometheus server reads."""
        return generate_latest(self.registry)
