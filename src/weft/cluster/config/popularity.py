"""Settings for which pods usually come: declared, or learnt from the pods in the API."""

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
        "how often they come beside the other kinds; 1, for then all come alike",
    ] = 1
    gpus: Annotated[
        int, Meta(ge=0, le=MOST_GPUS), "GPUs of one pod; 1, for most ask for one; 0: none"
    ] = 1
    gpu_memory_mib: Annotated[
        int, Meta(ge=0, le=MOST_GPU_MIB), "memory of each, MiB; 0: it is not shared by memory"
    ] = 0
    gpu_milli: Annotated[
        int,
        Meta(ge=0, le=1000),
        "thousandths of each one's cores; 0: where no memory is asked either, the GPUs are whole",
    ] = 0
    cpu_milli: Annotated[
        int, Meta(ge=0), "thousandths of a core beside; 0: they are no reason to leave CPU free"
    ] = 0
    memory_mib: Annotated[
        int, Meta(ge=0), "host memory beside, MiB; 0: no reason to leave it free"
    ] = 0
    models: Annotated[tuple[str, ...], "GPU models that they accept; none: any"] = ()

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
    """The usual pods, for policies that keep room for them (least-stranding, auto, fgd)."""

    half_life_seconds: Annotated[
        float,
        Meta(ge=60, le=MOST_DAYS * DAY_S),
        "seconds after which a pod counts half of a new one; a week, for clusters repeat by weeks. "
        "Counted from the pods that the API shows, also ended ones, so that a restart changes "
        "nothing; for least-stranding and auto",
    ] = 7 * DAY_S
    usual_pods: Annotated[
        tuple[UsualPods, ...],
        "kinds of pods that usually come; with any, nothing is learnt. None, for what came is the "
        "better guess",
    ] = ()
