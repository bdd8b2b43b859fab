"""What travels between Paceline's processes: typed structs, encoded with msgpack.

Three conversations use them:

* front end to engine core: requests, aborts; back: tokens, state;
* engine core to every stage: plans; back from the last stage: results;
* stage to next stage: an :class:`ActivationHeader` followed by raw tensor bytes; last stage to first, with token
  loop-back: :class:`LoopedTokens`.

Plans are deltas: a stage is told of a request once (``Plan.new_requests``), then only of the new
blocks and tokens of each slice, until ``Plan.released`` names it. The structs made per token hold no cycles and are kept from the
garbage collector (`gc=False`).
"""

from __future__ import annotations

import msgspec

from paceline.sampling_params import SamplingParams

# ---------------------------------------------------------------- engine core -> stages


PLACEHOLDER = -1  # stands for an input token that the last stage hands to stage 0, before the core knows it


class NewRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tells the stages of a request, once, in the first plan that has a slice of it."""

    request: int
    generation: int
    num_prompt_tokens: int
    sampling: SamplingParams  # seed is always set
    eos_token_ids: tuple[int, ...]


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's part in a batch: positions [start, start + len(token_ids))."""

    request: int  # the core's own number, never reused while the engine lives
    generation: int  # changes on finish, abort and restart
    start: int  # first token position
    token_ids: list[int]  # the input tokens at these positions; or one PLACEHOLDER alone
    samples: bool  # a token is sampled after the last of them
    blocks_from: int  # the request's block table keeps its first `blocks_from` entries ...
    new_blocks: list[int]  # ... followed by these

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def runs_ahead(self) -> bool:
        """Scheduled before its token was known."""
        return self.token_ids[0] == PLACEHOLDER


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One micro-batch, immutable; every stage executes plans in the order of `batch`."""

    epoch: int
    batch: int
    slices: list[Slice]
    new_requests: list[NewRequest]
    released: list[int]  # requests the stages may forget before running this plan


# ---------------------------------------------------------------- stages -> engine core


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log probabilities at one output position, most likely alternative first.

    `token` is the sampled token's own; `rank` its 1-based rank in the whole vocabulary.
    Values are of the distribution before temperature and filters, always finite.
    """

    token: float
    rank: int
    top_ids: list[int]
    top: list[float]


class SampledToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of one slice that samples."""

    request: int
    generation: int
    token_id: int  # -1 when `error` says why there is none
    logprobs: TokenLogprobs | None = None
    error: str = ""


class StageTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When one stage worked on one batch: seconds of that host's monotonic clock.

    A stage is busy from `started` (plan and activations in hand) to `finished` (output computed). Its input are the
    activations; on stage 0 the tokens that the plan has placeholders for, else the plan itself.
    """

    stage: int
    plan_received: float
    input_received: float
    started: float
    finished: float
    cpu_seconds: float  # CPU time of the stage's thread in between
    sent: float = 0.0  # right before the output was handed to the socket


class BatchResult(msgspec.Struct, frozen=True, array_like=True):
    """A batch that went through every stage: the tokens in slice order, and each stage's times."""

    epoch: int
    batch: int
    tokens: list[SampledToken]
    times: list[StageTimes]


class LoopedToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sampled token on its way from the last stage to stage 0, where it is the input at `position`."""

    request: int
    generation: int
    position: int
    token_id: int  # -1: a tombstone, sampling failed; whatever is computed from it will be dropped


class LoopedTokens(msgspec.Struct, frozen=True, array_like=True):
    """What a batch sampled, from the last stage straight to stage 0; on the way to the core it is a `BatchResult`."""

    epoch: int
    batch: int
    tokens: list[LoopedToken]


class ActivationHeader(msgspec.Struct, frozen=True, array_like=True):
    """Goes before the hidden states of a batch on the link between two stages."""

    epoch: int
    batch: int
    shape: tuple[int, int]  # rows, hidden size
    dtype: str
    times: list[StageTimes]  # of the stages that this batch has passed


# ---------------------------------------------------------------- front end -> engine core


class AddRequest(msgspec.Struct, frozen=True, tag="add"):
    """A tokenized, validated request. `request_id` is made by the front end and unique."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams  # seed is always set
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None  # seconds from arrival to FINISHED_TIMEOUT
    label: str = ""  # the client's own name for it; only ever shown
    owner: str = ""  # stands for the API key it came with; only ever recorded


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    request_ids: list[str]


class FinishRequest(msgspec.Struct, frozen=True, tag="finish"):
    """The detokenizer found a stop string: output tokens past `num_output_tokens` never existed."""

    request_id: str
    num_output_tokens: int


class ReadTrace(msgspec.Struct, frozen=True, tag="read_trace"):
    """Asks for some of the record, from byte `begin` of it on; one :class:`TraceChunk` comes back."""

    begin: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine. The front end has drained or aborted its requests before it says so."""


ToCore = AddRequest | AbortRequests | FinishRequest | ReadTrace | Shutdown

# ---------------------------------------------------------------- engine core -> front end


class RequestOutput(msgspec.Struct, array_like=True, gc=False):
    """New tokens of one request, and its end when it has ended."""

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    status: str = ""  # a FINISHED_* status name when ended, else ""
    stop_token_id: int | None = None  # the token that stopped it, for FINISHED_STOPPED
    error: str = ""  # text for FINISHED_ERROR and FINISHED_REFUSED
    num_cached_tokens: int = -1  # prompt tokens found in the prefix cache; -1: not yet admitted
    queue_seconds: float = -1.0  # arrival in the core to first admission; -1: not yet admitted


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    outputs: list[RequestOutput]


class CoreProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Start-up: what a stage (or the core, stage -1) is doing, for logs and progress bars."""

    stage: int
    phase: str  # such as "loading weights"
    done: float  # 0 to 1


class CoreReady(msgspec.Struct, frozen=True, tag="ready"):
    """The pipeline can take requests."""

    num_blocks: int
    block_size: int
    max_model_len: int
    num_stages: int
    layer_split: list[int]
    dtype: str
    activation_bytes: int = 0  # per token, from one stage to the next


class CoreFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot start or go on; `error` is the real reason, from wherever it arose."""

    error: str


class BlockAges(msgspec.Struct, frozen=True):
    """A histogram of seconds; its bounds are in `kv_cache/residency.py`."""

    counts: list[int] = []  # per bucket, not cumulative; empty before the first report
    seconds: float = 0.0  # their sum


class CoreStats(msgspec.Struct, frozen=True, tag="stats"):
    """Counters since start and current gauges; sent at most a few times a second, and only on change."""

    num_running: int
    num_waiting: int
    num_blocks_used: int
    num_blocks: int
    num_batches: int
    num_batches_in_flight: int
    num_preemptions: int
    prefix_cache_queries: int  # in tokens
    prefix_cache_hits: int  # in tokens
    stage_busy_seconds: list[float]
    stage_cpu_seconds: list[float]
    wall_seconds: float  # since the core was ready
    num_deferred: int = 0  # of those that wait, the ones that wait for something other than seats and blocks
    block_lifetime: BlockAges = BlockAges()
    block_idle: BlockAges = BlockAges()
    block_reuse_gap: BlockAges = BlockAges()


class TraceChunk(msgspec.Struct, frozen=True, tag="trace"):
    """Whole lines of the record, bytes `begin` to `end` of it; so far it goes up to `total`."""

    begin: int
    end: int
    total: int
    now: float  # the core's clock
    lines: bytes


FromCore = Outputs | CoreProgress | CoreReady | CoreFailed | CoreStats | TraceChunk
