"""Reasons why a pod does not fit a node: a small vocabulary, one code for each node, shown to
users."""

import enum

import msgspec


class Code(enum.IntEnum):
    """Why a node was left out: one reason for each node, the most fundamental that is known. 0: the
    pod fits. Up to `OUT_OF_SERVICE` a reason follows from the node itself, except `ANTI_AFFINITY`;
    from `CPU` on it follows from other pods.
    """

    FITS = 0
    UNSCHEDULABLE = 1
    OTHER_NODE = 2
    UNSUPPORTED = 3
    TAINT = 4
    NODE_AFFINITY = 5
    VOLUME = 6
    ANTI_AFFINITY = 7
    DECLARED_FEATURES = 8
    NO_GPU = 9
    NOT_ADVERTISED = 10
    NO_ISOLATION = 11
    NOT_DELIVERING = 12
    WRONG_UNIT = 13
    WRONG_MODEL = 14
    GPU_TOO_SMALL = 15
    TOO_FEW_GPUS = 16
    LINKS_UNKNOWN = 17
    OUT_OF_SERVICE = 18
    CPU = 19
    NODE_MEMORY = 20
    EXTENDED = 21
    HOST_PORT = 22
    GPU_MEMORY = 23
    GPU_CORES = 24
    GPU_SHARE = 25
    NOT_IDLE = 26
    TOGETHER = 27
    POLICY = 28
    NOT_SEARCHED = 29
    FAULT = 30
    LINKS_TAKEN = 31
    POD_AFFINITY = 32
    POD_ANTI_AFFINITY = 33
    TOPOLOGY_SPREAD = 34
    CLAIM_WAITS = 35
    CLAIM_TAKEN = 36
    DISK_TAKEN = 37
    NO_VOLUME = 38
    STORAGE_CAPACITY = 39
    VOLUME_LIMIT = 40
    GROUP_INCOMPLETE = 41
    GROUP_ELSEWHERE = 42
    QUEUE_LIMIT = 43

    @property
    def is_by_others(self) -> bool:
        """True if the node may fit once other pods are gone."""
        return self > Code.OUT_OF_SERVICE or self is Code.ANTI_AFFINITY


TEXT: dict[Code, str] = {
    Code.FITS: "fits",
    Code.UNSCHEDULABLE: "node is cordoned or not ready",
    Code.OTHER_NODE: "pod names another node",
    Code.UNSUPPORTED: "pod asks for a feature that Weft does not support yet",
    Code.TAINT: "a taint that the pod does not tolerate",
    Code.NODE_AFFINITY: "node selector or affinity does not match",
    Code.VOLUME: "a volume of the pod is bound elsewhere",
    Code.ANTI_AFFINITY: "a pod on the node has anti-affinity to the pod",
    Code.DECLARED_FEATURES: "node does not declare a feature that the pod needs",
    Code.NO_GPU: "node has no GPU",
    Code.NOT_ADVERTISED: "node does not advertise the GPU resource that the pod asks for",
    Code.NO_ISOLATION: "node does not offer the isolation that the pod asks for",
    Code.NOT_DELIVERING: "no agent delivers shares on the node now",
    Code.WRONG_UNIT: "node advertises another gpushare unit",
    Code.WRONG_MODEL: "wrong model",
    Code.GPU_TOO_SMALL: "no GPU is that large",
    Code.TOO_FEW_GPUS: "fewer GPUs than asked for",
    Code.LINKS_UNKNOWN: "the node's GPU topology, which the pod requires, is unknown",
    Code.OUT_OF_SERVICE: "GPUs out of service",
    Code.CPU: "insufficient cpu",
    Code.NODE_MEMORY: "insufficient memory",
    Code.EXTENDED: "insufficient extended resource",
    Code.HOST_PORT: "a host port is taken",
    Code.GPU_MEMORY: "insufficient memory on any one GPU",
    Code.GPU_CORES: "insufficient cores on any one GPU",
    Code.GPU_SHARE: "memory and cores are not free on the same GPU",
    Code.NOT_IDLE: "too few idle GPUs",
    Code.TOGETHER: "each container's GPU fits alone, but not all together",
    Code.POLICY: "refused by the policy",
    Code.NOT_SEARCHED: "too many ways to place the pod's GPU shares; not all were tried",
    Code.FAULT: "deciding for this pod failed; Weft's log says why",
    Code.LINKS_TAKEN: "the node's best connected GPUs are not free together",
    Code.POD_AFFINITY: "no pod matches the pod's required affinity",
    Code.POD_ANTI_AFFINITY: "a pod matches the pod's anti-affinity",
    Code.TOPOLOGY_SPREAD: "the pod would violate its topology spread constraints there",
    Code.CLAIM_WAITS: "a claim of the pod is not ready",
    Code.CLAIM_TAKEN: "another pod uses the pod's ReadWriteOncePod claim",
    Code.DISK_TAKEN: "a pod on the node uses a disk that the pod mounts",
    Code.NO_VOLUME: "no volume for a claim of the pod is available to the node",
    Code.STORAGE_CAPACITY: "too little storage is left for a claim of the pod on the node",
    Code.VOLUME_LIMIT: "no more volumes can be attached to the node",
    Code.GROUP_INCOMPLETE: "too few pods of the pod's group exist yet",
    Code.GROUP_ELSEWHERE: "the node is outside the topology domain of the pod's group",
    Code.QUEUE_LIMIT: "the pod's queue holds as much as it may",
}

_MOST = {Code.GPU_TOO_SMALL: "largest", Code.TOO_FEW_GPUS: "most", Code.NOT_IDLE: "most"}


class Reason(msgspec.Struct, frozen=True, gc=False):
    """A reason that keeps a pod off `nodes` nodes; `best` is the most that any of these nodes
    offers of what was `asked`.

    `asked` and `best` are in `unit` (such as "MiB", "m" for thousandths of a GPU, "m cpu", "idle
    GPUs", or an extended resource's name); 0 and "" if a number says nothing. `words` replace the
    code's text if this pod needs a more exact one.
    """

    code: Code
    nodes: int = 1
    asked: int = 0
    best: int = 0
    unit: str = ""
    words: str = ""

    @property
    def text(self) -> str:
        """The reason without the number of nodes."""
        text = self.words or TEXT[self.code]
        if not self.unit:
            return text
        most = _MOST.get(self.code, "largest free")
        return f"{text} ({most} {self.best:,} {self.unit}, asked {self.asked:,})"

    def __str__(self) -> str:
        return f"{self.nodes} × {self.text}"
