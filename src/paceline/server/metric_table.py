"""Every metric there is: its name, kind, labels and meaning. Names are frozen: dashboards and alerts live by them.

The `vllm:` names, units, labels and buckets are those of vLLM, so that its dashboards and scrapers work unchanged;
`http_` are those of prometheus-fastapi-instrumentator, which vLLM uses; `paceline:` tell of the pipeline.
Counters are exposed with `_total` after their name. Every `vllm:` and `paceline:` metric also has the labels
`model_name` and `engine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from paceline.kv_cache.residency import AGE_BOUNDS


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


MODEL_LABELS = ("model_name", "engine")

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
_BATCH = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CHOICES = (1, 2, 5, 10, 20)
_HTTP = (0.1, 0.5, 1)
_STEP = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LINK = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


@dataclass(frozen=True)
class Row:
    """One metric; `labels` are those besides the model's, `buckets` the upper bounds of a histogram."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def all_labels(self) -> tuple[str, ...]:
        """As they are exposed."""
        return self.labels if self.name.startswith("http_") else (*MODEL_LABELS, *self.labels)


def _gauge(name: str, text: str, *labels: str) -> Row:
    return Row(name, Kind.GAUGE, text, labels)


def _counter(name: str, text: str, *labels: str) -> Row:
    return Row(name, Kind.COUNTER, text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Row:
    return Row(name, Kind.HISTOGRAM, text, labels, buckets)


CACHE_FACTS = ("block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks", "num_stages")
LORA_LABELS = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")

VLLM = (
    _gauge("vllm:num_requests_running", "Requests that are RUNNING."),
    _gauge("vllm:num_requests_waiting", "Requests that wait, or wait again after a preemption."),
    _gauge(
        "vllm:num_requests_waiting_by_reason",
        "Requests that wait: for a seat or blocks (capacity), or for something else (deferred).",
        "reason",
    ),
    _gauge("vllm:kv_cache_usage_perc", "Part of the KV cache in use; 1 is all of it."),
    _gauge("vllm:cache_config_info", "How the KV cache is set up; always 1.", *CACHE_FACTS),
    _gauge("vllm:engine_sleep_state", "1 for the state that the engine is in; it never sleeps.", "sleep_state"),
    _counter("vllm:prompt_tokens", "Prompt tokens, counted when a prompt has been computed."),
    _counter("vllm:prompt_tokens_by_source", "The same: computed, or found in the prefix cache.", "source"),
    _counter("vllm:generation_tokens", "Output tokens."),
    _counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    _counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    _counter("vllm:num_preemptions", "Preemptions."),
    _counter("vllm:request_success", "Requests that ended.", "finished_reason"),
    _histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", _TTFT),
    _histogram("vllm:inter_token_latency_seconds", "Between two outputs of a request.", _GAP),
    _histogram("vllm:request_time_per_output_token_seconds", "Mean per output token of a request.", _GAP),
    _histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", _LATENCY),
    _histogram("vllm:request_queue_time_seconds", "From arrival to the first batch.", _LATENCY),
    _histogram("vllm:request_inference_time_seconds", "From the first batch to the last token.", _LATENCY),
    _histogram("vllm:request_prefill_time_seconds", "From the first batch to the first token.", _LATENCY),
    _histogram("vllm:request_decode_time_seconds", "From the first token to the last.", _LATENCY),
    _histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", _TOKENS),
    _histogram("vllm:request_generation_tokens", "Output tokens per request.", _TOKENS),
    _histogram("vllm:request_max_num_generation_tokens", "Most output tokens of a request's answers.", _TOKENS),
    _histogram("vllm:request_params_n", "Answers asked for per prompt (n).", _CHOICES),
    _histogram("vllm:request_params_max_tokens", "max_tokens per request.", _TOKENS),
    _histogram("vllm:iteration_tokens_total", "Tokens per batch.", _BATCH),
    _histogram("vllm:kv_block_lifetime_seconds", "From when a KV block took its content until it lost it.", AGE_BOUNDS),
    _histogram(
        "vllm:kv_block_idle_before_evict_seconds",
        "From when a KV block was last held until it lost its content.",
        AGE_BOUNDS,
    ),
    _histogram(
        "vllm:kv_block_reuse_gap_seconds", "From one use of a KV block to a prefix hit that uses it again.", AGE_BOUNDS
    ),
    _gauge("vllm:lora_requests_info", "Requests by adapter; always 0: there are none.", *LORA_LABELS),
    _counter("vllm:spec_decode_num_drafts", "Drafts of speculative decoding; always 0: there is none."),
    _counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens; always 0."),
    _counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted; always 0."),
    _counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "The same by position in the draft; always 0.", "position"
    ),
)

HTTP = (
    _counter("http_requests", "HTTP requests answered.", "handler", "method", "status"),
    _histogram("http_request_duration_seconds", "Until an HTTP answer was complete.", _HTTP, "handler", "method"),
)

PACELINE = (
    _counter("paceline:batches", "Batches made."),
    _gauge("paceline:microbatches_in_flight", "Batches in flight."),
    _histogram("paceline:microbatch_tokens", "Tokens per batch.", _BATCH),
    _histogram("paceline:stage_step_seconds", "A stage's time for one batch.", _STEP, "stage", "phase"),
    _counter("paceline:stage_busy_seconds", "Time in which a stage worked.", "stage"),
    _counter("paceline:stage_idle_seconds", "Time in which a stage did not work, by cause.", "stage", "cause"),
    _counter("paceline:stage_cpu_seconds", "CPU time of a stage's work.", "stage"),
    _gauge(
        "paceline:bubble_ratio", "Part of the stages' time, in the last 10 s, that they idled although there was work."
    ),
    _gauge("paceline:stage_imbalance_ratio", "Busiest stage ÷ mean, in the last 10 s; 0 if none worked."),
    _gauge("paceline:last_step_age_seconds", "Since a stage finished its latest batch.", "stage"),
    _histogram(
        "paceline:link_send_seconds",
        "From when activations left a stage until the next one had them, waiting for a busy stage included.",
        _LINK,
        "from",
        "to",
    ),
    _counter("paceline:link_bytes", "Bytes of activations sent from stage to stage.", "from", "to"),
    _gauge("paceline:kv_blocks_free", "Blocks of a stage's KV cache that nobody holds.", "stage"),
    _counter("paceline:requests_cut", "Requests that ended without a finish reason."),
    _counter("paceline:unknown_request_fields", "Request fields that nobody knows, ignored."),
)

TABLE: dict[str, Row] = {row.name: row for row in (*VLLM, *HTTP, *PACELINE)}


def golden_lines() -> Iterator[str]:
    """One line per metric, as `tests/data/metrics.txt` keeps them."""
    for row in TABLE.values():
        name = row.name + "_total" * (row.kind is Kind.COUNTER)
        bounds = f" [{', '.join(f'{bound:g}' for bound in row.buckets)}]" if row.buckets else ""
        yield f"{row.kind.value} {name}{{{','.join(row.all_labels)}}}{bounds}"
