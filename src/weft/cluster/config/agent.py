"""Settings of the agent on each GPU node: what it advertises, hides, isolates and reports."""

from typing import Annotated, Literal

from msgspec import Meta

from weft.cluster.config.section import DAY_S, Port
from weft.files.form import Section
from weft.model.ceilings import MOST_GPU_MIB


class AgentSettings(Section, frozen=True):
    """Settings of the agent that runs on each GPU node."""

    address: Annotated[
        str, "listen address; all by default, so that the kubelet's probes and Prometheus reach it"
    ] = "0.0.0.0"
    port: Annotated[
        Port,
        "port of health, readiness and metrics; by default dcgm-exporter's port, so that its "
        "scrape configuration fits",
    ] = 9_400
    exempt_namespaces: Annotated[
        tuple[str, ...],
        "namespaces in which a container without a GPU request sees the GPUs that its image names; "
        "elsewhere it sees none. kube-system by default, for agents that monitor GPUs; add the GPU "
        "operator's namespace if it is installed",
    ] = ("kube-system",)
    dialects: Annotated[
        tuple[str, ...],
        "systems whose resources the node advertises; empty: every system with its own resources, "
        "except Volcano and systems that another device plugin serves on the node",
    ] = ()
    older_spellings: Annotated[
        bool,
        "whether Elastic GPU's resources are advertised under all their former names too; off by "
        "default, since each name adds the same GPUs to the node once more",
    ] = False
    own: Annotated[
        tuple[Literal["nvidia.com/gpu"], ...],
        "resources that are advertised only if named here; none by default, since the device "
        "plugin that registers nvidia.com/gpu last serves it alone",
    ] = ()
    strangers: Annotated[
        Literal["report", "evict"],
        "what to do about containers that see GPUs not given to them, for example because they "
        "started while the agent was not running: report them, or evict their pods. report by "
        "default, since they may have run before Weft was installed",
    ] = "report"
    evict_bare_pods: Annotated[
        bool,
        "whether pods without a controller are evicted too if they run without their "
        "share; off by default, since nothing would recreate them",
    ] = False
    isolation: Annotated[
        Literal["", "none", "time-slicing", "mps", "hook", "mig"],
        "isolation of pods that name none; empty: time-slicing, or mig on MIG instances",
    ] = ""
    mps: Annotated[
        bool,
        "whether the agent runs NVIDIA's MPS daemon; off by default, since it changes how all GPUs "
        "are shared",
    ] = False
    mps_multi_user: Annotated[
        bool,
        "whether programs of all users share one MPS server, which runs as root; on by default, "
        "since otherwise a container hangs while a container of another user uses the server",
    ] = True
    hook_library: Annotated[
        str,
        "path of HAMi-core's libvgpu.so on the node; empty: no hook isolation, as Weft does not "
        "ship it",
    ] = ""
    over_share_mib: Annotated[
        int,
        Meta(ge=0, le=MOST_GPU_MIB),
        "MiB of GPU memory that a pod may use beyond its share before it is reported; 512 by "
        "default, since a CUDA context takes 300 to 600 MiB that manifests leave out",
    ] = 512
    over_share_seconds: Annotated[
        float,
        Meta(ge=0, le=DAY_S),
        "seconds for which a pod must exceed its share by overShareMib before it is reported; 10 "
        "by default, since short peaks are harmless",
    ] = 10
    evict_over_share: Annotated[
        bool,
        "whether a pod that is reported for exceeding its share is also evicted; off by default, "
        "since it would lose its progress",
    ] = False
