"""`weft agent --cleanup`: removes what agents wrote to nodes, and their files on this machine."""

from pathlib import Path

import msgspec
import uvloop

from weft.cluster import rights
from weft.cluster.config.form import Configuration
from weft.cluster.config.read import read
from weft.files.reading import read_text
from weft.files.yaml_text import load as load_yaml
from weft.kube.client import ApiClient, ClientOptions, Endpoint
from weft.kube.config import load as load_endpoint
from weft.kube.preflight import check_server
from weft.node.agent.cleanup import WAIT_S, Cleanup, RuntimeConfiguration
from weft.node.agent.mps_daemon import MpsDaemon, options_here
from weft.node.containerd.putting_back import RuntimeHere, RuntimeThere
from weft.node.device_plugin.cdi_files import CdiFiles

PODS_WAIT_S = 150.0
"""Seconds to wait for pods that restart containerd on nodes: the chart's Job may take 280 s in
all."""


class CleanupOptions(msgspec.Struct, frozen=True):
    """Options of `weft agent --cleanup`.

    This machine's `cdi_folder` and `cri_socket`, the configuration file, and the manifest of a pod
    that restores containerd on other nodes."""

    cdi_folder: Path
    cri_socket: Path
    config: Path | None = None
    node_pod: Path | None = None


def clean_up(
    node: str, kubeconfigs: tuple[Path, ...], context: str, options: CleanupOptions
) -> None:
    """Clean this node, or all nodes if `node` is "", and print the number of nodes that had
    leftovers.

    Also delete the agent's files on this machine."""
    settings = read(options.config) if options.config is not None else Configuration()
    endpoint = load_endpoint(context, paths=kubeconfigs)
    count = uvloop.run(_clean(endpoint, node, options, mps=settings.agent.mps))
    print(f"cleaned {count} {'node' if count == 1 else 'nodes'}")


async def _clean(endpoint: Endpoint, node: str, options: CleanupOptions, *, mps: bool) -> int:
    async with ApiClient(endpoint, ClientOptions(user_agent="weft-agent")) as client:
        who, remedy = "weft agent --cleanup", "name a cluster's administrator with --kubeconfig"
        await check_server(client, who, rights.CLEANUP, remedy)
        wait_s = PODS_WAIT_S if options.node_pod is not None else WAIT_S
        count = await Cleanup(client, node, wait_s, _runtimes(node, options, client)).run()
    CdiFiles(options.cdi_folder).forget_all()
    if mps:
        await MpsDaemon(options_here()).stop()
    return count


def _runtimes(node: str, options: CleanupOptions, client: ApiClient) -> RuntimeConfiguration | None:
    if node:
        return RuntimeHere(options.cri_socket)
    if options.node_pod is None:
        return None
    return RuntimeThere(client, load_yaml(read_text(options.node_pod)))
