"""The engine core's counters as Prometheus metrics, read at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.messages import BlockAges, CoreStats
from paceline.server.metric_table import TABLE, Kind


class StatsSource(Protocol):
    """Has the core's latest statistics."""

    @property
    def stats(self) -> CoreStats | None: ...


class CoreCollector(Collector):
    """Translates the :class:`CoreStats` of `source`; before its first report nothing has happened yet."""

    def __init__(self, labels: tuple[str, ...], source: StatsSource, num_blocks: int, num_stages: int) -> None:
        self._labels, self._source = labels, source
        self._before = CoreStats(0, 0, 0, num_blocks, 0, 0, 0, 0, 0, [0.0] * num_stages, [0.0] * num_stages, 0.0)

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of the core."""
        stats = self._source.stats or self._before
        waiting = {"capacity": stats.num_waiting - stats.num_deferred, "deferred": stats.num_deferred}
        free = stats.num_blocks - stats.num_blocks_used
        stages = range(len(self._before.stage_busy_seconds))
        yield self._family("vllm:num_requests_running", {(): stats.num_running})
        yield self._family("vllm:num_requests_waiting", {(): stats.num_waiting})
        yield self._family("vllm:num_requests_waiting_by_reason", {(why,): count for why, count in waiting.items()})
        yield self._family("vllm:kv_cache_usage_perc", {(): stats.num_blocks_used / stats.num_blocks})
        yield self._family("vllm:num_preemptions", {(): stats.num_preemptions})
        yield self._family("vllm:prefix_cache_queries", {(): stats.prefix_cache_queries})
        yield self._family("vllm:prefix_cache_hits", {(): stats.prefix_cache_hits})
        yield self._family("paceline:batches", {(): stats.num_batches})
        yield self._family("paceline:microbatches_in_flight", {(): stats.num_batches_in_flight})
        yield self._family("paceline:stage_busy_seconds", _by_stage(stats.stage_busy_seconds))
        yield self._family("paceline:stage_cpu_seconds", _by_stage(stats.stage_cpu_seconds))
        yield self._family("paceline:kv_blocks_free", {(str(stage),): free for stage in stages})
        yield self._ages("vllm:kv_block_lifetime_seconds", stats.block_lifetime)
        yield self._ages("vllm:kv_block_idle_before_evict_seconds", stats.block_idle)
        yield self._ages("vllm:kv_block_reuse_gap_seconds", stats.block_reuse_gap)

    def _family(self, name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
        row = TABLE[name]
        kind = CounterMetricFamily if row.kind is Kind.COUNTER else GaugeMetricFamily
        family = kind(name, row.help, labels=row.all_labels)
        for labels, value in values.items():
            family.add_metric((*self._labels, *labels), value)
        return family

    def _ages(self, name: str, ages: BlockAges) -> Metric:
        row = TABLE[name]
        bounds = [*(f"{bound:g}" for bound in row.buckets), "+Inf"]
        counts = accumulate(ages.counts or [0] * len(bounds))
        family = HistogramMetricFamily(name, row.help, labels=row.all_labels)
        family.add_metric(self._labels, list(zip(bounds, counts, strict=True)), ages.seconds)
        return family


def _by_stage(values: list[float]) -> dict[tuple[str, ...], float]:
    return {(str(stage),): value for stage, value in enumerate(values)}
