"""The engine core's counters as Prometheus metrics, read at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.messages import CoreStats

_LABELS = ("model_name", "engine")


class StatsSource(Protocol):
    """Has the core's latest statistics."""

    @property
    def stats(self) -> CoreStats | None: ...


class CoreCollector(Collector):
    """Translates :class:`CoreStats`; yields nothing before a source is attached."""

    def __init__(self) -> None:
        self._labels: tuple[str, ...] = ()
        self._source: StatsSource | None = None

    def attach(self, labels: tuple[str, ...], source: StatsSource) -> None:
        """Read from `source` from now on."""
        self._labels, self._source = labels, source

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of the core; zeros before its first report."""
        if self._source is None:
            return
        stats = self._source.stats or CoreStats(0, 0, 0, 0, 0, 0, 0, 0, 0, [], [], 0.0)
        used = stats.num_blocks_used / stats.num_blocks if stats.num_blocks else 0.0
        yield self._gauge("vllm:num_requests_running", "Requests that are RUNNING.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait for a seat or blocks.", stats.num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Part of the KV cache in use; 1 is all of it.", used)
        yield self._counter("vllm:num_preemptions", "Preemptions.", stats.num_preemptions)
        yield self._counter("vllm:prefix_cache_queries", "Tokens looked up.", stats.prefix_cache_queries)
        yield self._counter("vllm:prefix_cache_hits", "Tokens found.", stats.prefix_cache_hits)
        yield self._counter("paceline:batches", "Batches made.", stats.num_batches)
        yield self._gauge("paceline:microbatches_in_flight", "Batches in flight.", stats.num_batches_in_flight)
        yield self._per_stage("paceline:stage_busy_seconds", "Time in which a stage worked.", stats.stage_busy_seconds)
        yield self._per_stage("paceline:stage_cpu_seconds", "CPU time of a stage.", stats.stage_cpu_seconds)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _per_stage(self, name: str, text: str, values: list[float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*_LABELS, "stage"))
        for stage, value in enumerate(values):
            family.add_metric((*self._labels, str(stage)), value)
        return family
