"""Metrics under the names that vLLM's dashboards and scrapers know, and Paceline's own for the pipeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from paceline.config import EngineConfig
from paceline.messages import CoreReady
from paceline.server.core_metrics import CoreCollector, StatsSource

if TYPE_CHECKING:
    from paceline.engine.choice import Choice

_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_GAP = (0.005, 0.01, 0.02, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_LABELS = ("model_name", "engine")

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Seconds from arrival to the first token.", _TTFT),
    "inter_token_latency_seconds": ("Seconds between two outputs of a request.", _GAP),
    "request_time_per_output_token_seconds": ("Mean seconds per output token of a request.", _GAP),
    "e2e_request_latency_seconds": ("Seconds from arrival to the end.", _LATENCY),
    "request_queue_time_seconds": ("Seconds from arrival to the first batch.", _LATENCY),
    "request_prefill_time_seconds": ("Seconds from the first batch to the first token.", _LATENCY),
    "request_decode_time_seconds": ("Seconds from the first token to the last.", _LATENCY),
    "request_inference_time_seconds": ("Seconds from the first batch to the last token.", _LATENCY),
    "request_prompt_tokens": ("Prompt tokens per request.", _TOKENS),
    "request_generation_tokens": ("Output tokens per request.", _TOKENS),
    "request_params_max_tokens": ("max_tokens per request.", _TOKENS),
}


class Metrics:
    """Counters and histograms of one server; silent until :meth:`attach` names the model."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._model = ""
        self._core = CoreCollector()
        self.registry.register(self._core)
        self._families = {
            name: Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self.registry)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._prompt = self._counter("prompt_tokens", "Prompt tokens, counted when a prompt is computed.")
        self._output = self._counter("generation_tokens", "Output tokens.")
        self._success = Counter(
            "vllm:request_success", "Requests that ended.", (*_LABELS, "finished_reason"), registry=self.registry
        )
        self._cut = Counter(
            "paceline:requests_cut", "Requests that ended without a finish reason.", _LABELS, registry=self.registry
        )

        self.unknown_fields = Counter(
            "paceline:unknown_request_fields", "Request fields that nobody knows, ignored.", registry=self.registry
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self.registry)

    def attach(self, model: str, info: CoreReady, config: EngineConfig, core: StatsSource) -> None:
        """Name the model, and read the engine core's own counters from `core` from now on."""
        self._model = model
        labels = (model, "0")
        self._core.attach(labels, core)
        self._histograms = {name: family.labels(*labels) for name, family in self._families.items()}
        self._ttft = self._histograms["time_to_first_token_seconds"]
        self._gap = self._histograms["inter_token_latency_seconds"]
        self._prompt_total, self._output_total = self._prompt.labels(*labels), self._output.labels(*labels)
        self._cut_total = self._cut.labels(*labels)
        for reason in ("stop", "length", "abort"):
            self._success.labels(*labels, reason)
        facts = {
            "block_size": str(info.block_size),
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": str(config.enable_prefix_caching),
            "num_gpu_blocks": str(info.num_blocks),
            "num_stages": str(info.num_stages),
        }
        gauge = Gauge(
            "vllm:cache_config_info", "How the KV cache is set up.", (*_LABELS, *facts), registry=self.registry
        )
        gauge.labels(*labels, *facts.values()).set(1)

    def on_tokens(self, count: int, first: bool, seconds: float) -> None:
        """`count` new tokens of a request, `seconds` after the ones before (or after its arrival)."""
        self.generation_tokens += count
        self._output_total.inc(count)
        (self._ttft if first else self._gap).observe(seconds)

    def on_prompt(self, count: int) -> None:
        """A prompt of `count` tokens is computed: its first output is there."""
        self.prompt_tokens += count
        self._prompt_total.inc(count)

    def on_finished(self, choice: Choice, arrival: float, first: float, last: float) -> None:
        """A request ended; times in seconds of the performance counter, `first` 0 without a token."""
        seen = self._histograms
        self._success.labels(self._model, "0", choice.finish_reason).inc()
        seen["e2e_request_latency_seconds"].observe(time.perf_counter() - arrival)
        seen["request_prompt_tokens"].observe(len(choice.prompt_token_ids))
        seen["request_generation_tokens"].observe(choice.num_output_tokens)
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

    def render(self) -> bytes:
        """The text that a Prometheus server reads."""
        return generate_latest(self.registry)
