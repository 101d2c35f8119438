"""Why a pod does not fit a node: a small vocabulary, one code per node, shown to people."""

import enum

import msgspec


class Code(enum.IntEnum):
    """The first check a node fails, in the order the checks are made. 0 means it fits."""

    FITS = 0
    UNSCHEDULABLE = 1
    OTHER_NODE = 2
    CPU = 3
    NODE_MEMORY = 4
    EXTENDED = 5
    NO_GPU = 6
    WRONG_UNIT = 7
    WRONG_MODEL = 8
    TOO_FEW_GPUS = 9
    OUT_OF_SERVICE = 10
    GPU_MEMORY = 11
    GPU_CORES = 12
    GPU_SHARE = 13
    NOT_IDLE = 14
    TOGETHER = 15
    POLICY = 16


TEXT: dict[Code, str] = {
    Code.FITS: "fits",
    Code.UNSCHEDULABLE: "node is cordoned or not ready",
    Code.OTHER_NODE: "pod names another node",
    Code.CPU: "insufficient cpu",
    Code.NODE_MEMORY: "insufficient memory",
    Code.EXTENDED: "insufficient extended resource",
    Code.NO_GPU: "node has no GPU",
    Code.WRONG_UNIT: "node advertises another gpushare unit",
    Code.WRONG_MODEL: "no GPU of an accepted model or UUID",
    Code.TOO_FEW_GPUS: "fewer GPUs than asked for",
    Code.OUT_OF_SERVICE: "GPUs out of service",
    Code.GPU_MEMORY: "insufficient memory on any one GPU",
    Code.GPU_CORES: "insufficient cores on any one GPU",
    Code.GPU_SHARE: "memory and cores are not free on the same GPU",
    Code.NOT_IDLE: "too few idle GPUs",
    Code.TOGETHER: "each container's GPU fits alone, but not all together",
    Code.POLICY: "refused by the policy",
}


class Reason(msgspec.Struct, frozen=True, gc=False):
    """`nodes` nodes fail with `code`; `best` is the most any of them offers of what was `asked`.

    `asked` and `best` are in `unit` ("MiB", "m" for thousandths, "GPUs"); 0 and "" where a
    number says nothing.
    """

    code: Code
    nodes: int = 1
    asked: int = 0
    best: int = 0
    unit: str = ""

    def __str__(self) -> str:
        text = f"{self.nodes} × {TEXT[self.code]}"
        if not self.unit:
            return text
        return f"{text} (most free {self.best:,} {self.unit}, asked {self.asked:,})"
