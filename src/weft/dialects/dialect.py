"""The contract of a dialect: how one system's pods request GPUs and learn which GPUs they got.

A dialect is stateless. `parse` turns a manifest into a `PodRequest`; `write` turns a placement into
that system's marks, the annotations and labels that say which GPUs a pod has; `read` turns the
marks back into the placement after a restart, so `read(write(p)) == p` for every placement it can
make.
"""

from typing import Literal, Protocol

import msgspec

from weft.dialects.resources import PodWords
from weft.model import Node, Placement, PodManifest, PodRequest

TieBreak = Literal["first", "last", "uuid"]
Compat = Literal["sane", "exact"]


class DialectSettings(msgspec.Struct, frozen=True):
    """Cluster-wide settings that a dialect needs.

    `gpushare_unit`: what one `aliyun.com/gpu-mem` is; `auto` decides by the value (over 192 is
    MiB), `node` leaves it to each node, and to the value only if a node's unit is unknown.
    `interference_table`: whether such a table is configured; if so, gpushare pods with a known
    application are read as coscheml's. `compat`: `exact` reproduces the original systems' quirks
    where golden vectors exist. `volcano_memory_factor`: MiB that one `volcano.sh/vgpu-memory` is
    (its plugin's gpuMemoryFactor). `lends`: whether more memory may be promised than a card has. If
    so, resources that ask for GPUs are also counted as the kubelet counts them, since a kubelet
    refuses pods beyond what its node advertises.
    """

    gpushare_unit: Literal["auto", "node", "GiB", "MiB"] = "auto"
    interference_table: bool = False
    compat: Compat = "sane"
    volcano_memory_factor: int = 1
    lends: bool = False


class UnitSettings(msgspec.Struct, frozen=True):
    """Settings that say how a node counts its GPUs for the kubelet.

    `promised_permille`: how much of a card's memory may be promised, in thousandths of it: more
    than 1000 if memory is lent. `gpushare_unit`: what one `aliyun.com/gpu-mem` is on that node.
    `all_spellings`: whether resources are advertised under their older names as well. `gpu_parts`:
    as how many `nvidia.com/gpu` each card is advertised, so that as many pods can share the card; 1
    if pods always get whole cards. `volcano_memory_factor`: MiB that one `volcano.sh/vgpu-memory`
    is.
    """

    promised_permille: int = 1000
    gpushare_unit: Literal["GiB", "MiB"] = "GiB"
    all_spellings: bool = False
    gpu_parts: int = 1
    volcano_memory_factor: int = 1

    def promised(self, units: int) -> int:
        """Return how many units of memory may be promised of a card that has so many `units`."""
        return units * self.promised_permille // 1000


class PodAnnotations(msgspec.Struct, frozen=True):
    """The annotations and labels that a dialect writes for a placement, and the environment.

    `annotations` and `labels` go into the Binding. `env`, per container name, is what the container
    needs to use its GPUs: it goes into the delivery record, from which the container gets it.
    """

    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    env: dict[str, dict[str, str]] = {}


class Dialect(Protocol):
    """One GPU sharing system's reading and writing of pods."""

    name: str
    scheduler_names: tuple[str, ...]
    tie_break: TieBreak

    def owns(self, pod: PodManifest, settings: DialectSettings) -> bool:
        """Return True if this pod requests GPUs in this system's form (resources, labels,
        schedulerName)."""
        ...

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the request; raise `BadInputError`, naming field and value, if the pod cannot be
        read."""
        ...

    def write(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return the annotations and labels that say where the pod's GPUs are, for this system's
        agents and users, and the environment."""
        ...

    def read(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement on `node` that the pod's annotations and labels give; None if they
        give none."""
        ...
