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
)
"""The metrics asked for. Energy is left out: a counter of all time does not fit into float32."""


class QueryOutcome(NamedTuple):
    """Outcome of a query: what about, how long it took, and what was wrong, if anything."""

    about: str
    took_s: float
    error: TelemetryError | None = None


class SourceReading(NamedTuple):
    """Answers of one tick; what is missing from them is among `asked` with its error.

    `where` names who was asked, for people.
    """

    answers: list[QueryResult]
    asked: list[QueryOutcome]
    where: str = ""


class MetricSource(Protocol):
    """A source of samples."""

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        """All samples of the last `back_s` seconds, or what can be had of them. Never raises."""
        ...

    async def series(self, names: Sequence[str], back_s: float) -> SourceReading:
        """The same of metrics that mean nothing to Weft, by name, in one question; nothing where
        only GPUs' exporters are asked."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...
