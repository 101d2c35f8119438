"""`kubectl inspect gpushare`: the original's table, byte for byte, for scripts that parse it.

Like the original it reads the nodes' allocatable and the pods' annotations, and does not show real
use (see `weft inspect`). Rows are sorted by name and index where the original's order is random
(Go's maps)."""

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from weft.dialects.gpushare import (
    ALLOCATION,
    GPU_COUNT,
    GPU_MEM,
    PREFIX,
    gpushare_unit_of,
)
from weft.model import BadInputError, parse_quantity
from weft.model.manifest import PodManifest, Quantities

if TYPE_CHECKING:
    from weft.kube.client import ApiClient
    from weft.kube.pods import Pod
    from weft.kube.structs import KubeNode
from collections.abc import Iterator

USAGE = "usage: kubectl inspect gpushare [-d] [NODE]"
PENDING = -1
"""Column for pods whose annotations name no GPU, instead of a GPU's index."""


class SharedNode(NamedTuple):
    """A node as gpushare counts it: memory units in total, and the units of each pod by GPU."""

    name: str
    address: str
    gpus: int
    total: int
    pods: tuple["SharedPod", ...]

    def used(self, gpu: int) -> int:
        """Return the memory units that pods hold of this GPU."""
        return sum(pod.units.get(gpu, 0) for pod in self.pods)

    @property
    def indexes(self) -> list[int]:
        """Indexes of the GPUs that the node has or a pod names; `PENDING` last, if a pod names no
        GPU."""
        named = set(range(self.gpus)).union(*(pod.units for pod in self.pods))
        return sorted(named - {PENDING}) + [PENDING] * (PENDING in named)

    @property
    def pending(self) -> bool:
        """True if a pod on the node names no GPU."""
        return any(PENDING in pod.units for pod in self.pods)

    @property
    def per_gpu(self) -> int:
        """Memory units of one GPU."""
        return self.total // self.gpus if self.gpus else 0


class SharedPod(NamedTuple):
    """A pod and its memory units by GPU."""

    name: str
    namespace: str
    units: dict[int, int]


def main() -> None:
    """Run `kubectl-inspect-gpushare`."""
    arguments = sys.argv[1:]
    details = "-d" in arguments or "--d" in arguments
    names = [text for text in arguments if not text.startswith("-")]
    wrong = [text for text in arguments if text.startswith("-") and text not in ("-d", "--d")]
    if wrong or len(names) > 1:
        asked = set(wrong) <= {"-h", "-help", "--help"} and len(names) < 2
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    try:
        print(asyncio.run(_tell(names[0] if names else "", details)), end="")
    except Exception as error:
        from weft.model import WeftError

        if not isinstance(error, WeftError):
            raise
        print(f"Failed due to {error}", end="")
        sys.exit(1)


async def _tell(name: str, details: bool) -> str:
    from weft.kube.client import ApiClient
    from weft.kube.config import load

    async with ApiClient(load()) as client:
        nodes = await shared_nodes(client, name)
    return details_of(nodes) if details else summary_of(nodes)


async def shared_nodes(client: "ApiClient", name: str = "") -> list[SharedNode]:
    """Read the nodes that share GPUs; only the named one if `name` is given."""
    from weft.kube.codec import NODES, PODS
    from weft.kube.services import everything

    nodes = [await client.get(NODES, "", name)] if name else await everything(client, NODES)
    pods = await everything(client, PODS)
    of_node: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.spec.node_name and not pod.ended:
            of_node.setdefault(pod.spec.node_name, []).append(pod)
    rows = [_node(node, of_node.get(node.metadata.name, [])) for node in nodes]
    return [node for node in rows if node.total > 0]


def summary_of(nodes: Sequence[SharedNode]) -> str:
    """Format one line per node."""
    most = max((node.gpus for node in nodes), default=0)
    pending = any(node.pending for node in nodes)
    heads = ["NAME", "IPADDRESS", *(f"GPU{gpu}(Allocated/Total)" for gpu in range(most))]
    heads += ["PENDING(Allocated)"] * pending
    lines = ["\t".join((*heads, f"GPU Memory({_unit(nodes)})"))]
    used_by_node = []
    for node in nodes:
        cells = [node.name, node.address]
        shown = [gpu for gpu in node.indexes if PENDING < gpu < most]
        cells += [
            f"{node.used(gpu)}/{node.per_gpu}" if gpu in shown else "0/0" for gpu in range(most)
        ]
        cells += [str(node.used(PENDING)) if node.pending else ""] * pending
        used_by_node.append(sum(node.used(gpu) for gpu in [*shown, PENDING]))
        lines.append("\t".join((*cells, f"{used_by_node[-1]}/{node.total}")))
    dashes = len(lines[1].encode()) + 1 + 20 if nodes else 0
    lines += ["-" * dashes, "Allocated/Total GPU Memory In Cluster:"]
    lines.append(f"{_part(sum(used_by_node), sum(node.total for node in nodes))}\t\n")
    return aligned("\n".join(lines))


def details_of(nodes: Sequence[SharedNode]) -> str:
    """Format one table per node, with one line per pod."""
    text, dashes, used_in_all = "", 0, 0
    for node in nodes:
        heads = ["NAME", "NAMESPACE", *(f"GPU{gpu}(Allocated)" for gpu in range(node.gpus))]
        heads += ["Pending(Allocated)"] * node.pending
        rows = "".join(_row(node, pod) for pod in _by_gpu(node))
        dashes = dashes or len(rows.encode()) + 10
        used = sum(node.used(gpu) for gpu in node.indexes)
        used_in_all += used
        text += f"\nNAME:\t{node.name}\nIPADDRESS:\t{node.address}\n\n"
        text += "\t".join((*heads, "\n")) + rows
        text += f"Allocated :\t{used} ({_percent(used, node.total)}%)\t\n"
        text += f"Total :\t{node.total} \t\n{'-' * dashes}\n"
    total = sum(node.total for node in nodes)
    text += f"\n\nAllocated/Total GPU Memory In Cluster:\t{_part(used_in_all, total)}\t\n"
    return aligned(text)


def _by_gpu(node: SharedNode) -> list[SharedPod]:
    """Return each pod once, ordered by its first GPU."""
    order = {gpu: place for place, gpu in enumerate(node.indexes)}
    return sorted(node.pods, key=lambda pod: min(order[gpu] for gpu in pod.units))


def _row(node: SharedNode, pod: SharedPod) -> str:
    columns = [*range(node.gpus), *([node.gpus] if node.pending else [])]
    units = {node.gpus if gpu == PENDING else gpu: held for gpu, held in pod.units.items()}
    cells = (str(units.get(gpu, 0)) for gpu in columns)
    return "\t".join((pod.name, pod.namespace, *cells, "\n"))


def _part(used: int, total: int) -> str:
    return f"{used}/{total} ({_percent(used, total)}%)"


def _percent(used: int, total: int) -> int:
    return int(used / total * 100) if total else 0


def _unit(nodes: Sequence[SharedNode]) -> str:
    """Return the memory unit, GiB or MiB, judged by the first node that reports GPUs."""
    return next((gpushare_unit_of(node.per_gpu) for node in nodes if node.gpus), "")


def _node(node: "KubeNode", pods: "Sequence[Pod]") -> SharedNode:
    allocatable = node.status.allocatable or {}
    addresses = node.status.addresses or ()
    internal = (a.address for a in addresses if a.type == "InternalIP")
    shared = []
    for pod in sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        asked = sum(_amount(c.resources.limits or {}, GPU_MEM) for c in pod.spec.containers)
        if asked > 0:
            meta = pod.metadata
            shared.append(SharedPod(meta.name, meta.namespace, _units(pod, asked)))
    return SharedNode(
        node.metadata.name,
        next(internal, "unknown"),
        _amount(allocatable, GPU_COUNT),
        _amount(allocatable, GPU_MEM),
        tuple(shared),
    )


def _units(pod: PodManifest, asked: int) -> dict[int, int]:
    """Return memory units by GPU, from gpushare 2.0's annotation.

    Without it, all units are on the GPU in the older annotation, or under `PENDING` without
    either."""
    import msgspec

    annotations = pod.metadata.annotations or {}
    units: dict[int, int] = {}
    try:
        text = annotations.get(ALLOCATION, "{}")
        for container in msgspec.json.decode(text, type=dict[int, dict[int, int]]).values():
            for gpu, held in container.items():
                units[gpu] = units.get(gpu, 0) + held
    except (msgspec.DecodeError, RecursionError):
        units = {}
    if units:
        return units
    try:
        return {int(annotations.get(PREFIX + "IDX", "")): asked}
    except ValueError:
        return {PENDING: asked}


def _amount(amounts: Quantities, name: str) -> int:
    try:
        return parse_quantity(amounts[name], name) if name in amounts else 0
    except BadInputError:
        return 0


# --- columns --------------------------------------------------------------------------------------
# Aligns text in columns as Go's text/tabwriter does: byte for byte, with trailing blanks.
#
# A cell ends with a tab; text after a line's last tab is in no column. A column is as wide as its
# widest cell among consecutive lines that have the column, plus a gap.


def aligned(text: str, gap: int = 2) -> str:
    """Return the text with every tab replaced by blanks (`NewWriter(…, 0, 0, gap, ' ', 0)`)."""
    lines = [line.split("\t") for line in text.split("\n")]
    widths: list[list[int]] = [[0] * (len(line) - 1) for line in lines]
    for column in range(max(map(len, lines)) - 1):
        for first, behind in _blocks(lines, column):
            rows = range(first, behind)
            width = max(len(lines[row][column]) for row in rows) + gap
            for row in rows:
                widths[row][column] = width
    return "\n".join(
        "".join(map(str.ljust, line, width)) + line[-1]
        for line, width in zip(lines, widths, strict=True)
    )


def _blocks(lines: Sequence[Sequence[str]], column: int) -> Iterator[tuple[int, int]]:
    """Yield (first line, line after the last) for each run of consecutive lines with this
    column."""
    first = None
    for row, line in enumerate([*lines, ()]):
        if column < len(line) - 1:
            first = row if first is None else first
        elif first is not None:
            yield first, row
            first = None
