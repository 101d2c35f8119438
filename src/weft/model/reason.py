"""Why a pod does not fit a node: a small vocabulary, one code per node, shown to people."""

import enum

import msgspec


class Code(enum.IntEnum):
    """The first check a node fails, in the order the checks are made. 0 means it fits.

    Up to `OUT_OF_SERVICE` a check depends on the node as it is told, from `CPU` on it depends on
    what others hold there.
    """

    FITS = 0
    UNSCHEDULABLE = 1
    OTHER_NODE = 2
    NO_GPU = 3
    WRONG_UNIT = 4
    WRONG_MODEL = 5
    GPU_TOO_SMALL = 6
    TOO_FEW_GPUS = 7
    OUT_OF_SERVICE = 8
    CPU = 9
    NODE_MEMORY = 10
    EXTENDED = 11
    GPU_MEMORY = 12
    GPU_CORES = 13
    GPU_SHARE = 14
    NOT_IDLE = 15
    TOGETHER = 16
    POLICY = 17


TEXT: dict[Code, str] = {
    Code.FITS: "fits",
    Code.UNSCHEDULABLE: "node is cordoned or not ready",
    Code.OTHER_NODE: "pod names another node",
    Code.NO_GPU: "node has no GPU",
    Code.WRONG_UNIT: "node advertises another gpushare unit",
    Code.WRONG_MODEL: "no GPU of an accepted model or UUID",
    Code.GPU_TOO_SMALL: "no GPU is that large",
    Code.TOO_FEW_GPUS: "fewer GPUs than asked for",
    Code.OUT_OF_SERVICE: "GPUs out of service",
    Code.CPU: "insufficient cpu",
    Code.NODE_MEMORY: "insufficient memory",
    Code.EXTENDED: "insufficient extended resource",
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
