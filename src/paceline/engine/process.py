"""The engine core as a program: ``python -m paceline.engine.process``, started by :mod:`paceline.engine.client`.

It opens the model's headers, splits the layers, starts the pipeline and then steps the core until the front end says
stop. It never imports torch unless the stages run in this very process (``--pipeline inline``).
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import zmq

from paceline.config import EngineConfig
from paceline.engine.core import EngineCore
from paceline.engine.costs import KnownCosts
from paceline.errors import PacelineError, PipelineError, RequestError
from paceline.messages import (
    AddRequest,
    CoreFailed,
    CoreProgress,
    CoreReady,
    FromCore,
    Outputs,
    RequestOutput,
    ToCore,
)
from paceline.models.context import context_length
from paceline.pipeline import wire
from paceline.pipeline.build import (
    cache_blocks,
    layer_ranges,
    load_stage,
    now_and_then,
    open_model,
    resolved_cache_dtype,
    resolved_dtype,
    torch_dtype,
)
from paceline.pipeline.child import end, end_with_parent, read_config
from paceline.pipeline.processes import ProcessPipeline
from paceline.pipeline.seam import Pipeline
from paceline.sampling_params import validate, validate_request
from paceline.scheduling import SchedulerOptions
from paceline.trace import Recorder
from paceline.trace.events import Facts
from paceline.trace.file import TraceFile
from paceline.weights.checkpoint import Checkpoint

STATS_INTERVAL = 0.25  # seconds


class CoreConfig(msgspec.Struct, frozen=True):
    """What the core reads from its standard input at the start."""

    engine: EngineConfig
    model_path: str
    mail: str


class Mail:
    """The core's end of the conversation with the front end."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.socket = wire.make_socket(context, zmq.PAIR)
        self.socket.connect(address)
        self._decoder = msgspec.msgpack.Decoder(ToCore)
        self._encoder = msgspec.msgpack.Encoder()
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._poller.register(sys.stdin.fileno(), zmq.POLLIN)

    def drain(self) -> list[ToCore]:
        messages: list[ToCore] = []
        while self.socket.poll(0):
            messages.append(self._decoder.decode(self.socket.recv()))
        return messages

    def wait(self, timeout: float | None) -> None:
        """Block until mail is there, or the front end has gone."""
        events = dict(self._poller.poll(wire.milliseconds(timeout)))
        if sys.stdin.fileno() in events and self.socket not in events:
            raise PipelineError("the front end has gone")

    def send(self, message: FromCore) -> None:
        self.socket.send(self._encoder.encode(message))


def start_pipeline(
    config: CoreConfig, checkpoint: Checkpoint, costs: KnownCosts, mail: Mail, context: zmq.Context[Any]
) -> tuple[Pipeline, CoreReady]:
    """Split the layers, load every stage, and size the KV cache.

    Raises:
        PacelineError: whatever keeps the pipeline from starting, as the user should read it.
    """
    engine = config.engine
    split = costs.split()
    max_model_len = context_length(checkpoint.spec, engine.max_model_len)
    if engine.pipeline == "inline":
        pipeline, num_blocks = _inline(engine, checkpoint, layer_ranges(split), max_model_len, mail)
    else:
        processes = ProcessPipeline(
            engine, Path(config.model_path), layer_ranges(split), max_model_len, mail.socket, context
        )
        try:
            num_blocks, _ = processes.load(mail.send)
        except BaseException:
            processes.close()
            raise
        pipeline = processes
    ready = CoreReady(
        num_blocks=num_blocks,
        block_size=engine.block_size,
        max_model_len=min(max_model_len, num_blocks * engine.block_size),
        num_stages=len(split),
        layer_split=split,
        dtype=resolved_dtype(engine),
        activation_bytes=checkpoint.spec.hidden_size * (4 if resolved_dtype(engine) == "float32" else 2),
    )
    return pipeline, ready


def _inline(
    engine: EngineConfig, checkpoint: Checkpoint, ranges: list[tuple[int, int]], max_model_len: int, mail: Mail
) -> tuple[Pipeline, int]:
    import torch

    from paceline.host import available_memory, usable_cores
    from paceline.pipeline.inline import InlinePipeline
    from paceline.pipeline.stage import StageRunner

    torch.set_num_threads(engine.threads_per_stage or len(usable_cores()))
    cache_dtype = torch_dtype(resolved_cache_dtype(engine))
    models = []
    for stage, layers in enumerate(ranges):

        def report(done: float, stage: int = stage) -> None:
            mail.send(CoreProgress(stage, "loading weights", done))

        models.append(load_stage(engine, checkpoint, layers, max_model_len, now_and_then(report)))
    sizes = [model.cache_bytes_per_block(engine.block_size, cache_dtype) for model in models]
    num_blocks = cache_blocks(engine, sizes, [available_memory()], max_model_len)
    for model in models:
        model.allocate_cache(num_blocks, engine.block_size, cache_dtype)
    stages = [StageRunner(model, engine.block_size) for model in models]
    return InlinePipeline(stages, mail.wait, loop_back=engine.loop_back), num_blocks


def scheduler_options(engine: EngineConfig, ready: CoreReady, costs: KnownCosts) -> SchedulerOptions:
    return SchedulerOptions(
        stages=ready.num_stages,
        loop_back=engine.loop_back,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=engine.block_size,
        num_blocks=ready.num_blocks,
        max_model_len=ready.max_model_len,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        enable_prefix_caching=engine.enable_prefix_caching,
        scheduling_policy="priority" if engine.scheduling_policy == "priority" else "fcfs",
        pacing=engine.pacing_policy,
        target_tpot=None if engine.target_tpot_ms is None else engine.target_tpot_ms / 1e3,
        cost=costs.stages(ready.layer_split),
        cost_is_calibrated=costs.profile is not None,
    )


def run(config: CoreConfig) -> int:
    """Serve until told to stop; returns the exit code."""
    context: zmq.Context[Any] = zmq.Context()
    mail = Mail(context, config.mail)
    pipeline: Pipeline | None = None
    started = time.monotonic()
    try:
        file = None
        if config.engine.trace_file is not None:
            file = TraceFile(Path(config.engine.trace_file), config.engine.trace_file_bytes)
        mail.send(CoreProgress(-1, "reading the model's headers", 0.0))
        checkpoint = open_model(config.engine, Path(config.model_path))
        costs = KnownCosts(config.engine, checkpoint.spec, Path(config.model_path))
        pipeline, ready = start_pipeline(config, checkpoint, costs, mail, context)
        recorder = make_recorder(config, ready, started, file)
        if isinstance(pipeline, ProcessPipeline):
            recorder.clocks(pipeline.clocks())
            pipeline.on_clocks = recorder.clocks
        options = scheduler_options(config.engine, ready, costs)
        _serve(options, pipeline, mail, ready, checkpoint.spec.vocab_size, recorder)
        return 0
    except PacelineError as error:
        mail.send(CoreFailed(str(error)))
        return 1
    except Exception as error:  # the one place where the core's own failure becomes a message
        traceback.print_exc()
        mail.send(CoreFailed(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        if pipeline is not None:
            pipeline.close()
        context.destroy(linger=1000)


def make_recorder(config: CoreConfig, ready: CoreReady, started: float, file: TraceFile | None) -> Recorder:
    engine = config.engine
    facts = Facts(
        model=engine.served_model_name[0] if engine.served_model_name else Path(config.model_path).name,
        stages=ready.num_stages,
        depth=ready.num_stages + engine.loop_back,
        layers=ready.layer_split,
        num_blocks=ready.num_blocks,
        block_size=ready.block_size,
        pacing=engine.pacing_policy,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        started=started,
        ready=time.monotonic(),
    )
    return Recorder(time.monotonic, facts, engine.trace_bytes, keep_tokens=engine.trace_text, file=file)


def _serve(
    options: SchedulerOptions, pipeline: Pipeline, mail: Mail, ready: CoreReady, vocab_size: int, recorder: Recorder
) -> None:
    """Step until told to stop.

    Raises:
        PipelineError: the pipeline failed; every request has been told so.
    """
    last_stats = 0.0
    told_in_flight = 0

    def tell_stats() -> None:
        nonlocal told_in_flight
        stats = core.stats()
        told_in_flight = stats.num_batches_in_flight
        mail.send(stats)

    def emit(outputs: list[RequestOutput]) -> None:
        """Outputs, and before them the core's figures: at most a few times a second, and at the last ending.

        Before, so that whoever has seen an answer end finds it counted.
        """
        nonlocal last_stats
        now = time.monotonic()
        if now - last_stats >= STATS_INTERVAL or not core.has_unfinished:
            last_stats = now
            tell_stats()
        mail.send(Outputs(outputs))

    def why_unusable(request: AddRequest) -> str | None:
        ids = request.prompt_token_ids
        try:
            validate_request(ids, request.priority, request.cache_salt, request.timeout, vocab_size=vocab_size)
            limits = {"vocab_size": vocab_size, "max_model_len": ready.max_model_len}
            validate(request.sampling, num_prompt_tokens=len(ids), **limits)
        except RequestError as error:
            return str(error)
        return None

    core = EngineCore(options, pipeline, mail, emit, why_unusable=why_unusable, recorder=recorder, tell=mail.send)
    mail.send(ready)
    try:
        while not core.shutting_down:
            core.step()
            if told_in_flight and not core.in_flight and not core.has_unfinished:
                tell_stats()  # what was in flight when the last request ended is back, and no output will follow it
    except PipelineError as error:
        core.fail(str(error))
        raise
    finally:
        recorder.close()


def main() -> None:
    end_with_parent()
    end(run(msgspec.json.decode(read_config(), type=CoreConfig)))


if __name__ == "__main__":
    main()
