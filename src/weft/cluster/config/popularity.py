"""Settings for typical pods: declared, or learnt from the pods in the API."""

from typing import Annotated

from msgspec import Meta

from weft.cluster.config.section import DAY_S
from weft.files.form import Section
from weft.model import DeviceRule, GpuMemoryRequest, GpuRequest, Shape
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS

MOST_DAYS = 3650


class UsualPods(Section, frozen=True):
    """One kind of pods to expect."""

    weight: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        "how often they come relative to the other kinds; 1: all come equally often",
    ] = 1
    gpus: Annotated[
        int,
        Meta(ge=0, le=MOST_GPUS),
        "GPUs of one pod; 1 by default, since most pods request one GPU",
    ] = 1
    gpu_memory_mib: Annotated[
        int, Meta(ge=0, le=MOST_GPU_MIB), "MiB of memory of each GPU; 0: no memory request"
    ] = 0
    gpu_milli: Annotated[
        int,
        Meta(ge=0, le=1000),
        "thousandths of each GPU's cores; 0, with gpuMemoryMib 0 as well: whole GPUs",
    ] = 0
    cpu_milli: Annotated[
        int, Meta(ge=0), "CPU request in thousandths of a core; 0: no CPU is kept free for them"
    ] = 0
    memory_mib: Annotated[
        int, Meta(ge=0), "host memory request in MiB; 0: none is kept free for them"
    ] = 0
    models: Annotated[tuple[str, ...], "GPU models that these pods accept; empty: any model"] = ()

    def shape(self) -> Shape:
        """Return the shape of such a pod's request."""
        shares = self.gpu_memory_mib or self.gpu_milli
        memory = GpuMemoryRequest("mib", self.gpu_memory_mib) if self.gpu_memory_mib else None
        request = (
            GpuRequest(self.gpus, memory or GpuMemoryRequest(), self.gpu_milli)
            if shares
            else GpuRequest(self.gpus, whole=True)
        )
        return Shape(
            (request,) if self.gpus else (),
            self.cpu_milli,
            memory_mib=self.memory_mib,
            devices=DeviceRule(models=self.models),
        )


class PopularitySettings(Section, frozen=True):
    """Typical pods, for policies that keep room for them (least-stranding, auto, fgd)."""

    half_life_seconds: Annotated[
        float,
        Meta(ge=60, le=MOST_DAYS * DAY_S),
        "seconds after which a pod counts half as much as a new one; a week by default, since "
        "clusters have weekly patterns. Typical pods are counted from the pods in the API, "
        "including ended ones, so that a restart changes nothing; for least-stranding and auto",
    ] = 7 * DAY_S
    usual_pods: Annotated[
        tuple[UsualPods, ...],
        "kinds of pods that usually come; if any are given, nothing is learnt from arrivals. "
        "None by default, since past arrivals are the better estimate",
    ] = ()
