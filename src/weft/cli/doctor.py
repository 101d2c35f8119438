"""`weft doctor`: finds what is wrong with a cluster or a GPU node, and suggests remedies."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Exit, Option

from weft.cli.cluster_question import endpoint_of
from weft.cli.options import Context, Kubeconfig, Output
from weft.cli.output import ListOutput, json_text, print_table, table_with
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.reading.finding import DoctorFinding
    from weft.cluster.reading.reading import ClusterReading
    from weft.kube.client import ApiClient, Endpoint
    from weft.node.devices.reader import DeviceReader
    from weft.node.doctor.machine import MachinePod

_Here = Annotated[
    bool | None,
    Option(
        "--machine/--no-machine",
        help="Check this machine as a GPU node.  [default: if it has a kubelet]",
    ),
]
_NodeName = Annotated[
    str, Option(help="This machine's node name.  [default: NODE_NAME, the host's name]")
]
_Root = Annotated[Path, Option(help="The machine's root directory, as mounted in a container.")]
_Devices = Annotated[
    str,
    Option(
        metavar="nvml|FILE",
        help="The machine's GPUs: the driver's, or simulated by a file.  "
        "[default: as this machine's agent, nvml]",
    ),
]


class _KnownNode(NamedTuple):
    """This machine as the API server knows it: its pods by UID (None if unknown), and the resources
    that Weft's agent advertises for it."""

    pods: "dict[str, MachinePod] | None" = None
    advertised: frozenset[str] = frozenset()


_KUBELET = Path("var/lib/kubelet")


def doctor(
    machine: _Here = None,
    node_name: _NodeName = "",
    root: _Root = Path("/"),
    devices: _Devices = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Check cluster and machine for problems that keep shares from containers; exit code 1 if any.

    Each finding has a remedy. Run it as root on a GPU node, or in the agent's pod: kubectl -n
    weft-system exec POD -- weft doctor.
    """
    name = node_name or os.environ.get("NODE_NAME", "") or socket.gethostname()
    here = machine if machine is not None else (root / _KUBELET).is_dir()
    findings, known = asyncio.run(_cluster(kubeconfig, context, name))
    if here:
        findings += _machine(root, lambda: _reader(devices, name, root / "proc"), known)
    _show(findings, output)
    if any(finding.level == "wrong" for finding in findings):
        raise Exit(1)


async def _cluster(
    kubeconfig: Path | None, context: str, node: str
) -> "tuple[list[DoctorFinding], _KnownNode]":
    """Return findings about the cluster, and the API server's view of this node."""
    from weft.cluster.reading.finding import wrong
    from weft.kube.client import ApiClient, ClientOptions
    from weft.model import WeftError

    check, mend = "API server", "name a cluster with --kubeconfig and --context"
    try:
        endpoint = endpoint_of(kubeconfig, context)
    except BadInputError as error:
        return [wrong(check, str(error), mend)], _KnownNode()
    try:
        async with ApiClient(endpoint, ClientOptions(attempts=2)) as client:
            return await _asked(client, endpoint, node)
    except WeftError as error:
        return [wrong(check, f"{endpoint.url}: {error}", mend)], _KnownNode()


async def _asked(
    client: "ApiClient", endpoint: "Endpoint", node: str
) -> "tuple[list[DoctorFinding], _KnownNode]":
    from weft.cluster import rights
    from weft.cluster.reading.cluster_checks import cluster_checks
    from weft.cluster.reading.finding import good
    from weft.cluster.reading.pod_findings import variables_from_elsewhere
    from weft.cluster.reading.reading import HowToRead, read_cluster, rights_finding

    inside = endpoint.inside
    needed = rights.AGENT if inside else rights.DOCTOR
    findings = [
        good("API server", endpoint.url),
        await rights_finding(client, needed, "the agent" if inside else "yours"),
    ]
    read = await read_cluster(client, HowToRead())
    findings += await cluster_checks(client, read, _names(), inside=inside)
    findings.append(
        await variables_from_elsewhere(client, (n.metadata.name for n in read.gpu_nodes))
    )
    own = next((n.advertised for n in read.gpu_nodes if n.metadata.name == node), frozenset())
    return findings, _KnownNode(_pods_of(read, node), own)


def _names() -> frozenset[str]:
    """Return the schedulerNames of the default configuration."""
    from weft.cluster.config.form import Configuration

    return frozenset(profile.scheduler_name for profile in Configuration().profiles)


def _pods_of(read: "ClusterReading", node: str) -> "dict[str, MachinePod]":
    """Return the node's pods by UID; a pod that requests GPUs in any dialect may see GPUs."""
    from weft.cluster.reading.cluster_checks import EXEMPT
    from weft.dialects.dialect import DialectSettings
    from weft.dialects.foreign import foreign_requests
    from weft.dialects.registry import parse_pod
    from weft.node.agent.node_pods import uid_on_node
    from weft.node.doctor.machine import MachinePod

    pods = {}
    for pod in read.pods:
        meta = pod.metadata
        if pod.spec.node_name != node:
            continue
        try:
            asks = bool(parse_pod(pod, DialectSettings()).shape.gpu_requests)
        except BadInputError:
            asks = True  # it does request GPUs, but contradicts itself
        may_see = asks or meta.namespace in EXEMPT or bool(foreign_requests(pod))
        pods[uid_on_node(pod)] = MachinePod(f"{meta.namespace}/{meta.name}", may_see)
    return pods


def _machine(
    root: Path, open_reader: "Callable[[], DeviceReader]", known: "_KnownNode"
) -> "list[DoctorFinding]":
    from weft.node.doctor import machine

    return [
        machine.driver(open_reader),
        machine.device_nodes(root, open_reader),
        machine.cdi(root, open_reader),
        machine.nri_socket(root),
        machine.validator(root),
        machine.kubelet_sockets(root),
        machine.other_plugins(root, known.advertised),
        machine.without_share(root / "proc", known.pods),
    ]


def _reader(devices: str, node: str, proc: Path) -> "DeviceReader":
    """Return a reader of the named GPUs; if `devices` is "", of the GPUs that this machine's agent
    uses."""
    from weft.node.doctor.machine import played_for_agent

    played = Path(devices) if devices not in ("", "nvml") else None
    if not devices:
        played = played_for_agent(proc)
    if played is None:
        from weft.node.devices.nvml import NvmlReader

        return NvmlReader()
    from weft.node.devices.fake import FakeReader

    return FakeReader(played, node)


def _show(findings: "list[DoctorFinding]", output: ListOutput) -> None:
    if output is ListOutput.json:
        print(json_text([finding._asdict() for finding in findings], indent=2))
        return
    print_findings(findings)


def print_findings(findings: "list[DoctorFinding]") -> None:
    """Print one line per finding, and one for its remedy."""
    table = table_with("||")
    for finding in findings:
        table.add_row(f"{finding.level:<6}", finding.check, finding.text)
        if finding.mend:
            table.add_row("", "", f"→ {finding.mend}")
    print_table(table)
