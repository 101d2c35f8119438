"""`weft agent --cleanup`: takes what agents wrote off nodes, and their files off this machine."""

from pathlib import Path

from weft.cluster import rights
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load
from weft.kube.preflight import check_server
from weft.node.agent.cleanup import Cleanup
from weft.node.agent.mps_daemon import MpsDaemon, options_here
from weft.node.device_plugin.cdi_files import CdiFiles


async def clean(
    node: str, kubeconfigs: tuple[Path, ...], context: str, cdi_folder: Path, *, mps: bool
) -> int:
    """How many nodes had anything: of all ("") or of this one; the files of this machine, too."""
    endpoint = load(context, paths=kubeconfigs)
    async with ApiClient(endpoint, ClientOptions(user_agent="weft-agent")) as client:
        who, remedy = "weft agent --cleanup", "name a cluster's administrator with --kubeconfig"
        await check_server(client, who, rights.CLEANUP, remedy)
        count = await Cleanup(client, node).run()
    CdiFiles(cdi_folder).forget_all()
    if mps:
        await MpsDaemon(options_here()).stop()
    return count
