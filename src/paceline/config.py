"""Every option of Paceline, declared once.

A field of :class:`EngineConfig` or :class:`ServerConfig` *is* the declaration: its name gives the flag
(``--max-num-seqs``), the environment variable (``PACELINE_MAX_NUM_SEQS``) and the YAML key; its type, bounds
and choices are checked whenever a config is made, wherever the values came from. ``paceline.cli.options``
layers the sources (flag > environment > YAML > default); ``docs/options.md`` is made from the same table.

Configs are frozen and travel to child processes as JSON; whoever reads them checks them again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.option_table import check_all, option, parse_int

MODEL, PIPELINE, SCHEDULER, CACHE = "Model", "Pipeline", "Scheduler", "KV cache"
SERVER, API, LOGGING, TRACE = "Server", "API", "Logging", "Trace"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine needs to know: model, pipeline, scheduler, KV cache."""

    model: str | None = option(
        None, MODEL, "Folder, .gguf file, known name or Hugging Face id. Not given: SmolLM2-135M-Instruct."
    )
    tokenizer: str | None = option(None, MODEL, "Folder or .gguf file of the tokenizer. Not given: the model's own.")
    revision: str | None = option(None, MODEL, "Branch, tag or commit on the Hugging Face hub.")
    served_model_name: tuple[str, ...] = option(
        (), MODEL, "Names under which clients know the model; the first is used in answers."
    )
    download_dir: str | None = option(None, MODEL, "Where downloads go. Not given: the user's cache folder.")
    offline: bool = option(False, MODEL, "Never use the network to find a model.")
    load_format: str = option(
        "auto",
        MODEL,
        "Format of the weights; dummy: random weights.",
        choices=("auto", "safetensors", "gguf", "dummy"),
    )
    dtype: str = option(
        "auto",
        MODEL,
        "Type of weights and activations; auto: the fastest here.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str = option(
        "auto",
        MODEL,
        "Type of the weight matrices; auto: what the files hold; none: floats. Others are made while loading.",
        choices=("auto", "none", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"),
    )
    linear_backend: str = option(
        "auto",
        MODEL,
        "Matrix products; packed: weights stay in their blocks (float32 on a CPU); torch: as tensors of --dtype.",
        choices=("auto", "packed", "torch"),
    )
    activation_dtype: str = option(
        "float32",
        MODEL,
        "What products get; int8: rows rounded to 8 bits against 8-bit weights. Faster, approximate (CPU).",
        choices=("float32", "int8"),
    )
    seed: int = option(0, MODEL, "Seed of random weights (--load-format dummy).", low=0, high=2**63 - 1)
    max_model_len: int | None = option(
        None, MODEL, "Most tokens of prompt and output together. Not given: the model's limit.", low=2
    )
    device: str = option("cpu", MODEL, "Where the layers run.", choices=("cpu", "cuda"))

    pipeline_parallel_size: int = option(
        1,
        PIPELINE,
        "Number of stages: the layers are split over as many processes.",
        low=1,
        high=1024,
        short="-pp",
    )
    pipeline: str = option(
        "auto",
        PIPELINE,
        "inline: all stages in one process; processes: one process per stage (auto).",
        choices=("auto", "inline", "processes"),
    )
    layer_split: str = option(
        "auto",
        PIPELINE,
        "Layers per stage, such as 18,12; auto balances the work, embedding and head included.",
    )
    expected_prompt_share: float = option(
        0.67,
        PIPELINE,
        "Part of all computed tokens that are prompt tokens; the automatic split balances this mix.",
        low=0.0,
        high=1.0,
    )
    stage_weights: str = option(
        "", PIPELINE, "Speed of each stage's worker relative to the others, such as 2,1. Not given: all the same."
    )
    stage_memory: str = option(
        "", PIPELINE, "Memory of each stage for its weights, such as 24G,16G. Not given: no limit to the split."
    )
    threads_per_stage: int = option(
        0, PIPELINE, "Threads of each stage; 0: processor cores ÷ stages.", low=0, high=4096
    )
    loop_back: bool = option(
        True, PIPELINE, "Hand sampled tokens straight to the first stage, and schedule decodes one round ahead."
    )
    pin_threads: bool = option(True, PIPELINE, "Keep each stage on its own cores.")

    profile: bool = option(
        False, PIPELINE, "Time every kind of operation in each stage, and write a table of them at the end."
    )

    max_num_seqs: int = option(256, SCHEDULER, "Most requests RUNNING at once, over all batches.", low=1, high=65536)
    max_num_batched_tokens: int = option(256, SCHEDULER, "Most tokens in one batch (micro-batch).", low=1, high=2**20)
    enable_chunked_prefill: bool = option(True, SCHEDULER, "Let a long prompt go through in several chunks.")
    scheduling_policy: str = option(
        "fcfs",
        SCHEDULER,
        "fcfs: in order of arrival; priority: lowest priority number first.",
        choices=("fcfs", "priority"),
    )
    pacing: str = option(
        "auto",
        SCHEDULER,
        "How much goes into a batch. greedy: all that fits; throttle: even numbers of tokens; paced: equal time; "
        "auto: paced for more than one stage.",
        choices=("auto", "greedy", "throttle", "paced"),
    )
    target_tpot_ms: float | None = option(
        None,
        SCHEDULER,
        "Milliseconds per output token that --pacing paced keeps to while it can, at the cost of first tokens.",
        low=0.001,
        high=1e6,
    )
    max_num_queued_reqs: int = option(
        1024,
        SCHEDULER,
        "Most unfinished requests that are not RUNNING; more are answered 429.",
        low=1,
        high=2**20,
    )

    block_size: int = option(
        16, CACHE, "Tokens per KV cache block; multiples of 16 are fastest on CPUs.", low=1, high=1024
    )
    num_blocks: int | None = option(
        None, CACHE, "KV cache blocks. Not given: as many as the memory allows.", low=1, high=2**31 - 1
    )
    kv_cache_memory_bytes: int | None = option(
        None, CACHE, "Bytes of KV cache per stage, such as 2G. Not given: from free memory.", low=1
    )
    memory_utilization: float = option(
        0.6, CACHE, "Part of the free memory that the KV cache may take.", low=0.01, high=1.0
    )
    kv_cache_dtype: str = option(
        "auto",
        CACHE,
        "Type of keys and values in the cache; auto: float16 where --dtype is float32, else the same.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    enable_prefix_caching: bool = option(True, CACHE, "Share the blocks of equal prompt beginnings.")

    trace_bytes: int = option(
        16 * 2**20,
        TRACE,
        "Memory for the record of what the pipeline did; the oldest of it is forgotten.",
        low=64 * 2**10,
        high=2**34,
    )
    trace_text: bool = option(False, TRACE, "Let the record hold what is said: token ids of prompts and answers.")
    trace_file: str | None = option(None, TRACE, "File to which the record is written, too, one JSON line per event.")
    trace_file_bytes: int = option(
        64 * 2**20,
        TRACE,
        "When the trace file is so large it becomes FILE.1, and a new one begins.",
        low=2**20,
        high=2**40,
    )

    def __post_init__(self) -> None:
        check_all(self)
        in_floats = self.device == "cpu" and self.dtype in ("auto", "float32")
        if self.linear_backend == "packed" and not in_floats:
            problem = f"computes in float32 on a CPU, and --device is {self.device}, --dtype {self.dtype}"
            raise ConfigError("linear_backend", "packed", problem, "Use --linear-backend auto.")
        if self.activation_dtype == "int8" and (self.linear_backend == "torch" or not in_floats):
            problem = f"needs packed weights, and --device is {self.device}, --dtype {self.dtype}, "
            problem += f"--linear-backend {self.linear_backend}"
            raise ConfigError("activation_dtype", "int8", problem, "Use --activation-dtype float32.")
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError(
                "num_blocks",
                self.num_blocks,
                "is given together with --kv-cache-memory-bytes",
                "Give only one of them.",
            )
        self._check_layer_split()
        self.numbers_per_stage("stage_weights")
        self.numbers_per_stage("stage_memory")

    @property
    def pacing_policy(self) -> str:
        """The pacing that `auto` stands for; a single stage has nothing to balance."""
        if self.pacing != "auto":
            return self.pacing
        return "paced" if self.pipeline_parallel_size > 1 else "greedy"

    def numbers_per_stage(self, name: str) -> list[float] | None:
        """The numbers of an option that has one for each stage; None if it is not given.

        Raises:
            ConfigError: they are no positive numbers, or not one per stage.
        """
        text: str = getattr(self, name)
        if not text:
            return None
        stages = self.pipeline_parallel_size
        try:
            values = [float(parse_int(part) if name == "stage_memory" else part) for part in text.split(",")]
        except ValueError:
            values = []
        if len(values) != stages or not all(0.0 < value < math.inf for value in values):
            fix = f"Give {stages}, such as {','.join(['24G' if name == 'stage_memory' else '1.5'] * stages)}."
            raise ConfigError(name, text, "is no list of one positive number per stage", fix)
        return values

    def _check_layer_split(self) -> None:
        if self.layer_split == "auto":
            return
        parts = self.layer_split.split(",")
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            raise ConfigError(
                "layer_split",
                self.layer_split,
                "is no list of layer counts",
                "Use auto, or counts such as 18,12.",
            )
        if len(parts) != self.pipeline_parallel_size:
            raise ConfigError(
                "layer_split",
                self.layer_split,
                f"has {len(parts)} part(s), but there are {self.pipeline_parallel_size} stage(s)",
                f"Give {self.pipeline_parallel_size} counts, or set --pipeline-parallel-size {len(parts)}.",
            )


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """What only the HTTP server needs to know; never leaves its process."""

    host: str = option("127.0.0.1", SERVER, "Address to listen on; 0.0.0.0 is every network of this machine.")
    port: int = option(8000, SERVER, "Port to listen on; 0: any free one.", low=0, high=65535)
    api_key: tuple[str, ...] = option(
        (),
        SERVER,
        "Keys that clients must send; prefer PACELINE_API_KEY (comma-separated): flags are visible.",
        secret=True,
    )
    admin_api_key: str | None = option(
        None,
        SERVER,
        "Key that may see and abort every request; prefer PACELINE_ADMIN_API_KEY.",
        secret=True,
    )
    allowed_hosts: tuple[str, ...] = option(
        (), SERVER, "Host headers to accept. Not given: local names when listening locally, else any."
    )
    max_request_bytes: int = option(8 * 2**20, SERVER, "Largest request body.", low=1024, high=2**30)
    shutdown_timeout: float = option(
        30.0, SERVER, "Seconds that running requests may go on after SIGTERM.", low=0, high=86400
    )

    chat_template: str | None = option(None, API, "File with a chat template to use instead of the model's own.")
    generation_config: str = option(
        "auto", API, "auto: the model's own sampling defaults; vllm: OpenAI's.", choices=("auto", "vllm")
    )
    enable_force_include_usage: bool = option(False, API, "Send usage in every stream, asked for or not.")
    sse_keep_alive: float = option(
        15.0,
        API,
        "Seconds of silence in a stream after which a comment keeps its connection alive; 0: none.",
        low=0,
        high=3600,
    )
    enable_request_id_headers: bool = option(False, API, "Add an X-Request-Id header to every answer.")

    log_stats_interval: float = option(
        10.0, LOGGING, "Seconds between lines about throughput while working; 0: none.", low=0, high=86400
    )
    otlp_traces_endpoint: str | None = option(
        None, LOGGING, "OTLP/HTTP address of an OpenTelemetry collector that gets a span per request (paceline[otel])."
    )
    enable_log_requests: bool = option(False, LOGGING, "Log one line when a request arrives and ends (no prompts).")
    uvicorn_log_level: str = option(
        "warning",
        LOGGING,
        "Log level of the HTTP layer; info logs each HTTP request.",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
    )

    def __post_init__(self) -> None:
        check_all(self)
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and (not endpoint.startswith(("http://", "https://")) or not endpoint.split("://")[1]):
            fix = "Give such as http://localhost:4318 (OTLP over HTTP, not gRPC)."
            raise ConfigError("otlp_traces_endpoint", endpoint, "is no http address", fix)
