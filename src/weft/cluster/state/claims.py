"""Charges ResourceClaims: every allocated device is held, whichever scheduler allocated it, with or
without a pod.

    claim, allocated ──▶ its devices ──▶ the cards of a node ──▶ PodSeenBound, by the claim's UID
    not allocated any more, or gone ──────────────────────────▶ PodGone

A claim counts like a bound pod of another scheduler. It is charged for each allocated device:
- a device that claims may share: the memory and cores that the claim consumes of it. If it consumes
  no memory, it has no limit: it is charged its part of the device's shares, if the driver counts
  shares, else all memory.
- any other device, and one whose consumed amount is unknown: the whole card or partition.
- a device that is on no card that its node shows: what is charged for a pod that does not say which
  GPUs it has (`bound_share`): a whole card, the last idle one, or its part on every card.
- a device that a slice shows and that is not a GPU: nothing.
Once a device was found on a card, it stays charged there, even while its ResourceSlices are gone.
No pod is evicted for a claim, and no claim is evicted: the engine treats it as a latency-critical
pod whose share is uncertain.
"""

import datetime
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from weft.cluster.state.bound_share import BoundShare, GuessedUse, guessed
from weft.cluster.state.slices import (
    CORES,
    MEMORY,
    SHARES,
    DeviceKey,
    PoolKey,
    SliceGpu,
    SliceView,
    local,
)
from weft.core.engine import Event, PodGone, PodSeenBound
from weft.dialects.catalog import NONE, is_gpu_resource
from weft.dialects.inventory import UNKNOWN_MIB
from weft.dialects.resources import FULL_MILLI, whole_cards
from weft.kube.dra import AllocatedDevice, DeviceClass, ResourceClaim
from weft.kube.pods import Pod, PodContainer
from weft.kube.watch import Change, Deleted
from weft.model import (
    BadInputError,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    Placement,
    PodRequest,
    Shape,
    Share,
    parse_quantity,
)
from weft.model.bad_input import BadInputKind
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPU_MILLI
from weft.model.request import LATENCY_CRITICAL

log = logging.getLogger("weft.cluster")

Key = tuple[str, str]
"""Namespace and name of an object."""
NodeOf = Callable[[str], Node | None]
_MIB = 2**20


class DeviceHold(NamedTuple):
    """The GPU of a node, and the part of it, that one allocated device occupies.

    `node` is "" if the node is unknown. `gpu` is −1 if the GPU is unknown. `memory_mib` is −1 for
    all of the GPU's memory. `problem` says in words what is wrong, "" for nothing, and `kind` is
    the kind of bad input as which it is counted.
    """

    node: str
    gpu: int
    uuid: str = ""
    memory_mib: int = -1
    milli: int = FULL_MILLI
    problem: str = ""
    kind: BadInputKind | None = None


class Consumed(NamedTuple):
    """The part of a device that a claim holds: memory (MiB; −1: the fraction `shares`, numerator
    and denominator) and cores (thousandths of the device's). `problem` and `kind` are as in
    `DeviceHold`."""

    memory_mib: int = -1
    milli: int = FULL_MILLI
    shares: tuple[int, int] = (1, 1)
    problem: str = ""
    kind: BadInputKind | None = None


class ReadingClaims(NamedTuple):
    """Everything needed to read claims: slices, the extended resource of each DeviceClass by the
    class's name, and nodes by name."""

    slices: SliceView
    classes: Mapping[str, str]
    node: NodeOf


# --- one claim -----------------------------------------------------------------------------------


def holds_of(claim: ResourceClaim, by: ReadingClaims) -> list[DeviceHold | None]:
    """Return what each allocated device of the claim occupies; None for a device that is no GPU, or
    allocated only for admin access."""
    allocation = claim.status.allocation
    if allocation is None:
        return []
    return [_hold(claim, device, by) for device in allocation.devices.results or ()]


def _hold(claim: ResourceClaim, device: AllocatedDevice, by: ReadingClaims) -> DeviceHold | None:
    key: DeviceKey = device.driver, device.pool, device.device
    if device.admin_access:
        return None
    facts = by.slices.facts(key)
    if facts is None and (by.slices.has(key) or not _may_be_gpu(claim, device, by)):
        return None
    amount = consumed(device, facts)
    memory_mib, milli, _, problem, kind = amount
    name = (facts.node if facts is not None else "") or node_named(claim) or device.pool
    node, label = by.node(name), "/".join(key)
    if facts is None:
        problem, kind = f"device {label} is in no complete ResourceSlice", "device-in-no-slice"
    if node is None and (facts is None or not facts.node) and not node_named(claim):
        problem = (
            f"{problem or f'device {label} is not tied to one node'}, and the claim names none"
        )
        return DeviceHold("", -1, "", memory_mib, milli, problem, kind)
    found = on_card(key, facts.node, node, by.slices) if facts is not None and node else None
    if found is None:
        if not problem and node is not None:
            problem = f"device {label} is not among the GPUs of node {name}"
            kind = "device-on-no-card"
        return DeviceHold(name, -1, "", memory_mib, milli, problem, kind)
    gpu, part = found
    memory_mib, milli = _of_card(amount, gpu, part)
    return DeviceHold(name, gpu.index, gpu.uuid, memory_mib, milli, problem, kind)


def consumed(device: AllocatedDevice, facts: SliceGpu | None) -> Consumed:
    """Return the part of the device that the claim holds; `facts` is the device as its slice shows
    it."""
    amounts = {local(name): each for name, each in (device.consumed_capacity or {}).items()}
    memory = next((amounts[name] for name in MEMORY if name in amounts), None)
    try:
        size = parse_quantity(memory, "consumedCapacity: memory") if memory is not None else 0
        cores = next((parse_quantity(amounts[n], n) for n in CORES if n in amounts), 0)
        shares = parse_quantity(amounts.get(SHARES, 0), f"consumedCapacity: {SHARES}")
    except BadInputError as error:
        return Consumed(problem=str(error), kind="mark-unreadable")
    if not size and facts is not None and 0 < shares <= facts.shares:
        return Consumed(-1, FULL_MILLI * shares // facts.shares, (shares, facts.shares))
    if memory is None:
        return Consumed()
    memory_mib, milli, problem = min(-(-size // _MIB), MOST_GPU_MIB), FULL_MILLI if cores else 0, ""
    if facts is not None and facts.cores:
        milli = min(-(-FULL_MILLI * cores // facts.cores), MOST_GPU_MILLI)
        problem = f"{cores} cores were consumed of {facts.cores}" if milli > FULL_MILLI else ""
    if facts is not None and facts.memory_bytes and size > facts.memory_bytes:
        problem = f"{memory_mib:,} MiB were consumed of {facts.memory_mib:,} MiB"
    kind: BadInputKind | None = "consumed-beyond-capacity" if problem else None
    if not size:
        return Consumed(-1, milli or FULL_MILLI, problem=problem, kind=kind)
    if facts is not None and size == facts.memory_bytes:
        memory_mib = -1  # a GPU may have a fraction of a MiB more than its node reports
    return Consumed(memory_mib, milli, problem=problem, kind=kind)


def _of_card(amount: Consumed, gpu: Gpu, part: Gpu | None) -> tuple[int, int]:
    """Return the amount of a device as MiB and thousandths of cores of the GPU; `part` describes
    the device's partition, None if the device is the whole GPU."""
    whole = gpu if part is None else part
    size_mib, milli = min(whole.memory_mib, gpu.memory_mib), amount.milli
    memory_mib = amount.memory_mib
    if memory_mib < 0:
        memory_mib = size_mib * amount.shares[0] // amount.shares[1]
    if part is not None and gpu.memory_mib:
        milli = -(-milli * size_mib // gpu.memory_mib)
    return memory_mib, milli


def on_card(
    key: DeviceKey, where: str, node: Node, slices: SliceView
) -> tuple[Gpu, Gpu | None] | None:
    """Find the device `key` among the GPUs of `node`, and return (GPU, None). The GPU is matched by
    UUID, or by index if the node's GPUs have no UUIDs; `where` is the node's name in the slices.

    For a partition that the node does not show, return (its card, the partition); the latter is
    None if its size is unknown. Return None if neither is found.
    """
    cards = slices.cards(where)
    index = cards.index_of.get(key, -1)
    own = next((gpu for gpu in cards.gpus if gpu.index == index), None)
    if own is None:
        return None
    if own.parent is None:
        return None if (gpu := _same(own, node)) is None else (gpu, None)
    card = next((each for each in cards.gpus if each.index == own.parent), None)
    gpu = _same(card, node) if card is not None else None
    if (part := _same(own, node, gpu)) is not None:
        return part, None
    return None if gpu is None else (gpu, None if own.memory_mib == UNKNOWN_MIB else own)


def _same(own: Gpu, node: Node, card: Gpu | None = None) -> Gpu | None:
    """Return the node's GPU that is the same as `own`, by UUID, else by index; None if there is
    none. A partition must be one of `card`. A partition without a UUID does not exist yet, and does
    not match one with a UUID, which may have the same index by chance."""
    uuid, by_index = own.uuid, None
    for gpu in node.gpus:
        if uuid and gpu.uuid == uuid:
            return gpu
        if gpu.index == own.index and (gpu.parent is None) == (own.parent is None):
            by_index = gpu
    if by_index is None or (uuid and by_index.uuid):
        return None
    if own.parent is None:
        return by_index
    is_of_card = card is not None and by_index.parent == card.index
    return by_index if is_of_card and (uuid or not by_index.uuid) else None


def node_named(claim: ResourceClaim) -> str:
    """Return the one node to which the claim's allocation is bound; "" if it is bound to none or
    several."""
    allocation = claim.status.allocation
    if allocation is None or allocation.node_selector is None:
        return ""
    for term in allocation.node_selector.node_selector_terms or ():
        for field in term.match_fields or ():
            if field.key == "metadata.name" and len(field.values or ()) == 1:
                return (field.values or [""])[0]
    return ""


def _may_be_gpu(claim: ResourceClaim, device: AllocatedDevice, by: ReadingClaims) -> bool:
    """Return True for a device in no slice that may be a GPU, judging by its driver and class."""
    if by.slices.is_of_gpus(device.driver) or "gpu" in device.driver.lower():
        return True
    request, _, sub = device.request.partition("/")
    for asked in claim.spec.devices.requests or ():
        if asked.name == request:
            chosen = [each for each in asked.first_available or () if each.name == sub]
            for one in (*([asked.exactly] if asked.exactly else ()), *chosen):
                if is_gpu_resource(by.classes.get(one.device_class_name, "")):
                    return True
    return False


def beside_claims(pod: Pod, covered: frozenset[tuple[str, str]]) -> Pod:
    """Return the pod without the resources that a claim already provides; `covered` are pairs of
    container and resource."""

    def without(container: PodContainer) -> PodContainer:
        names = {resource for name, resource in covered if name == container.name}
        if not names:
            return container
        asked = container.resources
        limits = {n: q for n, q in (asked.limits or {}).items() if n not in names}
        requests = {n: q for n, q in (asked.requests or {}).items() if n not in names}
        return replace(container, resources=replace(asked, limits=limits, requests=requests))

    spec = replace(
        pod.spec,
        containers=[without(each) for each in pod.spec.containers],
        init_containers=[without(each) for each in pod.spec.init_containers or ()] or None,
    )
    return replace(pod, spec=spec)


# --- all claims ----------------------------------------------------------------------------------


class ClaimCharge(NamedTuple):
    """A claim's charge on one node: shares of known GPUs, and requests for GPUs that are unknown
    (`anywhere`)."""

    claim: ResourceClaim
    node: str
    shares: tuple[Share, ...] = ()
    anywhere: tuple[GpuRequest, ...] = ()

    def driver_of(self, share: Share) -> str:
        """Return the driver of the device of this share; if the GPU was guessed, that of the
        claim's first device."""
        allocation = self.claim.status.allocation
        results = allocation.devices.results or () if allocation is not None else ()
        number = share.gpu_request if share in self.shares else 0
        return results[number].driver if number < len(results) else ""


class ClaimView:
    """The allocated claims. `problems` says in words what is wrong with a claim, by UID, and
    `kinds` as which kind of bad input it is counted. `assumed` says what is charged if a device's
    GPU is unknown, by holder.

    A holder is a claim on one node: it is named by the claim's UID, followed by the node's name for
    each node but the claim's first.
    """

    def __init__(
        self,
        slices: SliceView | None = None,
        node: NodeOf = lambda _: None,
        wall: Callable[[], datetime.datetime] | None = None,
        on_problem: Callable[[ResourceClaim, str], None] | None = None,
    ) -> None:
        self.problems: dict[str, str] = {}
        self.kinds: dict[str, frozenset[BadInputKind]] = {}
        self.assumed: dict[str, str] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self._classes: dict[str, str] = {}
        self._by = ReadingClaims(slices or SliceView(), self._classes, node)
        self._wall, self._on_problem = wall, on_problem
        self._uids: dict[Key, str] = {}
        self._charges: dict[str, ClaimCharge] = {}
        self._more: dict[str, tuple[str, ...]] = {}  # holders of claims on more than one node
        self._on_node: dict[str, set[str]] = {}
        self._nowhere: set[str] = set()  # claims with a device on a node that does not exist
        self._of_pool: dict[PoolKey, set[str]] = {}
        self._of_gpus: set[str] = set()  # drivers that had GPUs at the last charge
        self._sent: dict[str, Placement] = {}

    @property
    def holders(self) -> int:
        """Number of holders of GPUs: one for each claim and node."""
        return len(self._charges)

    def take_class(self, change: Change[DeviceClass]) -> tuple[list[Event], set[str]]:
        """Take in a class that was added, changed or deleted: devices of the class that are in no
        slice may be GPUs now, or no longer. Return as `take` does."""
        shown = change.object  # type: ignore[union-attr]
        name = shown.metadata.name
        before = self._classes.pop(name, "")
        if not isinstance(change, Deleted):
            self._classes[name] = shown.spec.extended_resource_name
        if is_gpu_resource(before) == is_gpu_resource(self._classes.get(name, "")):
            return [], set()
        return self._charge_all(self.claims)

    def take(self, change: Change[ResourceClaim]) -> tuple[list[Event], set[str]]:
        """Take in a claim that was added, changed or deleted. Return the events for the engine, and
        the nodes on which the charges changed."""
        claim = change.object  # type: ignore[union-attr]
        meta, allocation = claim.metadata, claim.status.allocation
        known = self.claims.get(meta.uid)
        if isinstance(change, Deleted) or allocation is None or not allocation.devices.results:
            return self._free(meta.uid) if known is not None else ([], set())
        self.claims[meta.uid] = claim
        self._uids[meta.namespace, meta.name] = meta.uid
        if known is not None and known.status.allocation == allocation:
            return [], set()
        if known is not None:
            self._forget(known)
        for device in allocation.devices.results:
            self._of_pool.setdefault((device.driver, device.pool), set()).add(meta.uid)
        return self._charge(meta.uid, anew=True)

    def pool_changed(self, pool: PoolKey) -> tuple[list[Event], set[str]]:
        """Update claims after the pool's slices changed; return as `take` does. Claims of other
        pools on the same nodes are updated too, since two drivers' devices may be one GPU. If the
        driver now has its first GPUs, or no longer any, the claims of all its pools are updated."""
        driver, moved = pool[0], self._by.slices.moved
        self._by.slices.moved = set()
        holders = (holder for name in moved for holder in self._on_node.get(name, ()))
        beside = {self._charges[holder].claim.metadata.uid for holder in holders}
        is_of_gpus = self._by.slices.is_of_gpus(driver)
        if is_of_gpus == (driver in self._of_gpus):
            return self._charge_all(beside | self._of_pool.get(pool, set()))
        (self._of_gpus.add if is_of_gpus else self._of_gpus.discard)(driver)
        pools = [users for (other, _), users in self._of_pool.items() if other == driver]
        return self._charge_all(beside.union(*pools))

    def node_changed(self, name: str) -> tuple[list[Event], set[str]]:
        """Update claims after a node was added or its GPUs changed; return as `take` does."""
        here = self._on_node.get(name, ())
        known = {self._charges[holder].claim.metadata.uid for holder in here}
        return self._charge_all(known | self._nowhere)

    def _charge_all(self, uids: Iterable[str]) -> tuple[list[Event], set[str]]:
        events, nodes = list[Event](), set[str]()
        for uid in sorted(uids):
            more, there = self._charge(uid)
            events += more
            nodes |= there
        return events, nodes

    def _free(self, uid: str) -> tuple[list[Event], set[str]]:
        claim = self.claims.pop(uid)
        key = claim.metadata.namespace, claim.metadata.name
        if self._uids.get(key) == uid:
            del self._uids[key]
        self._forget(claim)
        self._nowhere.discard(uid)
        self.problems.pop(uid, None)
        self.kinds.pop(uid, None)
        return self._place(uid, {})

    def _forget(self, claim: ResourceClaim) -> None:
        """Remove the claim from the users of its devices' pools, as this allocation has ended or
        changed."""
        uid, allocation = claim.metadata.uid, claim.status.allocation
        for device in allocation.devices.results or () if allocation else ():
            pool = device.driver, device.pool
            users = self._of_pool.get(pool, set())
            users.discard(uid)
            if not users:
                self._of_pool.pop(pool, None)

    def _charge(self, uid: str, *, anew: bool = False) -> tuple[list[Event], set[str]]:
        """Charge the claim by the present slices and nodes; `anew`: its allocation changed. Return
        as `take` does."""
        claim = self.claims[uid]
        by_node: dict[str, ClaimCharge] = {}
        problems: list[str] = []
        kinds = set[BadInputKind]()
        self._nowhere.discard(uid)
        for number, hold in enumerate(holds_of(claim, self._by)):
            if hold is None:
                continue
            problems += [hold.problem] if hold.problem else []
            kinds.update([hold.kind] if hold.kind else ())
            before = None if anew or hold.gpu >= 0 else self._found(uid, number)
            charged = before or hold
            if charged.node:
                known = by_node.get(charged.node, ClaimCharge(claim, charged.node))
                by_node[charged.node] = _with(known, number, charged)
            else:
                self._nowhere.add(uid)
        self._tell(claim, "; ".join(problems), frozenset(kinds))
        return self._place(uid, by_node)

    def _found(self, uid: str, number: int) -> DeviceHold | None:
        """Return where the device `number` of the claim's allocation was found earlier; None if it
        never was."""
        for charge in (self._charges[holder] for holder in self._holders(uid)):
            for share in charge.shares:
                if share.gpu_request == number:
                    name, mib, milli = charge.node, share.memory_mib, share.milli
                    return DeviceHold(name, share.gpu, share.uuid, mib, milli)
        return None

    def _holders(self, uid: str) -> tuple[str, ...]:
        return self._more.get(uid) or ((uid,) if uid in self._charges else ())

    def _tell(self, claim: ResourceClaim, problem: str, kinds: frozenset[BadInputKind]) -> None:
        self.kinds.pop(claim.metadata.uid, None)
        if kinds:
            self.kinds[claim.metadata.uid] = kinds
        uid, before = claim.metadata.uid, self.problems.pop(claim.metadata.uid, "")
        if problem:
            self.problems[uid] = problem
        if problem and problem != before and self._on_problem is not None:
            self._on_problem(claim, problem)

    def _place(self, uid: str, by_node: Mapping[str, ClaimCharge]) -> tuple[list[Event], set[str]]:
        """Replace the charges of the claim's holders by these, by node; return as `take` does."""
        wanted = {
            uid if place == 0 else f"{uid}/{name}": by_node[name]
            for place, name in enumerate(sorted(by_node))
        }
        events, nodes = list[Event](), set[str]()
        for holder in self._holders(uid):
            before = self._charges.pop(holder)
            self._on_node[before.node].discard(holder)
            if before.anywhere:
                nodes.add(before.node)
            if holder not in wanted:
                nodes.add(before.node)
                self.assumed.pop(holder, None)
                if self._sent.pop(holder, None) is not None:
                    events.append(PodGone(holder))
        for holder, charge in wanted.items():
            self._charges[holder] = charge
            self._on_node.setdefault(charge.node, set()).add(holder)
            if charge.anywhere:
                nodes.add(charge.node)  # the guesses on the node decide which GPUs
            elif (event := self.seen(holder, charge.shares)) is not None:
                nodes.add(charge.node)
                events.append(event)
        self._more.pop(uid, None)
        if len(wanted) > 1:
            self._more[uid] = tuple(wanted)
        return events, nodes

    def seen(self, holder: str, shares: tuple[Share, ...], why: str = "") -> PodSeenBound | None:
        """Return the event that the holder holds these shares; None if the engine already knows, or
        the node does not exist yet."""
        charge = self._charges[holder]
        self.assumed.pop(holder, None)
        if why:
            self.assumed[holder] = why
        placement = Placement(holder, charge.node, shares)
        if self._sent.get(holder) == placement or self._by.node(charge.node) is None:
            return None
        self._sent[holder] = placement
        return self.event(placement)

    def event(self, placement: Placement) -> PodSeenBound:
        """Return the engine's event for a claim with this placement."""
        at_ns = allocated_ns(self._charges[placement.uid].claim)
        wall_ns = int(self._wall().timestamp() * 1e9) if self._wall is not None else at_ns
        held_ns = max(0, wall_ns - at_ns) if at_ns else 0
        return PodSeenBound(placement, at_ns, LATENCY_CRITICAL, held_ns, unsure=True)

    # --- questions ---

    def holds(self, holder: str) -> bool:
        """Return True if this UID is the name of a claim's holder, not of a pod."""
        return holder in self._charges

    def charge_of(self, holder: str) -> ClaimCharge:
        """Return the holder's charge on its node."""
        return self._charges[holder]

    def name_of(self, holder: str) -> str:
        """Return the claim's name for people, such as `claim ml/train`; also for the UID of a claim
        that holds nothing."""
        charge = self._charges.get(holder)
        meta = (charge.claim if charge is not None else self.claims[holder]).metadata
        return f"claim {meta.namespace}/{meta.name}"

    def namespace_of(self, holder: str) -> str:
        """Return the claim's namespace."""
        return self._charges[holder].claim.metadata.namespace

    def of_pod(self, uid: str) -> list[str]:
        """Return the names of the claims that are reserved for this pod and hold GPUs."""
        return sorted(
            self.name_of(holder)
            for holder, charge in self._charges.items()
            if any(user.uid == uid for user in charge.claim.status.reserved_for or ())
        )

    def charges_on(self, node: str) -> list[ClaimCharge]:
        """Return the claims' charges on this node, sorted by the claims' names."""
        charges = [self._charges[holder] for holder in self._on_node.get(node, ())]
        return sorted(charges, key=lambda c: (c.claim.metadata.namespace, c.claim.metadata.name))

    def is_anywhere(self, uid: str) -> bool:
        """Return True if the claim holds a GPU, but it is unknown which."""
        return any(self._charges[holder].anywhere for holder in self._holders(uid))

    def known_on(self, node: str) -> Iterator[tuple[Share, ...]]:
        """Yield, for each holder, its shares of known GPUs of this node."""
        return (self._charges[holder].shares for holder in self._on_node.get(node, ()))

    def holders_on(self, node: str) -> set[str]:
        """Return the holders that hold anything on this node."""
        return self._on_node.get(node, set())

    def guess(self, node: Node, cards: GuessedUse) -> Iterator[tuple[str, BoundShare]]:
        """Choose GPUs for claims that hold unknown GPUs of this node, the oldest claim first, and
        count them in `cards`. Yields the holder and its charge."""
        waiting = [h for h in self._on_node.get(node.name, ()) if self._charges[h].anywhere]
        for holder in sorted(waiting, key=lambda h: (_age(self._charges[h].claim), h)):
            charge = self._charges[holder]
            shape = Shape(gpu_requests=charge.anywhere)
            request = PodRequest(holder, charge.claim.metadata.name, shape, dialect=NONE.name)
            share = guessed(request, node, cards.how_full)
            first = 1 + max((each.gpu_request for each in charge.shares), default=-1)
            cards.guessed(share.placement.shares)
            more = (replace(s, gpu_request=s.gpu_request + first) for s in share.placement.shares)
            both = (*charge.shares, *more)
            yield holder, share._replace(placement=replace(share.placement, shares=both))

    def guesses_on(self, node: str) -> bool:
        """Return True if some claim holds an unknown GPU of this node."""
        return any(self._charges[holder].anywhere for holder in self._on_node.get(node, ()))

    def covered(self, pod: Pod) -> frozenset[tuple[str, str]]:
        """Return the (container, resource) pairs of the pod that are provided by a claim which is
        charged."""
        status = pod.status.extended_resource_claim_status
        if status is None:
            return frozenset()
        uid = self._uids.get((pod.metadata.namespace, status.resource_claim_name), "")
        if not self._holders(uid):
            return frozenset()
        mappings = status.request_mappings or ()
        return frozenset((each.container_name, each.resource_name) for each in mappings)


def is_left(claim: ResourceClaim, is_there: Callable[[str], bool]) -> bool:
    """Return True if the claim is reserved for pods only, and none of these pods exists any more;
    `is_there` returns True for the UID of an existing pod."""
    users = claim.status.reserved_for or ()
    return bool(users) and all(u.resource == "pods" and not is_there(u.uid) for u in users)


def log_problem(claim: ResourceClaim, problem: str) -> None:
    """Log what is wrong with a claim."""
    log.warning(
        "ResourceClaim %s: %s", f"{claim.metadata.namespace}/{claim.metadata.name}", problem
    )


def _with(charge: ClaimCharge, number: int, hold: DeviceHold) -> ClaimCharge:
    if hold.gpu >= 0:
        share = Share(number, hold.gpu, hold.memory_mib, hold.milli, hold.uuid)
        return charge._replace(shares=(*charge.shares, share))
    if hold.memory_mib < 0:
        asked = whole_cards(1)
    else:
        asked = GpuRequest(memory=GpuMemoryRequest("mib", hold.memory_mib), milli=hold.milli)
    return charge._replace(anywhere=(*charge.anywhere, asked))


def allocated_ns(claim: ResourceClaim) -> int:
    """Return the time of the claim's allocation, or else of its creation, as the API shows it, ns
    since 1970; 0 if unknown."""
    try:
        return int(datetime.datetime.fromisoformat(_age(claim)).timestamp()) * 10**9
    except ValueError:
        return 0


def _age(claim: ResourceClaim) -> str:
    allocation = claim.status.allocation
    text = allocation.allocation_timestamp if allocation is not None else None
    return text or claim.metadata.creation_timestamp or ""
