"""Reads containers' resources by Kubernetes' rules, and combines them into the pod's GPU requests.

Extended resources are whole numbers whose request equals their limit; a pod needs the most that any
of its init containers needs (with the sidecars started before it), or the sum of all containers
that run together afterwards if that is more. Amounts are limited to what a node can have
(`model/ceilings.py`). Containers are walked once (`PodWords`): there may be thousands.

Main containers and sidecars (init containers that restart Always) run together: each holds its own
GPU request. An init container ends before the main containers start, so it uses their GPU requests,
and these grow to whatever it needs beyond them: the pod holds the larger of the two, never the sum.
A container uses the first `asked.count` GPUs of its GPU requests, in their order.

Invariant: at no moment of the pod's life do the containers that run use more of a GPU than the GPU
requests hold. Memory of different kinds (MiB and a percentage) can't be compared before the card is
known. An init container whose kind differs gets a GPU request of its own, which is more than
needed, never less.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Literal, NamedTuple

from msgspec.structs import replace

from weft.model import (
    BadInputError,
    ContainerRequest,
    GpuMemoryRequest,
    GpuRequest,
    ManifestContainer,
    PodManifest,
    parse_cpu_milli,
    parse_quantity,
)
from weft.model.ceilings import MOST_AMOUNT, MOST_ASKING, MOST_CPU_MILLI, MOST_MEMORY_MIB
from weft.model.manifest import ManifestResources, Quantities
from weft.model.request import WHOLE_CARD

Parse = Callable[[str | int | float, str], int]

_ABSURD = re.compile(r"^.{40}|[0-9][eE][+-]?[0-9]{3}", re.DOTALL)
_MOST_BYTES = MOST_MEMORY_MIB * 2**20
_NATIVE = ("cpu", "memory", "ephemeral-storage", "pods", "storage")
_MIB = 2**20
_HUGE = "hugepages-"
_SHORT = 16
"""Longest text whose number is cached: thousands of containers may request the same."""


@functools.lru_cache(maxsize=1024)
def _short(parse: Parse, text: str) -> int | None:
    """Return the amount that `parse` reads; None if it is not a number, or implausibly large."""
    try:
        return None if _ABSURD.search(text) else parse(text, "")
    except BadInputError:
        return None


class InputBounds:
    """Limits for amounts: more than any node has is refused or, if `held`, counts as the most that
    a node has."""

    def __init__(self, *, held: bool = False) -> None:
        self.held = held

    def cpu_milli(self, text: str | int | float, where: str) -> int:
        """Return a CPU quantity in thousandths of a core."""
        return self.read(parse_cpu_milli, text, where, MOST_CPU_MILLI)

    def memory_bytes(self, text: str | int | float, where: str) -> int:
        """Return a size of host memory in bytes."""
        return self.read(parse_quantity, text, where, _MOST_BYTES)

    def read(self, parse: Parse, text: str | int | float, where: str, most: int) -> int:
        """Return the amount that `parse` reads; one above `most` is refused, or counts as `most` if
        `held`."""
        known = _short(parse, text) if type(text) is str and len(text) <= _SHORT else None
        if known is not None and known <= most:
            return known
        # Looked at as text first: the number 1e999999 alone takes minutes to write out.
        if _ABSURD.search(str(text)) or (value := parse(text, where)) > most:
            if self.held:
                return most
            raise BadInputError(
                where, f"{str(text)[:40]!r} is larger than any node has; write {most:,} at most"
            )
        return value

    def total(self, value: int, most: int, unit: str, where: str = "spec.containers") -> int:
        """Return a sum of amounts that were read one by one; one above `most` is refused, or counts
        as `most` if `held`."""
        if value <= most or self.held:
            return min(value, most)
        raise BadInputError(
            where, f"{value:,} {unit} in all is larger than any node has; ask for {most:,} at most"
        )


REFUSED = InputBounds()
"""For pending pods: an amount that is too large is refused."""
HELD = InputBounds(held=True)
"""For bound pods: an amount that is too large counts as the most that any node has, as it must not
count as nothing."""


Role = Literal["init", "sidecar", "main"]

# No card holds a million MiB: a number this large is a size in bytes (`10G`) given to a resource
# that counts units. Kubernetes takes it literally, and the pod then waits for ever.
MORE_THAN_A_CARD = 1_000_000


class ContainerSlot(NamedTuple):
    """A container of a pod: `where` is its field in the manifest, for errors; `role` says when it
    runs."""

    container: ManifestContainer
    role: Role
    where: str


def slots(pod: PodManifest) -> list[ContainerSlot]:
    """Return all containers in the order they start: init containers and sidecars, then the
    others."""
    places: list[ContainerSlot] = []
    for i, container in enumerate(pod.spec.init_containers or ()):
        role: Role = "sidecar" if container.restart_policy == "Always" else "init"
        places.append(ContainerSlot(container, role, f"spec.initContainers[{i}]"))
    for i, container in enumerate(pod.spec.containers):
        places.append(ContainerSlot(container, "main", f"spec.containers[{i}]"))
    return places


SlotsByName = Mapping[str, Sequence[ContainerSlot]]


_NONE_OF: Mapping[str, tuple[str, ...]] = {}


class PodWords:
    """A pod as dialects read it, with indexes made in one walk over its containers.

    `slots` are its containers in the order they start, `naming` has the containers that name a
    resource, by resource. `asking` says for a system's resources which of the containers ask for
    any of them; it is filled at once for the systems in `resources_of` (for each resource, all
    resources of its system) whose resources the pod names.
    """

    __slots__ = ("annotations", "asking", "labels", "manifest", "naming", "slots")

    def __init__(
        self, manifest: PodManifest, resources_of: Mapping[str, tuple[str, ...]] = _NONE_OF
    ) -> None:
        meta = manifest.metadata
        self.manifest = manifest
        self.labels: Mapping[str, str] = meta.labels or {}
        self.annotations: Mapping[str, str] = meta.annotations or {}
        self.slots = slots(manifest)
        self.naming = by_name(self.slots)
        self.asking = _Asking(self)
        for name in self.naming.keys() & resources_of.keys():
            self.asking.find(resources_of[name])

    def naming_any(self, names: Iterable[str]) -> list[ContainerSlot]:
        """Return the containers that name one of these resources, each once."""
        found = {id(slot): slot for name in names for slot in self.naming.get(name, ())}
        return list(found.values())

    def asks_for(self, names: tuple[str, ...]) -> bool:
        """Return True if any container names one of these resources with anything but zero."""
        return any(self.asking[names])


class _Asking(dict[tuple[str, ...], list[bool]]):
    """For a tuple of resources, a list that says for each container of the pod whether it asks for
    any of them; computed once."""

    def __init__(self, words: PodWords) -> None:
        super().__init__()
        self._words = words

    def __missing__(self, names: tuple[str, ...]) -> list[bool]:
        return self.find(names)

    def find(self, names: tuple[str, ...]) -> list[bool]:
        """Find, for each container of the pod, whether it asks for any of these resources; store
        and return the list."""
        wanted, words = frozenset(names), self._words
        naming = words.naming_any(wanted)
        asking = {id(slot) for slot in naming if names_any(slot.container, wanted)}
        self[names] = found = [id(slot) in asking for slot in words.slots]
        return found


def names_any(container: ManifestContainer, names: Set[str]) -> bool:
    """Return True if the container names one of these resources with anything but zero."""
    for amounts in (container.resources.limits, container.resources.requests):
        if not amounts:
            continue
        is_named = False
        for name in amounts:  # asked of each of thousands of containers: no generator for each
            if name in names:
                if str(amounts[name]).strip() != "0":
                    return True
                is_named = True
        if is_named:
            return False
    return False


def asked_of(slot: ContainerSlot, names: Sequence[str]) -> list[str]:
    """Return those of these resources that the container names with anything but zero."""
    resources = slot.container.resources
    amounts = [each for each in (resources.limits, resources.requests) if each]
    return [
        name
        for name in names
        if any(name in each and str(each[name]).strip() != "0" for each in amounts)
    ]


def by_name(places: Sequence[ContainerSlot]) -> dict[str, list[ContainerSlot]]:
    """Return the containers that name each resource, in their order.

    A pod may have thousands of containers, and each a resource that no other names.
    """
    asking: dict[str, list[ContainerSlot]] = {}
    for slot in places:
        limits, requests = slot.container.resources.limits, slot.container.resources.requests
        for name in {**limits, **requests} if limits and requests else limits or requests or ():
            asking.setdefault(name, []).append(slot)
    return asking


def amount(slot: ContainerSlot, name: str, bounds: InputBounds = REFUSED) -> int:
    """Return the amount of an extended resource that this container asks for; 0 if it asks for
    none.

    The API server refuses pods whose request and limit differ, so that is an error here too.
    """
    limits, requests = slot.container.resources.limits, slot.container.resources.requests
    values: list[int] = []
    for field, amounts in (("limits", limits), ("requests", requests)):
        if amounts and name in amounts:
            where = f"{slot.where}.resources.{field}[{name}]"
            values.append(_whole(amounts[name], where, bounds))
    if len(values) == 2 and values[0] != values[1]:
        raise BadInputError(
            f"{slot.where}.resources.requests[{name}]",
            f"{values[1]} differs from the limit {values[0]}; Kubernetes requires them to be "
            "equal for this resource: remove the request",
        )
    return values[0] if values else 0


def units(slot: ContainerSlot, name: str, unit: str) -> int:
    """Return `amount` of a resource that counts `unit`s of GPU memory; refuse sizes in bytes."""
    value = amount(slot, name)
    if value >= MORE_THAN_A_CARD:
        resources = slot.container.resources
        text = str({**(resources.requests or {}), **(resources.limits or {})}[name]).strip()
        # The API server shortens round numbers, so the user need not have written the suffix.
        shortened = f" (Kubernetes may shorten {value} to this)" if text[-1:] in "kMGTPE" else ""
        raise BadInputError(
            f"{slot.where}.resources.limits[{name}]",
            f"{text!r}{shortened} is {value:,} {unit}, more than any card has: a plain number "
            f"counts {unit}, not bytes; write how many {unit} of a card you want",
        )
    return value


def percent(slot: ContainerSlot, name: str) -> int:
    """Return `amount` of a resource that is a percentage of one card; refuse more than 100."""
    value = amount(slot, name)
    if value > 100:
        raise BadInputError(
            f"{slot.where}.resources.limits[{name}]",
            f"{value} is more than 100 percent of a card; write 1 to 100",
        )
    return value


def label_number(labels: Mapping[str, str], name: str, most: int, unit: str) -> int | None:
    """Return the whole number of 0 or more in a label; None if it is missing or not a number.
    `BadInputError` for a number above `most`, the most that `unit` (such as "any node") has."""
    text = labels.get(name, "").strip()
    if not re.fullmatch(r"[0-9]{1,63}", text, re.ASCII):
        return None
    if int(text) > most:
        raise BadInputError(
            f"metadata.labels[{name}]", f"{text} is more than {unit} has; write {most:,} at most"
        )
    return int(text)


def peak(amounts: Sequence[tuple[Role, int]]) -> int:
    """Return the largest sum, at any moment of the pod's life, over the containers that run then;
    `amounts` are in the order of `slots`."""
    running = highest = mains = 0
    for role, value in amounts:
        if role == "main":
            mains += value
        elif role == "sidecar":
            running += value
        else:
            highest = max(highest, running + value)
    return max(highest, running + mains)


def cpu_and_memory(words: PodWords, bounds: InputBounds) -> tuple[int, int]:
    """Return the thousandths of a core and bytes of host memory that the containers request, plus
    the pod's overhead."""
    overhead, naming = words.manifest.spec.overhead or {}, words.naming
    cpu = peak([(s.role, bounds.cpu_milli(*_asked(s, "cpu"))) for s in naming.get("cpu", ())])
    memory = peak(
        [(s.role, bounds.memory_bytes(*_asked(s, "memory"))) for s in naming.get("memory", ())]
    )
    if "cpu" in overhead:
        cpu += bounds.cpu_milli(overhead["cpu"], "spec.overhead[cpu]")
    if "memory" in overhead:
        memory += bounds.memory_bytes(overhead["memory"], "spec.overhead[memory]")
    return cpu, memory


def _asked(slot: ContainerSlot, name: str) -> tuple[str | int | float, str]:
    """Return the container's request of a resource that it names, and the field with that
    amount."""
    requests, limits = slot.container.resources.requests, slot.container.resources.limits or {}
    if requests and name in requests:
        return requests[name], f"{slot.where}.resources.requests[{name}]"
    return limits[name], f"{slot.where}.resources.limits[{name}]"


def _whole(text: str | int | float, where: str, bounds: InputBounds) -> int:
    if type(text) is str and len(text) <= 15 and text.isascii() and text.isdecimal():
        return int(text)  # as most are: nothing more has to be read, and it is no more than allowed
    value = bounds.read(parse_quantity, text, where, MOST_AMOUNT)
    if value < MOST_AMOUNT and parse_cpu_milli(text, where) != value * 1000:
        raise BadInputError(where, f"{text!r} is not a whole number; write {value}")
    return value


FULL_MILLI = 1000


class ContainerRequests(NamedTuple):
    """The pod's GPU requests, and each container's use of them."""

    gpu_requests: tuple[GpuRequest, ...] = ()
    containers: tuple[ContainerRequest, ...] = ()


def whole_cards(count: int) -> GpuRequest:
    """Return a request for `count` whole cards."""
    return GpuRequest(count=count, memory=WHOLE_CARD, milli=FULL_MILLI, whole=True)


class NonGpuResources(NamedTuple):
    """A pod's resources other than GPUs; `extended` are all but CPU and memory, sorted by name."""

    cpu_milli: int
    memory_mib: int
    extended: tuple[tuple[str, int], ...]


def beside_gpus(
    words: PodWords,
    bounds: InputBounds,
    is_gpu_resource: Callable[[str], bool],
    *,
    counted: Collection[str] = (),
) -> NonGpuResources:
    """Return the CPU, memory and other resources that the pod requests; of GPU resources only those
    in `counted`."""
    pod, slots_of = words.manifest, words.naming
    cpu, memory = 0, 0
    others: dict[str, int] = {}
    try:
        cpu, memory, others = _of_containers(words, bounds, is_gpu_resource)
    except BadInputError:
        if not bounds.held:
            raise
    if pod.spec.resources is not None:
        overhead, pod_level = pod.spec.overhead or {}, _pod_level(pod, slots_of)
        if "cpu" in pod_level:
            cpu = bounds.cpu_milli(pod_level["cpu"], "spec.resources[cpu]")
            cpu += bounds.cpu_milli(overhead.get("cpu", 0), "spec.overhead[cpu]")
        if "memory" in pod_level:
            size = bounds.memory_bytes(pod_level["memory"], "spec.resources[memory]")
            size += bounds.memory_bytes(overhead.get("memory", 0), "spec.overhead[memory]")
            memory = -(-size // _MIB)
        cpu = bounds.total(cpu, MOST_CPU_MILLI, "thousandths of a core", "spec.resources")
        memory = bounds.total(memory, MOST_MEMORY_MIB, "MiB of memory", "spec.resources")
    others |= _storage(pod, slots_of)
    if counted:
        others |= _gpu_resources(slots_of, counted)
    return NonGpuResources(cpu, memory, tuple(sorted(others.items())))


def _gpu_resources(slots_of: SlotsByName, counted: Collection[str]) -> dict[str, int]:
    """Return the GPU resources as the kubelet counts them, without those whose number cannot be
    read."""
    amounts = {}
    for name in slots_of.keys() & counted:
        with contextlib.suppress(BadInputError):
            amounts[name] = peak([(slot.role, amount(slot, name)) for slot in slots_of[name]])
    return {name: min(most, MOST_AMOUNT) for name, most in amounts.items() if most}


def _of_containers(
    words: PodWords, bounds: InputBounds, is_gpu_resource: Callable[[str], bool]
) -> tuple[int, int, dict[str, int]]:
    slots_of, overhead = words.naming, words.manifest.spec.overhead or {}
    cpu, memory = cpu_and_memory(words, bounds)
    extended = {}
    for name in sorted({*slots_of, *overhead}):
        if name in _NATIVE or name.startswith(_HUGE) or is_gpu_resource(name):
            continue
        most = peak([(s.role, amount(s, name, bounds)) for s in slots_of.get(name, ())])
        if name in overhead:
            most += _whole(overhead[name], f"spec.overhead[{name}]", bounds)
        if most:
            extended[name] = bounds.total(most, MOST_AMOUNT, name)
    return (
        bounds.total(cpu, MOST_CPU_MILLI, "thousandths of a core"),
        bounds.total(-(-memory // _MIB), MOST_MEMORY_MIB, "MiB of memory"),
        extended,
    )


def _storage(pod: PodManifest, slots_of: SlotsByName) -> dict[str, int]:
    """Return the pod's ephemeral-storage and huge pages, in bytes: resources of Kubernetes itself
    that are counted like extended resources.

    The overhead may name any resource; pod-level resources may be CPU, memory and huge pages.
    """
    overhead = pod.spec.overhead or {}
    pod_level = _pod_level(pod, slots_of)
    names = {name for name in (*slots_of, *overhead) if _is_storage(name)}
    names |= {name for name in pod_level if name.startswith(_HUGE)}
    amounts = {}
    for name in names:
        total = peak(
            [
                (s.role, _bytes(_requested(s.container.resources), name))
                for s in slots_of.get(name, ())
            ]
        )
        if name in pod_level and name.startswith(_HUGE):
            total = _bytes(pod_level, name)
        total += _bytes(overhead, name)
        if total:
            amounts[name] = min(total, MOST_AMOUNT)
    return amounts


def _pod_level(pod: PodManifest, slots_of: SlotsByName) -> Quantities:
    """Return the pod-level requests. As in the API server, a limit without a request counts as a
    request, unless containers request that resource (huge pages excepted)."""
    own = pod.spec.resources
    if own is None:
        return {}
    limits = {
        name: most
        for name, most in (own.limits or {}).items()
        if name not in slots_of or name.startswith(_HUGE)
    }
    return {**limits, **(own.requests or {})}


def _requested(resources: ManifestResources) -> Quantities:
    return {**(resources.limits or {}), **(resources.requests or {})}


def _bytes(amounts: Quantities, name: str) -> int:
    return HELD.read(parse_quantity, amounts[name], name, MOST_AMOUNT) if name in amounts else 0


def _is_storage(name: str) -> bool:
    return name == "ephemeral-storage" or name.startswith(_HUGE)


def to_deliver(
    words: PodWords, counted: Sequence[str], resources: Sequence[str]
) -> tuple[str, ...]:
    """Return the resources that a node must advertise for the kubelet to deliver each container's
    share, sorted: the resources in `counted` that a container names; if it names none, those in
    `resources`.

    A kubelet ignores resources that its node does not advertise, and starts the container without a
    share.
    """
    names: set[str] = set()
    for slot in words.naming_any((*counted, *resources)):
        names.update(asked_of(slot, counted) or asked_of(slot, resources))
    return tuple(sorted(names))


def too_many(asking: int) -> BadInputError:
    """Return the error about a pod of which more containers than `MOST_ASKING` ask for GPUs."""
    most = f"Weft supports at most {MOST_ASKING} in a pod: split it into several pods"
    return BadInputError("spec.containers", f"{asking:,} containers ask for GPUs; {most}")


def per_container(
    slots: Sequence[ContainerSlot], asks: Sequence[GpuRequest | None]
) -> ContainerRequests:
    """Return the requests of a pod whose containers each have GPUs of their own (Elastic, HAMi,
    NVIDIA, Weft): `asks` has one entry for each container.

    GPU requests come in this order: main containers as written, sidecars, then what init containers
    need beyond the main containers.
    """
    if (asking := sum(ask is not None for ask in asks)) > MOST_ASKING:
        raise too_many(asking)
    gpu_requests: list[GpuRequest] = []
    uses: list[tuple[int, ...]] = [()] * len(slots)
    for role in ("main", "sidecar"):
        for i, (slot, ask) in enumerate(zip(slots, asks, strict=True)):
            if slot.role == role and ask is not None:
                uses[i] = (len(gpu_requests),)
                gpu_requests.append(ask)
    # What init containers may borrow: the main containers' GPU requests, and each other's.
    pool = [uses[i][0] for i, slot in enumerate(slots) if slot.role == "main" and uses[i]]
    for i, (slot, ask) in enumerate(zip(slots, asks, strict=True)):
        if slot.role == "init" and ask is not None:
            uses[i] = _borrow(gpu_requests, pool, ask)
    return ContainerRequests(tuple(gpu_requests), _requests(slots, asks, uses))


def one_card(
    slots: Sequence[ContainerSlot], asks: Sequence[GpuRequest | None], most_milli: int = FULL_MILLI
) -> ContainerRequests:
    """Return the requests of a pod that is served by one card (gpushare, Alnair): a single GPU
    request for the pod's peak.

    Each entry of `asks` must be for one card, and all for one kind of memory; cores are limited to
    `most_milli`.
    """
    requested = [ask for ask in asks if ask is not None]
    if not requested:
        return ContainerRequests((), _requests(slots, asks, [()] * len(slots)))
    memory: list[tuple[Role, int]] = []
    milli: list[tuple[Role, int]] = []
    for slot, ask in zip(slots, asks, strict=True):
        memory.append((slot.role, ask.memory.value if ask else 0))
        milli.append((slot.role, ask.milli if ask else 0))
    # The kind is that of a container which asks memory: one that asks cores only has none.
    kind = max((ask.memory for ask in requested), key=lambda m: m.value)
    gpu_request = GpuRequest(
        memory=GpuMemoryRequest(kind.kind, peak(memory), kind.unit_mib, kind.half_up),
        milli=min(peak(milli), most_milli),
    )
    uses = [(0,) if ask else () for ask in asks]
    return ContainerRequests((gpu_request,), _requests(slots, asks, uses))


def pod_wide(
    slots: Sequence[ContainerSlot], gpu_requests: Sequence[GpuRequest]
) -> ContainerRequests:
    """Return the requests of a pod that asks as one (Genius, Kube-Knots): every container uses all
    the GPU requests."""
    every = tuple(range(len(gpu_requests)))
    shared = gpu_requests[0] if gpu_requests else None
    uses = [every] * len(slots)
    return ContainerRequests(tuple(gpu_requests), _requests(slots, [shared] * len(slots), uses))


def _requests(
    slots: Sequence[ContainerSlot],
    asks: Sequence[GpuRequest | None],
    uses: Sequence[tuple[int, ...]],
) -> tuple[ContainerRequest, ...]:
    return tuple(
        ContainerRequest(slot.container.name, ask, use, init=slot.role == "init")
        for slot, ask, use in zip(slots, asks, uses, strict=True)
    )


def _borrow(gpu_requests: list[GpuRequest], pool: list[int], ask: GpuRequest) -> tuple[int, ...]:
    """Return the indexes of the GPU requests that serve this init container; enlarge requests or
    add one if they are too small."""
    order = sorted(pool, key=lambda i: _size(gpu_requests[i]), reverse=True)
    taken, missing = _take_whole(gpu_requests, order, ask.count)
    if missing <= 0:
        return taken  # idle cards, distinct from one another: anything fits on them
    if ask.whole:
        return _become_whole(gpu_requests, pool, order, taken, missing)
    fits: list[tuple[int, GpuRequest]] = []
    for i in order:
        together = _larger(gpu_requests[i], ask)
        if together == gpu_requests[i]:
            return (i,)
        if together is not None:
            fits.append((i, together))
    if fits:
        index, gpu_requests[index] = fits[0]
        return (index,)
    return (_add(gpu_requests, pool, ask),)


def _take_whole(
    gpu_requests: list[GpuRequest], order: list[int], count: int
) -> tuple[tuple[int, ...], int]:
    taken: list[int] = []
    for i in order:
        if gpu_requests[i].whole and count > 0:
            taken.append(i)
            count -= gpu_requests[i].count
    return tuple(taken), count


def _become_whole(
    gpu_requests: list[GpuRequest],
    pool: list[int],
    order: list[int],
    taken: tuple[int, ...],
    missing: int,
) -> tuple[int, ...]:
    used = list(taken)
    for i in order:
        if not gpu_requests[i].whole and gpu_requests[i].count <= missing:
            gpu_requests[i] = whole_cards(gpu_requests[i].count)
            used.append(i)
            missing -= gpu_requests[i].count
    if missing > 0:
        used.append(_add(gpu_requests, pool, whole_cards(missing)))
    return tuple(used)


def _add(gpu_requests: list[GpuRequest], pool: list[int], gpu_request: GpuRequest) -> int:
    gpu_requests.append(gpu_request)
    pool.append(len(gpu_requests) - 1)
    return pool[-1]


def _size(gpu_request: GpuRequest) -> tuple[bool, bool, int, int, int]:
    memory, milli, count = gpu_request.memory, gpu_request.milli, gpu_request.count
    return gpu_request.whole, memory.kind == "whole", memory.value, milli, count


def _larger(a: GpuRequest, b: GpuRequest) -> GpuRequest | None:
    """Return the smallest GPU request that serves either of the two, both for parts of cards; None
    if they cannot be compared."""
    memory = _larger_memory(a.memory, b.memory)
    if memory is None or a.whole or b.whole:
        return None
    return replace(a, count=max(a.count, b.count), memory=memory, milli=max(a.milli, b.milli))


def _larger_memory(a: GpuMemoryRequest, b: GpuMemoryRequest) -> GpuMemoryRequest | None:
    if a.kind == "none":
        return b
    if b.kind == "none" or a == b:
        return a
    if "whole" in (a.kind, b.kind):
        return WHOLE_CARD
    if replace(a, value=0) != replace(b, value=0):
        return None
    return a if a.value >= b.value else b
