"""The part of the agent that serves device plugins, once the runtime's support of CDI is known."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from weft.kube.client import ApiClient
from weft.kube.codec import NODES
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.model.manifest import Api
from weft.model.runtimes import is_from
from weft.node.agent.accounting import Accounting
from weft.node.agent.device_watch import DeviceWatch
from weft.node.device_plugin.attribution import (
    GUESSED,
    NAMED,
    OPEN,
    REFUSED,
    STARTED,
    WRONG,
    Attribution,
    AttributionWorld,
)
from weft.node.device_plugin.cdi_files import FOLDER as CDI_FOLDER
from weft.node.device_plugin.cdi_files import CdiFiles
from weft.node.device_plugin.device_plugins import DevicePlugins
from weft.node.device_plugin.kubelet_api import FOLDER

log = logging.getLogger("weft.agent")


class KubeletOptions(msgspec.Struct, frozen=True):
    """`cdi`: whether the container runtime resolves CDI names in `cdi_folder`; None: decided by the
    runtime's version. `folder` is the kubelet's folder for device plugins."""

    cdi: bool | None = None
    cdi_folder: Path = CDI_FOLDER
    folder: Path = FOLDER


class DevicePluginPart:
    """The part of the agent that serves its device plugins; the counts of the kubelet's calls
    survive restarts of the part. `registered` is set once the kubelet has accepted all plugins;
    `listeners` are called then, and after each later registration."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        devices: DeviceWatch,
        accounting: Accounting,
        world: AttributionWorld,
        options: KubeletOptions | None = None,
    ) -> None:
        self._client, self._node, self._devices = client, node, devices
        self._accounting, self._world = accounting, world
        self._options = options or KubeletOptions()
        self.registered = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []
        self._attribution: Attribution | None = None
        self._plugins: DevicePlugins | None = None

    @property
    def allocations(self) -> dict[str, int]:
        """Numbers of answers to Allocate, by kind (`NAMED`, `GUESSED`, `OPEN`)."""
        return {kind: self._counts[kind] for kind in (NAMED, GUESSED, OPEN)}

    @property
    def starts(self) -> dict[str, int]:
        """Numbers of answers to PreStartContainer, by outcome (`STARTED`, `REFUSED`, `WRONG`)."""
        return {kind: self._counts[kind] for kind in (STARTED, REFUSED, WRONG)}

    @property
    def _counts(self) -> Counter[str]:
        return self._attribution.counts if self._attribution is not None else Counter()

    @property
    def registrations(self) -> int:
        """Registrations that the kubelet accepted."""
        return self._plugins.registrations if self._plugins is not None else 0

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._attribution is None:
            self._attribution = Attribution(await self._known_world())
        self._plugins = DevicePlugins(
            self._accounting,
            self._devices,
            self._attribution,
            on_registered=self._is_registered,
            on_list=self._accounting.kubelet_has,
            folder=self._options.folder,
        )
        await self._plugins.run()

    def _is_registered(self) -> None:
        self.registered.set()
        for listen in self.listeners:
            listen()

    async def _known_world(self) -> AttributionWorld:
        cdi = self._options.cdi
        if cdi is None:
            runtime = await runtime_of(self._client, self._node)
            cdi = has_cdi(runtime)
            log.info("%s: shares reach containers by %s", runtime, "CDI" if cdi else "environment")
        files = CdiFiles(self._options.cdi_folder) if cdi else None
        return self._world._replace(cdi=files)


# --- CDI of the runtime ---------------------------------------------------------------------------
# Finds whether the node's container runtime resolves CDI names that a kubelet passes on.


# The versions that enable CDI by default; a runtime with CDI disabled ignores the names.
_FROM = {"containerd": (2, 0), "cri-o": (1, 28)}
_AGAIN_S = 2.0


class _NodeInfo(Api, frozen=True):
    container_runtime_version: str = ""


class _Status(Api, frozen=True):
    node_info: _NodeInfo = _NodeInfo()


class _Node(Api, frozen=True):
    status: _Status = _Status()


def has_cdi(runtime: str) -> bool:
    """Return True if this runtime (`containerd://2.2.9`) enables CDI by default."""
    return is_from(_FROM, *runtime.partition("://")[::2])


async def runtime_of(client: ApiClient, node: str) -> str:
    """Return the runtime reported by the node, `containerd://2.2.9`; wait until it is reported."""
    while True:
        try:
            body = await client.call("GET", NODES.of("", node))
            node_info = msgspec.json.decode(body, type=_Node).status.node_info
            if node_info.container_runtime_version:
                return node_info.container_runtime_version
        except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
            log.warning("the node's container runtime cannot be read: %s", error)
        await asyncio.sleep(_AGAIN_S)
