"""Builds prometheus-client's metric families from plain numbers."""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

Key = TypeVar("Key", bound=str | tuple[str, ...])


def counter(name: str, text: str, values: Mapping[Key, float] | float, *labels: str) -> Metric:
    """Build a counter: one number, or one per value of the label (per tuple for several labels)."""
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def gauge(name: str, text: str, values: Mapping[Key, float] | float, *labels: str) -> Metric:
    """Build a gauge, from the same arguments as `counter`."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[Key, float] | float
) -> Metric:
    if not isinstance(values, Mapping):
        family.add_metric((), values)
        return family
    for key, value in values.items():
        family.add_metric((key,) if isinstance(key, str) else key, value)
    return family
