"""Counts what the server does; `metric_table.py` has the names and what they mean."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest

from paceline.config import EngineConfig
from paceline.messages import CoreReady
from paceline.server.core_metrics import CoreCollector, StatsSource
from paceline.server.metric_maker import MetricMaker
from paceline.server.metric_table import CACHE_FACTS
from paceline.server.pipeline_metrics import PipelineMetrics

if TYPE_CHECKING:
    from paceline.engine.choice import Choice

_OF_A_REQUEST = (
    "e2e_request_latency_seconds",
    "request_time_per_output_token_seconds",
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
    """Counters and histograms of one server; those of the model exist once :meth:`attach` has named it.

    Attributes:
        pipeline: those that come from the record; None before :meth:`attach`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.pipeline: PipelineMetrics | None = None
        self._http = MetricMaker(self.registry)
        ProcessCollector(registry=self.registry)

    def attach(self, model: str, info: CoreReady, config: EngineConfig, core: StatsSource) -> None:
        """Name the model, and read the engine core's own counters from `core` from now on."""
        labels = (model, "0")
        self.registry.register(CoreCollector(labels, core, info.num_blocks, info.num_stages))
        make = MetricMaker(self.registry, labels)
        self.pipeline = PipelineMetrics(make, info.num_stages, info.activation_bytes)
        self._ttft = make.histogram("vllm:time_to_first_token_seconds")
        self._gap = make.histogram("vllm:inter_token_latency_seconds")
        self._seen = {name: make.histogram(f"vllm:{name}") for name in _OF_A_REQUEST}
        self._prompt, self._output = make.counter("vllm:prompt_tokens"), make.counter("vllm:generation_tokens")
        self._computed = make.counter("vllm:prompt_tokens_by_source", "local_compute")
        self._cached = make.counter("vllm:prompt_tokens_by_source", "local_cache_hit")
        self._ended = {reason: make.counter("vllm:request_success", reason) for reason in FINISH_REASONS}
        self._cut = make.counter("paceline:requests_cut")
        self._unknown = make.counter("paceline:unknown_request_fields")
        make.gauge("vllm:engine_sleep_state", "awake").set(1)
        _expose_what_is_always_zero(make)
        facts = (info.block_size, config.kv_cache_dtype, config.enable_prefix_caching, info.num_blocks, info.num_stages)
        assert len(facts) == len(CACHE_FACTS)
        make.gauge("vllm:cache_config_info", *map(str, facts)).set(1)

    def on_tokens(self, count: int, first: bool, seconds: float) -> None:
        """`count` new tokens of a request, `seconds` after the ones before (or after its arrival)."""
        self.generation_tokens += count
        self._output.inc(count)
        (self._ttft if first else self._gap).observe(seconds)

    def on_prompt(self, count: int, num_cached: int) -> None:
        """A prompt of `count` tokens is there, so many of them from the prefix cache: its first output has come."""
        self.prompt_tokens += count
        self._prompt.inc(count)
        self._cached.inc(num_cached)
        self._computed.inc(count - num_cached)

    def on_finished(self, choice: Choice, arrival: float, first: float, last: float) -> None:
        """A request ended; times in seconds of the performance counter, `first` 0 without a token."""
        seen = self._seen
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
        self._cut.inc()

    def on_unknown_fields(self, number: int) -> None:
        """A request had so many fields that nobody knows."""
        self._unknown.inc(number)

    def on_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """An HTTP answer is complete. `handler` is a route's path, never what a client wrote."""
        self._http.counter("http_requests", handler, method, f"{status // 100}xx").inc()
        self._http.histogram("http_request_duration_seconds", handler, method).observe(seconds)

    def render(self) -> bytes:
        """The text that a Prometheus server reads."""
        return generate_latest(self.registry)


def _expose_what_is_always_zero(make: MetricMaker) -> None:
    """vLLM's metrics of adapters and drafts, so that panels and alerts on them say 0 and not "no data"."""
    make.gauge("vllm:lora_requests_info", "0", "", "").set(0)
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        make.counter(f"vllm:spec_decode_{name}")
    make.counter("vllm:spec_decode_num_accepted_tokens_per_pos", "0")
