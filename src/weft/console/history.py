"""Stores each GPU's promised and used amounts over the latest pictures, for charts."""

from collections import deque

import msgspec

from weft.console.picture import Picture, ShownGpu

MOST_POINTS, ALL_POINTS = 400, 1_000_000
"""Maximum number of points of one GPU, and of all GPUs together: some 100 MB."""
_LEAST_POINTS = 8


class GpuPoint(msgspec.Struct, frozen=True, array_like=True):
    """A GPU's promised and used amounts from one time until the next point. Used amounts are None
    if they are not measured."""

    at_s: float
    promised_milli: int
    promised_mib: int
    used_mib: int | None
    used_percent: int | None

    @classmethod
    def of(cls, gpu: ShownGpu, at_s: float) -> "GpuPoint":
        """Return the point of a GPU as the picture shows it."""
        return cls(at_s, gpu.promised_milli, gpu.promised_mib, gpu.used_mib, gpu.used_percent)


class GpuHistory:
    """The points of all GPUs of a live or simulated cluster: one for each change. The oldest are
    dropped first."""

    def __init__(self) -> None:
        self._points: dict[str, deque[GpuPoint]] = {}

    def see(self, picture: Picture) -> None:
        """Add a point for each GPU whose amounts have changed; drop GPUs that are gone."""
        most = min(MOST_POINTS, max(_LEAST_POINTS, ALL_POINTS // max(1, len(picture.gpus))))
        for key, gpu in picture.gpus.items():
            points = self._points.get(key)
            if points is None:
                points = self._points[key] = deque(maxlen=most)
            point = GpuPoint.of(gpu, picture.at_s)
            if not points or msgspec.structs.replace(points[-1], at_s=picture.at_s) != point:
                points.append(point)
        for key in self._points.keys() - picture.gpus.keys():
            del self._points[key]

    def of(self, key: str) -> list[GpuPoint]:
        """Return a GPU's points, the oldest first."""
        return [*self._points.get(key, ())]
