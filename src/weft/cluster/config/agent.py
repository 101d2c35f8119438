"""Settings of the agent on each GPU node: what it advertises, hides, isolates, and reports."""

from typing import Annotated, Literal

from msgspec import Meta

from weft.cluster.config.section import DAY_S, Port
from weft.files.form import Section
from weft.model.ceilings import MOST_GPU_MIB


class AgentSettings(Section, frozen=True):
    """The agent on each GPU node."""

    address: Annotated[
        str, "all addresses, so that the kubelet's probes and Prometheus reach it"
    ] = "0.0.0.0"
    port: Annotated[
        Port, "health, readiness, metrics; dcgm-exporter's own, so that who scrapes it finds this"
    ] = 9_400
    exempt_namespaces: Annotated[
        tuple[str, ...],
        "where containers that ask for no GPU see those that their image names; elsewhere they see "
        "none. kube-system, for agents that watch GPUs; add the GPU operator's, where it runs",
    ] = ("kube-system",)
    dialects: Annotated[
        tuple[str, ...],
        "whose resources the node advertises; none: all that have some of their own, but for those "
        "of Volcano, and those that another device plugin serves there",
    ] = ()
    older_spellings: Annotated[
        bool,
        "whether Elastic GPU's resources are advertised under every name that is read; off, for "
        "each is one more sum that means the same cards",
    ] = False
    own: Annotated[
        tuple[Literal["nvidia.com/gpu"], ...],
        "resources that are advertised only where this names them; none, for whoever registers "
        "nvidia.com/gpu last has it",
    ] = ()
    strangers: Annotated[
        Literal["report", "evict"],
        "what is done about containers that see GPUs which nobody gave them, as when they started "
        "while no agent was there; report, for they may have run before Weft came",
    ] = "report"
    evict_bare_pods: Annotated[
        bool,
        "whether pods that no controller makes anew are evicted too, where they run without their "
        "share; off, for nothing would come back",
    ] = False
    isolation: Annotated[
        Literal["", "none", "time-slicing", "mps", "hook", "mig"],
        "of pods that do not say; empty: time-slicing, or mig on instances",
    ] = ""
    mps: Annotated[
        bool, "whether the agent runs NVIDIA's MPS daemon; off, for it changes how all GPUs are run"
    ] = False
    hook_library: Annotated[
        str, "HAMi-core's libvgpu.so on the node; empty offers no hook, for it has to be put there"
    ] = ""
    over_share_mib: Annotated[
        int,
        Meta(ge=0, le=MOST_GPU_MIB),
        "how much GPU memory a pod may hold beyond its share before that is told; a CUDA context "
        "takes 300 to 600 MiB that no manifest names",
    ] = 512
    over_share_seconds: Annotated[
        float, Meta(ge=0, le=DAY_S), "how long that must last; short peaks harm nobody"
    ] = 10
    evict_over_share: Annotated[
        bool, "whether such a pod is evicted; off, for what runs may be worth more"
    ] = False
