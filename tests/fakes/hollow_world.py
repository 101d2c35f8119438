"""The nodes of a hollow kubelet, the lives on them and the memory of their GPUs. Pure.

    put_node, put_pods, drop_… ──▶ World ◀── advance(now): does what is due, in the order of time
                                     └────▶ Writes: what the API must be told, in this order

What must hold:
- a GPU's use is the sum of what the running pods on it use; it is over its memory only until the
  pod whose growth did it ends, which is at once;
- every status is a Write, Running before any end, so that nobody sees a pod jump;
- an ended pod holds nothing, whether it ended here or somebody else wrote so.
"""

import contextlib
import heapq
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from fakes.hollow_cards import Given, assigned_devices
from fakes.hollow_life import ERROR, FAILED, Life
from fakes.hollow_pod import DEFAULT_GRACE_S, HollowPod, devices_asked
from fakes.hollow_profile import HollowProfile, read_profile
from fakes.hollow_status import refusal, status_of
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import InventoryFallback, inventory
from weft.kube.structs import KubeNode
from weft.model import BadInputError, Gpu, Node, parse_quantity

log = logging.getLogger("fakes.hollow")

ProfileOf = Callable[[HollowPod], HollowProfile]


def annotated_profile(pod: HollowPod) -> HollowProfile:
    """The profile in the pod's own annotations."""
    return read_profile(pod.metadata.annotations)


class WorldOptions(msgspec.Struct, frozen=True):
    """Options of the hollow nodes.

    `profile` of each pod; `BadInputError` from it fails the pod. `admission`: whether pods that
    ask for more devices than the node advertises fail there. `device_plugins`: whether device
    plugins advertise them, which decides what is said of such a pod; without, the node's status
    alone does, as Weft's agent writes it. `settings` and `rules` are what a scheduler knows of the
    dialects and of nodes that do not speak for themselves.
    """

    profile: ProfileOf = annotated_profile
    admission: bool = True
    device_plugins: bool = True
    settings: DialectSettings = DialectSettings()
    rules: Sequence[InventoryFallback] = ()


class Write(NamedTuple):
    """One change for the API: a status to merge, or (None) the pod's removal."""

    uid: str
    namespace: str
    name: str
    node: str
    status: dict[str, Any] | None


class GpuUse(NamedTuple):
    """One GPU's used memory, in MiB, by pod (`namespace/name`) and in all."""

    node: str
    gpu: int
    uuid: str
    memory_mib: int
    used_mib: int
    by_pod: dict[str, int]


@dataclass(eq=False)
class _Tenant:
    """A pod on its node. `uses` is MiB by GPU, `turn` the number of its valid entry in the heap.

    `final` is the status that was written at its end, `removed` whether its removal was.
    """

    pod: HollowPod
    life: Life
    number: int
    given: Given = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)
    turn: int = 0
    final: dict[str, Any] | None = None
    removed: bool = False

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid


class _Home:
    """A node; `tenants` are those that have not ended, by uid."""

    def __init__(self) -> None:
        self.node = Node("")
        self.advertised: dict[str, int] = {}
        self.memory_mib: dict[int, int] = {}
        self.used_mib: dict[int, int] = {}
        self.tenants: dict[str, _Tenant] = {}

    def know(self, node: KubeNode, rules: Sequence[InventoryFallback]) -> None:
        """The node as it is now."""
        self.node = inventory(node, rules=rules)[0]
        self.memory_mib = {gpu.index: gpu.memory_mib for gpu in self.node.gpus}
        self.advertised = {}
        for name, text in (node.status.allocatable or {}).items():
            if "/" in name:
                with contextlib.suppress(BadInputError):  # only a fake API server has such amounts
                    self.advertised[name] = parse_quantity(text, name)

    def taken(self) -> set[int]:
        """The GPUs that somebody has."""
        return {gpu for tenant in self.tenants.values() for gpu in tenant.given}

    def use_of(self, gpu: Gpu) -> GpuUse:
        """MiB used on a GPU, by each pod and in all."""
        index, used_mib = gpu.index, self.used_mib.get(gpu.index, 0)
        by_pod = {t.pod.key: t.uses[index] for t in self.tenants.values() if index in t.uses}
        return GpuUse(self.node.name, index, gpu.uuid, gpu.memory_mib, used_mib, by_pod)

    def shortage(self, devices: dict[str, int], device_plugins: bool) -> tuple[str, str]:
        """The kubelet's reason and message where fewer devices are left than asked; else ""."""
        for name, amount in devices.items():
            if name not in self.advertised:
                continue
            held = sum(tenant.devices.get(name, 0) for tenant in self.tenants.values())
            has = self.advertised[name]
            if amount > has - held:
                return _refusal_of(name, amount, held, has, device_plugins)
        return "", ""


def _refusal_of(
    name: str, amount: int, held: int, has: int, device_plugins: bool
) -> tuple[str, str]:
    if device_plugins:
        return "UnexpectedAdmissionError", (
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            f"{name}. Requested: {amount}, Available: {has - held}, which is unexpected"
        )
    return f"OutOf{name}", (
        f"Pod was rejected: Node didn't have enough resource: {name}, requested: {amount}, "
        f"used: {held}, capacity: {has}"
    )


class World:
    """All of it. Times are seconds since 1970; `advance` follows every change."""

    def __init__(self, options: WorldOptions | None = None) -> None:
        self._options = options or WorldOptions()
        self._homes: dict[str, _Home] = {}
        self._homeless: dict[str, dict[str, HollowPod]] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._heap: list[tuple[float, int, int, int, _Tenant]] = []
        self._writes: list[Write] = []
        self._count = 0

    # --- what the API says ---

    def put_node(self, node: KubeNode, now_s: float) -> None:
        """A node is there, or is another one now; pods that waited for it begin."""
        name = node.metadata.name
        home = self._homes.setdefault(name, _Home())
        home.know(node, self._options.rules)
        self.put_pods(self._homeless.pop(name, {}).values(), now_s)

    def drop_node(self, name: str) -> None:
        """A node is gone, and nobody speaks for its pods until it is back."""
        home = self._homes.pop(name, _Home())
        for tenant in list(home.tenants.values()):
            self.drop_pod(tenant.uid)
            self._homeless.setdefault(name, {})[tenant.uid] = tenant.pod

    def put_pods(self, pods: Iterable[HollowPod], now_s: float) -> None:
        """Pods are there, or are other ones now; those that began earlier come first."""
        for pod in sorted(pods, key=lambda pod: (pod.status.start_time or "~", pod.key)):
            self._put_pod(pod, now_s)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone from the API, and with it everything here."""
        for waiting in self._homeless.values():
            waiting.pop(uid, None)
        tenant = self._tenants.pop(uid, None)
        if tenant is not None:
            tenant.life.end()
            self._settle(tenant)

    # --- time ---

    @property
    def next_s(self) -> float:
        """When something is due; infinity for never."""
        while self._heap and self._heap[0][3] != self._heap[0][4].turn:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def advance(self, now_s: float) -> list[Write]:
        """Do all that is due by now; what to write, in order."""
        while self.next_s <= now_s:
            self._step(heapq.heappop(self._heap)[4])
        writes, self._writes = self._writes, []
        return writes

    def gpu_use(self) -> list[GpuUse]:
        """Every GPU of every node, used or not."""
        return [home.use_of(gpu) for home in self._homes.values() for gpu in home.node.gpus]

    def on_node(self, name: str) -> list[str]:
        """The uids of the pods that are known there, ended ones too."""
        return [uid for uid, tenant in self._tenants.items() if tenant.pod.spec.node_name == name]

    # --- inner workings ---

    def _put_pod(self, pod: HollowPod, now_s: float) -> None:
        uid, name = pod.metadata.uid, pod.spec.node_name
        tenant, known = self._tenants.get(uid), True
        if tenant is None:
            if name not in self._homes:
                self._homeless.setdefault(name, {})[uid] = pod
                return
            tenant = self._move_in(self._homes[name], pod, now_s)
            known = False
        tenant.pod = pod
        if pod.ended:
            tenant.life.end()
        elif known and tenant.final is not None and not tenant.removed:
            # An older write came through after the last one, or this is old news: the same again.
            self._write(tenant, tenant.final)
        if pod.metadata.deletion_timestamp:
            grace_s = pod.metadata.deletion_grace_period_seconds
            was = tenant.life.stage
            tenant.life.stop(now_s, DEFAULT_GRACE_S if grace_s is None else grace_s)
            if tenant.life.stage != was:
                self._tell(tenant)
        self._settle(tenant)

    def _move_in(self, home: _Home, pod: HollowPod, now_s: float) -> _Tenant:
        """A pod that is new here: it begins, goes on where it was, or is not admitted."""
        self._count += 1
        tenant = _Tenant(pod, Life(pod, HollowProfile(), now_s), self._count)
        self._tenants[tenant.uid] = tenant
        if pod.ended:
            return tenant
        try:
            tenant.life = Life(pod, self._options.profile(pod), now_s)
            requested = devices_asked(pod)
        except BadInputError as error:
            return self._refuse(tenant, refusal("BadHollowProfile", str(error), now_s))
        began = bool(pod.status.start_time)
        if self._options.admission and not began:
            reason, message = home.shortage(requested, self._options.device_plugins)
            if reason:
                return self._refuse(tenant, refusal(reason, message, now_s))
        devices, warning = assigned_devices(pod, home.node, home.taken(), self._options.settings)
        if warning:
            log.warning("%s on %s: %s", pod.key, pod.spec.node_name, warning)
        tenant.given, tenant.devices = devices, requested
        home.tenants[tenant.uid] = tenant
        if began:
            tenant.life.recover(pod)
        elif tenant.life.profile.start_up_s:
            self._tell(tenant)
        return tenant

    def _refuse(self, tenant: _Tenant, status: dict[str, Any]) -> _Tenant:
        tenant.life.end()
        self._write(tenant, status)
        return tenant

    def _step(self, tenant: _Tenant) -> None:
        at_s = tenant.life.due().at_s
        if tenant.life.step():
            self._tell(tenant)
        if (full := self._over(tenant)) and tenant.life.exit(at_s, FAILED, ERROR, full):
            self._tell(tenant)
        self._settle(tenant)

    def _over(self, tenant: _Tenant) -> str:
        """Sets its memory as it is now; the message when that is beyond what a GPU has, else ""."""
        home = self._homes[tenant.pod.spec.node_name]
        for gpu in self._use(tenant, home):
            has_mib = home.memory_mib.get(gpu, 0)
            if home.used_mib[gpu] > has_mib:
                return f"CUDA out of memory: GPU {gpu} has a total capacity of {has_mib} MiB"
        return ""

    def _use(self, tenant: _Tenant, home: _Home) -> list[int]:
        """Count what it uses now; the GPUs on which that is more than before."""
        life, before = tenant.life, tenant.uses
        tenant.uses = {}
        if life.stage == "running":
            tenant.uses = {
                gpu: life.profile.memory_at(life.second, mib) for gpu, mib in tenant.given.items()
            }
        for gpu in before.keys() | tenant.uses.keys():
            more = tenant.uses.get(gpu, 0) - before.get(gpu, 0)
            home.used_mib[gpu] = home.used_mib.get(gpu, 0) + more
        return [gpu for gpu, mib in tenant.uses.items() if mib > before.get(gpu, 0)]

    def _settle(self, tenant: _Tenant) -> None:
        """After any change: its memory, its place, its end, and when it is due again."""
        home = self._homes.get(tenant.pod.spec.node_name)
        if home is not None and tenant.uid in home.tenants:
            self._use(tenant, home)
            if tenant.life.stage == "ended":
                del home.tenants[tenant.uid]
        tenant.turn += 1
        due = tenant.life.due()
        if due.at_s < math.inf:
            entry = (due.at_s, due.rank, tenant.number, tenant.turn, tenant)
            heapq.heappush(self._heap, entry)
        over = tenant.life.stage == "ended" and not tenant.removed and tenant.uid in self._tenants
        if over and tenant.pod.metadata.deletion_timestamp:
            tenant.removed = True
            self._write(tenant, None)

    def _tell(self, tenant: _Tenant) -> None:
        self._write(tenant, status_of(tenant.pod, tenant.life))

    def _write(self, tenant: _Tenant, status: dict[str, Any] | None) -> None:
        meta, node = tenant.pod.metadata, tenant.pod.spec.node_name
        if tenant.life.stage == "ended":
            tenant.final = status or tenant.final
        self._writes.append(Write(tenant.uid, meta.namespace, meta.name, node, status))
