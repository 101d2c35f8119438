"""Keeps the node's GPU resources in its status, from which the kubelet admits pods.

A kubelet refuses pods beyond what its node advertises, and keeps what other clients wrote over its
restarts. So the sums of the node's cards, in the units of each enabled dialect, are written once,
and again when they differ: a card was added, removed or broke, or another client changed the
status. `weft.dev/advertises` names the resources that belong to the agent; all others are left
alone, in particular those served by another system's device plugin.

The kubelet itself writes resources of the agent's own device plugins, every ten seconds: after its
restart it first writes zero, and the correct number ten seconds later. The agent writes that number
in between, once the kubelet has the list of devices (`kubelet_has`); a different value written by
the kubelet later is kept.

Removing a resource, unlike setting it to zero, ends no pod that uses it: a restarting kubelet
admits such pods again.
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
"""Most devices that the agent lists to the kubelet for one resource. A kubelet refuses lists beyond
4 MiB: 100,000 short IDs fit, 200,000 do not."""
_PAUSE_S = 1.0
_TAKEN_S = 1.0
"""After this many seconds a kubelet has read a list of 100,000 devices and can allocate them."""
_LATER_S = 0.1  # the event loop's clock differs slightly from the client's
_TELLS_S = 15.0
"""After this many seconds a kubelet has reported its devices to the API server (default: every 10
s)."""
_NVIDIA = "nvidia"


class ForeignPluginError(WeftError):
    """Another device plugin serves a resource that the agent was configured to own."""


class AccountingSettings(msgspec.Struct, frozen=True):
    """Settings. `dialects`: the dialects whose resources are advertised; None: all that have own
    resources, except those served by another plugin on this node. `own`: resources that are
    advertised only if configured; only `nvidia.com/gpu` is possible. `device_plugins`: device
    plugins report most resources to the kubelet. `by_name`: NRI delivers shares to containers by
    name, so that the number of devices in the kubelet's lists does not matter."""

    dialects: tuple[str, ...] | None = None
    own: tuple[str, ...] = ()
    units: UnitSettings = UnitSettings()
    device_plugins: bool = False
    by_name: bool = True


class DeviceSource(Protocol):
    """Source of the last reading of the node's GPUs; `DeviceWatch` implements it."""

    @property
    def devices(self) -> tuple[GpuDevice, ...]:
        """The GPUs and MIG instances."""
        ...

    @property
    def version(self) -> int:
        """The number of changes so far; 0 before the first reading."""
        ...

    async def changed(self, since: int) -> int:
        """Return the version as soon as it differs from `since`."""
        ...


def dialects_with_resources() -> tuple[str, ...]:
    """Return the dialects that have GPU resources of their own, except NVIDIA's."""
    probe, units = Gpu(0, 1024), UnitSettings()
    counting = [system.name for system in ALL if system.card_units(probe, 1, units)]
    same = ("coscheml", _NVIDIA)  # coscheml: gpushare's resources; nvidia: see `own`
    return tuple(name for name in counting if name not in same)


def advertised_unasked() -> tuple[str, ...]:
    """Return the dialects advertised by default, which excludes systems whose own device plugins
    run next to Weft."""
    beside = {system.name for system in ALL if system.served_by_itself}
    return tuple(name for name in dialects_with_resources() if name not in beside)


def own_resources(node: NodeManifest) -> frozenset[str]:
    """Return the resources that the agent advertises on this node, from its annotation."""
    return frozenset(listed_parts((node.metadata.annotations or {}).get(ADVERTISES, "")))


def _others(amounts: Quantities | None, own: frozenset[str]) -> frozenset[str]:
    """Return the names of the node's non-zero resources, without those in `own`."""
    there = (amounts or {}).items()
    return frozenset(name for name, amount in there if name not in own and _whole(amount))


def switched_on(node: NodeManifest, settings: AccountingSettings) -> tuple[str, ...]:
    """Return the dialects whose resources are advertised on this node; log each one left out.

    `ForeignPluginError` if another device plugin serves a resource that the agent should own.
    """
    wanted = advertised_unasked() if settings.dialects is None else settings.dialects
    own = own_resources(node)
    # Capacity without allocatable is what a kubelet remembers of a removed plugin; it may have been
    # the agent's own, if the Node object was recreated without the annotation. To own a resource,
    # even that must be gone.
    foreign = _others(node.status.allocatable, own)
    remembered = foreign | _others(node.status.capacity, own)
    chosen = []
    for name in wanted:
        served = foreign.intersection(_names_of((name,), settings.units))
        if served:
            log.warning(
                "%s is served by another device plugin: no resource of dialect %s is advertised; "
                "remove that plugin and restart the agent to change this",
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
                f"{resource} is served on this node by another device plugin: the plugin that "
                "registers last would win silently; remove that plugin, or start without --own"
            )
        if resource in remembered:
            raise ForeignPluginError(
                f"{resource}: the kubelet still remembers a removed device plugin; five "
                "minutes after the plugin's end it does not, and the agent can start"
            )
        chosen.append(_NVIDIA)
    return tuple(chosen)


def _names_of(dialects: Iterable[str], units: UnitSettings) -> Collection[str]:
    return amounts_of(advertised_cards((Gpu(0, 2**20),), dialects, units)).capacity


def _whole(amount: str | int | float) -> int:
    try:
        return parse_quantity(amount, "status")
    except BadInputError:
        return -1  # not a number, so never equal to the wanted amount


class Accounting:
    """Maintains one node's resources. Run `run()` as a task; the resources outlive it (see
    `cleanup`).

    `dialects` are those whose resources are advertised, known once `decided` has returned. `counts`
    are writes by reason: `changed` (the GPUs or the settings), `put-back` (another client's
    change), `failed`. Nothing is advertised while `delivers` returns False; call `nudge` when that
    changes.
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
        """Units in which GPUs are counted as resources."""
        if _NVIDIA in self.dialects and "hami" in self.dialects:
            return msgspec.structs.replace(self._settings.units, gpu_parts=PARTS)
        return self._settings.units

    def amounts(self) -> AdvertisedAmounts:
        """Return the amounts of all resources that the node has now, including those reported by
        device plugins."""
        gpus = [device.gpu for device in self._devices.devices]
        return amounts_of(advertised_cards(gpus, self.dialects, self.units))

    def served_by_plugins(self, capacity: Mapping[str, int]) -> frozenset[str]:
        """Return which of the node's resources device plugins report to the kubelet."""
        if not self._settings.device_plugins:
            return frozenset()
        return frozenset(
            name for name, total in capacity.items() if name != GPU_COUNT and total <= MOST_IDS
        )

    def kubelet_has(self, resource: str, listed: bool) -> None:
        """Note that the kubelet received the list of a resource's devices, or closed the
        connection."""
        if not listed:
            self._listed_s.pop(resource, None)
            return
        self._listed_s[resource] = self._client.clock.monotonic()
        asyncio.get_running_loop().call_later(_TAKEN_S + _LATER_S, self._wake.set)

    def nudge(self) -> None:
        """Make `run` compare the resources with the node's status soon."""
        self._wake.set()

    async def decided(self) -> None:
        """Return when `dialects` is known, and the resources are marked as the agent's."""
        await self._decided.wait()

    async def run(self) -> None:
        """Keep the resources correct until cancelled; what is advertised stays."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_node())
            tasks.create_task(self._watch_devices())
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._settle()
                await self._client.clock.sleep(_PAUSE_S)  # avoids a write race with others

    async def check(self) -> None:
        """Raise `ForeignPluginError` if another device plugin serves a resource that the agent
        should own."""
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
        """Write the differences to the node's status, if any."""
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
                log.warning("writing the node's resources failed: %s", error)
                if not isinstance(error, NotFoundError):
                    await self._client.clock.sleep(self._backoff.next_s())
                    self._wake.set()
                return
            self._backoff.reset()
            self.counts["put-back" if amounts == self._written else "changed"] += 1
            self._written = amounts
        self._decided.set()

    def _body(self, node: KubeNode, amounts: AdvertisedAmounts) -> dict[str, object]:
        """Return the patch that corrects the node's status; empty if nothing differs."""
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
        """Return the resources whose lists of devices the kubelet has received, but has probably
        not reported to the API server yet."""
        now_s = self._client.clock.monotonic()
        return {
            name
            for name, listed_s in self._listed_s.items()
            if _TAKEN_S <= now_s - listed_s < _TELLS_S
        }

    def _beyond_plugins(
        self, capacity: Mapping[str, int], plugins: frozenset[str]
    ) -> frozenset[str]:
        """Return the resources that are too large for a device plugin and cannot be delivered
        otherwise."""
        if self._settings.by_name or not self._settings.device_plugins:
            return frozenset()
        withheld = frozenset(capacity) - plugins - {GPU_COUNT}
        for name in sorted(withheld - self._withheld):
            log.error(
                "%s is not advertised: its %d units are more than the %d that a kubelet accepts "
                "from a device plugin; enable NRI, or use a larger unit",
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
    """Return changes that set the `wanted` amounts in `there` and remove the resources in
    `gone`."""
    changes: dict[str, str | None] = {
        name: str(amount)
        for name, amount in sorted(wanted.items())
        if name not in there or _whole(there[name]) != amount
    }
    return changes | {name: None for name in sorted(gone) if name in there}
