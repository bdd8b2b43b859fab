"""Makes the metrics that the table names, once each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

from paceline.server.metric_table import TABLE, Kind


class MetricMaker:
    """Metrics by name, registered when first asked for.

    Args:
        model_labels: values of the labels that every metric of the model has.
    """

    def __init__(self, registry: CollectorRegistry, model_labels: tuple[str, ...] = ()) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        self._model_labels = model_labels
        self._families: dict[str, MetricWrapperBase] = {}

    def counter(self, name: str, *labels: str) -> Counter:
        """A counter with the values of its own labels."""
        found = self._child(name, labels)
        assert isinstance(found, Counter)
        return found

    def gauge(self, name: str, *labels: str) -> Gauge:
        """A gauge with the values of its own labels."""
        found = self._child(name, labels)
        assert isinstance(found, Gauge)
        return found

    def histogram(self, name: str, *labels: str) -> Histogram:
        """A histogram with the values of its own labels."""
        found = self._child(name, labels)
        assert isinstance(found, Histogram)
        return found

    def _child(self, name: str, labels: tuple[str, ...]) -> MetricWrapperBase:
        row = TABLE[name]
        if name not in self._families:
            if row.kind is Kind.HISTOGRAM:
                self._families[name] = Histogram(
                    name, row.help, row.all_labels, buckets=row.buckets, registry=self._registry
                )
            else:
                kind = Counter if row.kind is Kind.COUNTER else Gauge
                self._families[name] = kind(name, row.help, row.all_labels, registry=self._registry)
        return self._families[name].labels(*self._model_labels, *labels)
