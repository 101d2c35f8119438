"""Small traces, written and in memory."""

from pathlib import Path

from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.openb import TracePod, shape_of
from weft.lab.simulate.scenario import Scenario
from weft.model import Node
from weft.testing import node

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"  # noqa: E501


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def trace_pod(
    name: str, gpus: int = 1, milli: int = 1000, *, cpu: int = 0, times: tuple[int | None, ...] = ()
) -> TracePod:
    """`times` are creation, deletion and scheduling."""
    return TracePod(name, shape_of(cpu, 0, gpus, milli), gpus, milli if gpus else 0, *times)


def scenario(pods: list[TracePod], *nodes: Node) -> Scenario:
    return Scenario(list(nodes) or [node("a", gpus=1)], pods)


def in_order(world: Scenario, seed: int = 0) -> Arrivals:
    """Pods as they stand in the list, nodes ranked likewise."""
    return Arrivals(seed, list(range(len(world.pods))), list(range(len(world.nodes))))
