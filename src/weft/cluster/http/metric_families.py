"""Metric families of prometheus-client out of plain numbers: one call makes one family."""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

Key = TypeVar("Key", bound=str | tuple[str, ...])


def counter(name: str, text: str, values: Mapping[Key, float] | float, *labels: str) -> Metric:
    """A counter: one number, or one for each value of the label (for each tuple of several)."""
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def gauge(name: str, text: str, values: Mapping[Key, float] | float, *labels: str) -> Metric:
    """The same as a gauge."""
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
