"""OpenTelemetry: one span per request that generates, with what it asked for, what it got and where its time went.

Spans are made when a request has ended, from times that were taken anyway, and sent by a thread of the SDK; a queue of
limited size keeps a collector that is slow or gone from costing more than lost spans. They hold no text.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from paceline.engine.trace_reader import TraceReader
from paceline.errors import ConfigError, EngineDeadError, RequestError
from paceline.trace.explain import explain_request

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from paceline.server.generation import Generation

CLOSE_SECONDS = 2.0  # for the last spans to be sent
_COMPUTE = ("prefill_compute", "decode_compute")
_EXECUTE = (*_COMPUTE, "waiting_in_pipeline")
_SCHEDULER = ("queued", "held_by_pace")

Attributes = dict[str, Any]


class Spans:
    """Sends spans to `endpoint`, an OTLP/HTTP address; without a path, `/v1/traces` is added.

    The SDK's own environment variables (``OTEL_SERVICE_NAME``, ``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_BSP_…``) work.

    Raises:
        ConfigError: the optional packages are not installed.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            problem, fix = "needs packages that are not installed", "Install paceline[otel]."
            raise ConfigError("otlp_traces_endpoint", endpoint, problem, fix) from None
        service = Resource.create({"service.name": "paceline"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=service, shutdown_on_exit=False)
        address = endpoint if endpoint.split("://", 1)[1].strip("/").count("/") else endpoint.rstrip("/") + "/v1/traces"
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(address)))
        self._tracer: Tracer = self._provider.get_tracer("paceline")
        self._finishing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Send what is left, for at most some seconds."""
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=CLOSE_SECONDS)
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    def finish(self, work: Coroutine[None, None, None]) -> None:
        """Let a span be completed after its answer: with the answer's last byte, the task that gave it may be cancelled."""
        task = asyncio.create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    def record(self, headers: Mapping[str, str], times: Times, attributes: Attributes, error: str = "") -> None:
        """One span, with its phases below it; part of the client's own trace if `headers` name one (``traceparent``)."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        own = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        context = TraceContextTextMapPropagator().extract(own)
        span: Span = self._tracer.start_span(
            "llm_request", context, SpanKind.SERVER, attributes, start_time=times.unix_ns(times.arrival)
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
            span.set_attribute("error.type", error)
        for name, start, end in times.phases():
            phase = self._tracer.start_span(name, set_span_in_context(span), start_time=times.unix_ns(start))
            phase.end(times.unix_ns(end))
        span.end(times.unix_ns(times.end))


class Times:
    """Turns of a request's life, in seconds of the performance counter; 0 where it did not come so far."""

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self.scheduled = self.first = self.last = self.end = 0.0
        self._unix_offset = time.time_ns() - int(time.perf_counter() * 1e9)

    def unix_ns(self, moment: float) -> int:
        return self._unix_offset + int(moment * 1e9)

    def phases(self) -> list[tuple[str, float, float]]:
        """Name, start and end of what came about."""
        turns = [("queue", self.arrival, self.scheduled), ("prefill", self.scheduled, self.first)]
        return [turn for turn in [*turns, ("decode", self.first, self.last)] if turn[1] and turn[2]]


@asynccontextmanager
async def traced(
    spans: Spans | None,
    headers: Mapping[str, str],
    arrival: float,
    request_id: str,
    model: str,
    generation: Generation,
    record: TraceReader,
) -> AsyncIterator[None]:
    """A span for what the block answers, if spans are wanted."""
    if spans is None:
        yield
        return
    error = ""
    try:
        yield
    except asyncio.CancelledError:
        error = "cancelled"
        raise
    except Exception as failure:
        error = _code_of(failure)
        raise
    finally:
        times = times_of(generation, arrival)
        attributes = attributes_of(generation, times, request_id, model)

        async def complete() -> None:
            spans.record(headers, times, attributes | await _parts(generation, record), error)

        spans.finish(complete())


def _code_of(failure: Exception) -> str:
    """The code that the client is told."""
    if isinstance(failure, RequestError):
        return failure.code
    return "engine_dead" if isinstance(failure, EngineDeadError) else "engine_error"


def times_of(generation: Generation, arrival: float) -> Times:
    """Of all choices together: the first to be scheduled, the first token, the last one."""
    times = Times(arrival)
    times.end = time.perf_counter()
    queued = [choice.queue_seconds for choice in generation.choices if choice.queue_seconds >= 0]
    seen = [timer for timer in generation.timers.values() if timer.first]
    if queued:
        times.scheduled = generation.arrival + min(queued)
    if seen:
        times.first, times.last = min(timer.first for timer in seen), max(timer.last for timer in seen)
    return times


def attributes_of(generation: Generation, times: Times, request_id: str, model: str) -> Attributes:
    """What was asked for and what came of it, under the names of OpenTelemetry's and vLLM's conventions."""
    choices, sampling = generation.choices, generation.choices[0].sampling
    found: Attributes = {
        "gen_ai.request.id": request_id,
        "gen_ai.request.n": 1,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.usage.prompt_tokens": sum(len(choice.prompt_token_ids) for choice in choices),
        "gen_ai.usage.completion_tokens": sum(choice.num_output_tokens for choice in choices),
        "gen_ai.usage.cached_tokens": sum(choice.num_cached_tokens for choice in choices),
        "gen_ai.usage.num_sequences": len(choices),
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": [choice.finish_reason for choice in choices if choice.finish_reason],
        "gen_ai.latency.e2e": times.end - times.arrival,
    }
    if sampling.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = sampling.max_tokens
    if times.scheduled:
        found["gen_ai.latency.time_in_queue"] = times.scheduled - times.arrival
    if times.first:
        found["gen_ai.latency.time_to_first_token"] = times.first - times.arrival
    if times.scheduled and times.first:
        found["gen_ai.latency.time_in_model_prefill"] = times.first - times.scheduled
        found["gen_ai.latency.time_in_model_decode"] = times.last - times.first
        found["gen_ai.latency.time_in_model_inference"] = times.last - times.scheduled
    return found


async def _parts(generation: Generation, record: TraceReader) -> Attributes:
    """From the record: how long stages computed batches with the request, how long it was in the pipeline, how long not."""
    try:
        history = await record.catch_up()
    except EngineDeadError:
        return {}
    found = [history.request(choice.request_id) for choice in generation.choices]
    totals = [explain_request(history, request).total_parts for request in found if request is not None]
    known = [parts for parts in totals if parts is not None]
    if not known:
        return {}
    of_names = {
        "gen_ai.latency.time_in_model_forward": _COMPUTE,
        "gen_ai.latency.time_in_model_execute": _EXECUTE,
        "gen_ai.latency.time_in_scheduler": _SCHEDULER,
    }
    return {what: max(sum(parts[name] for name in names) for parts in known) for what, names in of_names.items()}
