"""`weft agent --cleanup`: takes what agents wrote off nodes, and their files off this machine."""

from pathlib import Path

import msgspec

from weft.cluster import rights
from weft.files.reading import read_text
from weft.files.yaml_text import load as load_yaml
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load as load_endpoint
from weft.kube.preflight import check_server
from weft.node.agent.cleanup import WAIT_S, Cleanup, RuntimeConfiguration
from weft.node.agent.mps_daemon import MpsDaemon, options_here
from weft.node.containerd.putting_back import RuntimeHere, RuntimeThere
from weft.node.device_plugin.cdi_files import CdiFiles

PODS_WAIT_S = 150.0
"""For pods on nodes that restart containerd: the chart's Job may take 280 s in all."""


class CleanupOptions(msgspec.Struct, frozen=True):
    """Of the command line: the `node`, or all ("")."""

    node: str
    kubeconfigs: tuple[Path, ...]
    context: str
    cdi_folder: Path
    cri_socket: Path
    mps: bool
    node_pod: Path | None = None


async def clean(options: CleanupOptions) -> int:
    """How many nodes had anything; the files of this machine go, too."""
    endpoint = load_endpoint(options.context, paths=options.kubeconfigs)
    async with ApiClient(endpoint, ClientOptions(user_agent="weft-agent")) as client:
        who, remedy = "weft agent --cleanup", "name a cluster's administrator with --kubeconfig"
        await check_server(client, who, rights.CLEANUP, remedy)
        wait_s = PODS_WAIT_S if options.node_pod is not None else WAIT_S
        count = await Cleanup(client, options.node, wait_s, _runtimes(options, client)).run()
    CdiFiles(options.cdi_folder).forget_all()
    if options.mps:
        await MpsDaemon(options_here()).stop()
    return count


def _runtimes(options: CleanupOptions, client: ApiClient) -> RuntimeConfiguration | None:
    if options.node:
        return RuntimeHere(options.cri_socket)
    if options.node_pod is None:
        return None
    return RuntimeThere(client, load_yaml(read_text(options.node_pod)))
