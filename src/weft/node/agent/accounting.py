"""Keeps the node's GPU resources in its status, where the kubelet counts by them.

A kubelet refuses pods beyond what its node advertises and keeps over its restarts what others wrote
there. So the sums of the node's cards, in the units of each system that is switched on, are written
once, and again where they are no longer true: a card came, went or broke, or somebody else changed
them. `weft.dev/advertises` names the resources that are the agent's; others are left alone, above
all those that a device plugin of another system serves.

Those of the agent's own device plugins the kubelet writes, every ten seconds: after its restart it
says first that there are none, and ten seconds later how many. So they are written here meanwhile,
once it has their list (`kubelet_has`); if it then says something else, that stands.

A resource that is gone, unlike one of which there is nothing, ends no pod that has it: a kubelet
that restarts takes such pods up again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from weft.dialects.advertised import AdvertisedAmounts, advertised_cards, amounts_of
from weft.dialects.catalog import ALL
from weft.dialects.dialect import UnitSettings
from weft.dialects.gpushare import GPU_COUNT
from weft.dialects.hami import PARTS
from weft.dialects.node_gpus import listed_parts
from weft.dialects.nvidia import GPU
from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import NODES
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError
from weft.kube.structs import KubeNode
from weft.kube.watch import Added, Deleted, ListWatch, Modified
from weft.model import BadInputError, Gpu, NodeManifest, WeftError, parse_quantity
from weft.model.annotations import ADVERTISES
from weft.model.manifest import Quantities
from weft.model.nearest import unknown
from weft.node.devices.reader import GpuDevice

log = logging.getLogger("weft.agent")

MOST_IDS = 100_000
"""A kubelet takes no list of devices beyond 4 MiB: so many short IDs fit, twice as many do not."""
_PAUSE_S = 1.0
_TAKEN_S = 1.0
"""In so long a kubelet has read a list of 100,000 devices, and gives them away."""
_LATER_S = 0.1  # the loop's clock is not the client's
_TELLS_S = 15.0
"""In so long a kubelet has told the API server of its devices (by default every 10 s)."""
_NVIDIA = "nvidia"


class ForeignPluginError(WeftError):
    """Another device plugin serves what the agent was told to own."""


class AccountingSettings(msgspec.Struct, frozen=True):
    """`dialects`: whose resources are advertised; None: all that have some of their own, but for
    those that somebody else serves on this node. `own`: resources that are advertised only where
    this is asked for; `nvidia.com/gpu` is the only one. `device_plugins`: the kubelet is told most
    resources by device plugins, not by this. `by_name`: containers get their shares whatever the
    kubelet knows.
    """

    dialects: tuple[str, ...] | None = None
    own: tuple[str, ...] = ()
    units: UnitSettings = UnitSettings()
    device_plugins: bool = False
    by_name: bool = True


class DeviceSource(Protocol):
    """The GPUs as they were read last; `DeviceWatch` is one."""

    @property
    def devices(self) -> tuple[GpuDevice, ...]:
        """The GPUs and MIG instances."""
        ...

    @property
    def version(self) -> int:
        """Raised with each change; 0 before they were read."""
        ...

    async def changed(self, since: int) -> int:
        """The version, as soon as it is another than `since`."""
        ...


def dialects_with_resources() -> tuple[str, ...]:
    """The systems that have GPU resources of their own, but for NVIDIA's."""
    probe, units = Gpu(0, 1024), UnitSettings()
    counting = [system.name for system in ALL if system.card_units(probe, 1, units)]
    same = ("coscheml", _NVIDIA)  # gpushare's resources, and what is never advertised unasked
    return tuple(name for name in counting if name not in same)


def advertised_unasked() -> tuple[str, ...]:
    """Those of them that are advertised unless the configuration names others: the rest goes on
    beside Weft, with device plugins of its own."""
    beside = {system.name for system in ALL if system.served_by_itself}
    return tuple(name for name in dialects_with_resources() if name not in beside)


def own_resources(node: NodeManifest) -> frozenset[str]:
    """The resources that the agent answers for on this node."""
    return frozenset(listed_parts((node.metadata.annotations or {}).get(ADVERTISES, "")))


def _others(amounts: Quantities | None, own: frozenset[str]) -> frozenset[str]:
    """The resources of which the node has some, but for our own."""
    there = (amounts or {}).items()
    return frozenset(name for name, amount in there if name not in own and _whole(amount))


def switched_on(node: NodeManifest, settings: AccountingSettings) -> tuple[str, ...]:
    """The dialects whose resources are advertised on this node; each one left out is logged.

    `ForeignPluginError` where another device plugin serves a resource that was to be owned.
    """
    wanted = advertised_unasked() if settings.dialects is None else settings.dialects
    own = own_resources(node)
    # Capacity alone is what a kubelet remembers of a plugin that is gone: our own, where the Node
    # was made anew meanwhile and lost our marker. Who is told to own a resource asks for more.
    foreign = _others(node.status.allocatable, own)
    remembered = foreign | _others(node.status.capacity, own)
    chosen = []
    for name in wanted:
        served = foreign.intersection(_names_of((name,), settings.units))
        if served:
            log.warning(
                "%s is served here by another device plugin: nothing of %s is advertised; remove "
                "that plugin and restart the agent to have it",
                ", ".join(sorted(served)),
                name,
            )
        else:
            chosen.append(name)
    for resource in settings.own:
        if resource != GPU:
            raise BadInputError("--own", unknown(resource, (GPU,), "write"))
        if resource in foreign:
            raise ForeignPluginError(
                f"{resource} is served on this node by another device plugin: the later of two "
                "would win, silently; remove that plugin, or start without --own"
            )
        if resource in remembered:
            raise ForeignPluginError(
                f"{resource}: the kubelet still remembers another device plugin that is gone; it "
                "forgets it five minutes after its end, and the agent can start then"
            )
        chosen.append(_NVIDIA)
    return tuple(chosen)


def _names_of(dialects: Iterable[str], units: UnitSettings) -> Collection[str]:
    return amounts_of(advertised_cards((Gpu(0, 2**20),), dialects, units)).capacity


def _whole(amount: str | int | float) -> int:
    try:
        return parse_quantity(amount, "status")
    except BadInputError:
        return -1  # whatever it is, it is not what it should be


class Accounting:
    """One node's resources. Run `run()` as a task; they outlive it (see `cleanup`).

    `dialects` are those whose resources are advertised, known once `decided` returned. `counts`
    are writes by why: `changed` (the GPUs or the settings), `put-back` (somebody else's change),
    `failed`. While nobody `delivers` there are none; `nudge` says that this is another.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        devices: DeviceSource,
        settings: AccountingSettings | None = None,
        *,
        delivers: Callable[[], bool],
    ) -> None:
        self.dialects: tuple[str, ...] = ()
        self.counts = {"changed": 0, "put-back": 0, "failed": 0}
        self._client, self._name, self._devices = client, node, devices
        self._settings, self._delivers = settings or AccountingSettings(), delivers
        for name in self._settings.dialects or ():
            if name not in (known := dialects_with_resources()):
                raise BadInputError("agent.dialects", unknown(name, known, "write"))
        self._node: KubeNode | None = None
        self._wake, self._decided = asyncio.Event(), asyncio.Event()
        self._written: AdvertisedAmounts | None = None
        self._withheld: frozenset[str] = frozenset()
        self._listed_s: dict[str, float] = {}
        self._backoff = Backoff(_PAUSE_S, 30, client.rng)

    @property
    def units(self) -> UnitSettings:
        """How the cards are counted."""
        if _NVIDIA in self.dialects and "hami" in self.dialects:
            return msgspec.structs.replace(self._settings.units, gpu_parts=PARTS)
        return self._settings.units

    def amounts(self) -> AdvertisedAmounts:
        """All that the node has now, whoever tells the kubelet."""
        gpus = [device.gpu for device in self._devices.devices]
        return amounts_of(advertised_cards(gpus, self.dialects, self.units))

    def served_by_plugins(self, capacity: Mapping[str, int]) -> frozenset[str]:
        """The resources that device plugins tell the kubelet, of those the node has."""
        if not self._settings.device_plugins:
            return frozenset()
        return frozenset(
            name for name, total in capacity.items() if name != GPU_COUNT and total <= MOST_IDS
        )

    def kubelet_has(self, resource: str, listed: bool) -> None:
        """The kubelet was given the list of a resource's devices, or has hung up."""
        if not listed:
            self._listed_s.pop(resource, None)
            return
        self._listed_s[resource] = self._client.clock.monotonic()
        asyncio.get_running_loop().call_later(_TAKEN_S + _LATER_S, self._wake.set)

    def nudge(self) -> None:
        """Look at once."""
        self._wake.set()

    async def decided(self) -> None:
        """Return when `dialects` is known, and the resources are marked as the agent's."""
        await self._decided.wait()

    async def run(self) -> None:
        """Keep them true until it is cancelled; what is advertised stays."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_node())
            tasks.create_task(self._watch_devices())
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._settle()
                await self._client.clock.sleep(_PAUSE_S)  # never a race with somebody else's writes

    async def check(self) -> None:
        """`ForeignPluginError` where another device plugin serves what is to be owned here."""
        node: KubeNode = await self._client.get(NODES, "", self._name)
        switched_on(node, self._settings)

    async def _watch_node(self) -> None:
        selectors = {"fieldSelector": f"metadata.name={self._name}"}
        async for batch in ListWatch(self._client, NODES, selectors=selectors).batches():
            for change in batch:
                if isinstance(change, Added | Modified):
                    self._node = change.object
                elif isinstance(change, Deleted):
                    self._node = None
            self._wake.set()

    async def _watch_devices(self) -> None:
        version = 0
        while True:
            version = await self._devices.changed(version)
            self._wake.set()

    async def _settle(self) -> None:
        """Write what differs, if anything does."""
        node = self._node
        if node is None or not self._devices.version:
            return
        if not self._decided.is_set():
            self.dialects = switched_on(node, self._settings)
        amounts = self.amounts() if self._delivers() else AdvertisedAmounts({}, {})
        body = self._body(node, amounts)
        if body:
            try:
                await self._patch(body)
            except (ApiError, LostError, NotSentError) as error:
                self.counts["failed"] += 1
                log.warning("the node's resources are not written: %s", error)
                if not isinstance(error, NotFoundError):
                    await self._client.clock.sleep(self._backoff.next_s())
                    self._wake.set()
                return
            self._backoff.reset()
            self.counts["put-back" if amounts == self._written else "changed"] += 1
            self._written = amounts
        self._decided.set()

    def _body(self, node: KubeNode, amounts: AdvertisedAmounts) -> dict[str, object]:
        """The patch that makes the node's status true; empty where it is."""
        plugins = self.served_by_plugins(amounts.capacity)
        withheld = self._beyond_plugins(amounts.capacity, plugins)
        names = frozenset(amounts.capacity) - withheld
        left_to_kubelet = plugins - self._just_listed()
        before = own_resources(node)
        status: dict[str, dict[str, str | None]] = {}
        for field, wanted, there in (
            ("capacity", amounts.capacity, node.status.capacity or {}),
            ("allocatable", amounts.allocatable, node.status.allocatable or {}),
        ):
            written = {name: wanted[name] for name in names - left_to_kubelet}
            if changes := _changes(written, there, before - names):
                status[field] = changes
        body: dict[str, object] = {"status": status} if status else {}
        if before != names:
            marks = {ADVERTISES: ",".join(sorted(names))}
            body["metadata"] = {"annotations": marks}
        return body

    def _just_listed(self) -> set[str]:
        """The resources that the kubelet has, and tells the API server of soon."""
        now_s = self._client.clock.monotonic()
        return {
            name
            for name, listed_s in self._listed_s.items()
            if _TAKEN_S <= now_s - listed_s < _TELLS_S
        }

    def _beyond_plugins(
        self, capacity: Mapping[str, int], plugins: frozenset[str]
    ) -> frozenset[str]:
        """The amounts that no device plugin can tell the kubelet and nobody could deliver."""
        if self._settings.by_name or not self._settings.device_plugins:
            return frozenset()
        withheld = frozenset(capacity) - plugins - {GPU_COUNT}
        for name in sorted(withheld - self._withheld):
            log.error(
                "%s is not advertised: its %d units are more than the %d that a kubelet takes from "
                "a device plugin; switch NRI on, or count in a larger unit",
                name,
                capacity[name],
                MOST_IDS,
            )
        self._withheld = withheld
        return withheld

    async def _patch(self, body: dict[str, object]) -> None:
        path = NODES.of("", self._name, "status")
        text = msgspec.json.encode(body)
        await self._client.call("PATCH", path, text, content_type=MERGE_PATCH)


def _changes(
    wanted: Mapping[str, int], there: Quantities, gone: Iterable[str]
) -> dict[str, str | None]:
    """The changes after which `there` has these amounts and none of those gone."""
    changes: dict[str, str | None] = {
        name: str(amount)
        for name, amount in sorted(wanted.items())
        if name not in there or _whole(there[name]) != amount
    }
    return changes | {name: None for name in sorted(gone) if name in there}
