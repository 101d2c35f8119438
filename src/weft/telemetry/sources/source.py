"""Interface of metric sources: a metrics server, or the exporters themselves."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from weft.model.metric import Metric
from weft.telemetry.meaning.answers import QueryResult, TelemetryError

DEFAULT_METRICS = (
    Metric.MEMORY_USED_MIB,
    Metric.MEMORY_FREE_MIB,
    Metric.MEMORY_RESERVED_MIB,
    Metric.GPU_UTIL_RATIO,
    Metric.MEMORY_COPY_RATIO,
    Metric.GRAPHICS_ACTIVE_RATIO,
    Metric.SM_ACTIVE_RATIO,
    Metric.SM_OCCUPANCY_RATIO,
    Metric.TENSOR_ACTIVE_RATIO,
    Metric.DRAM_ACTIVE_RATIO,
    Metric.PCIE_SENT_BYTES_PER_S,
    Metric.PCIE_RECEIVED_BYTES_PER_S,
    Metric.POWER_W,
    Metric.POWER_LIMIT_W,
    Metric.ENCODER_RATIO,
    Metric.DECODER_RATIO,
    Metric.SM_CLOCK_MHZ,
    Metric.TEMPERATURE_C,
)
"""The metrics queried by default. Energy is left out: a lifetime counter does not fit into
float32."""


class QueryOutcome(NamedTuple):
    """Outcome of a query: what it was about, how long it took, and the error if it failed."""

    about: str
    took_s: float
    error: TelemetryError | None = None


class SourceReading(NamedTuple):
    """Answers of one poll. `asked` has the outcome of each query, with the error if it failed.

    `where` names the server or exporters, for people."""

    answers: list[QueryResult]
    asked: list[QueryOutcome]
    where: str = ""


class MetricSource(Protocol):
    """A source of metric samples; `Prometheus` and `ExporterSource` implement it."""

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        """Return all samples of the last `back_s` seconds, as far as available. Never raises."""
        ...

    async def series(self, names: Sequence[str], back_s: float) -> SourceReading:
        """Return the samples of the metrics with these names, such as applications' own metrics, in
        one query; sources that read GPU exporters return none."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
