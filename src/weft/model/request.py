"""A pod's request, in one vocabulary for all dialects.

A *GPU request* is one demand for GPUs: `count` distinct devices, each with so much memory and so
many cores. Containers point at the pod's GPU requests by index; several containers may use one GPU
request (a gpushare pod, or an init container that runs before the container whose GPU it borrows).
The *shape* is the part of a request that decides where it fits: pods of one shape are
interchangeable for every filter and score, and Weft caches per shape.

*Constraints* keep a pod off a node even if it has room: taints, selectors, affinity, ports,
volumes. Words and meanings are Kubernetes' own (core/v1). Everything is hashable, because it is
part of a shape.

Amounts are exact integers: Kubernetes' quantities (`100m`, `2Gi`, `1e3`) are read here.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.model import model_names
from weft.model.errors import BadInputError
from weft.model.selectors import (
    InterPodRules,
    SpreadRule,
    Term,
    WeightedTerm,
    rules_in,
)
from weft.model.slowdown_limit import SlowdownLimit
from weft.model.storage import StorageRules


class Gang(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A pod's group, as the pod or a group object describes it.

    `system` is the system in whose form the pod names the group ("kubernetes", "scheduler-plugins",
    "volcano", "koordinator", "owner"), `namespace` and `name` are the group's. `least` of its pods
    must have places before any is bound; 0: unknown yet (its object is missing), and its pods stay
    pending. `created_ns` is when the group was created, nanoseconds since 1970, 0 if unknown; its
    pods are as old in the queue (`PodRequest.came_ns`). `topology_key` is a node label that must
    have one value for all its pods, "" for none. `task` is the pod's role in the group,
    `least_by_task` (sorted) how many pods of a task are needed (Volcano's minTaskMember).
    `ends_as_one`: all its pods are preempted together (its disruption mode).
    """

    system: str
    namespace: str
    name: str
    least: int = 0
    created_ns: int = 0
    topology_key: str = ""
    task: str = ""
    least_by_task: tuple[tuple[str, int], ...] = ()
    ends_as_one: bool = False

    @property
    def key(self) -> str:
        """Return the key of a group; equal names in two systems are two groups."""
        return f"{self.system}:{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


# --- constraints besides room ---------------------------------------------------------------------


class Taint(msgspec.Struct, frozen=True, gc=False):
    """One entry of a node's spec.taints. `is_cordon`: it stands for spec.unschedulable, which keeps
    pods off like a taint but does not count for topology spread's nodeTaintsPolicy."""

    key: str
    effect: str
    value: str = ""
    is_cordon: bool | UnsetType = UNSET

    @property
    def hard(self) -> bool:
        """True if the taint keeps off pods that do not tolerate it."""
        return self.effect != "PreferNoSchedule"


CORDON = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
"""The taint that the node controller gives a cordoned node."""


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """spec.tolerations of a pod; `effect` "" is any effect, `key` "" with Exists any taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return True if this toleration tolerates the taint, as Kubernetes' ToleratesTaint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and bool(self.key) and self.value == taint.value


class Preference(msgspec.Struct, frozen=True, gc=False):
    """A preferred node affinity term and its weight, 1 to 100."""

    weight: int
    term: Term


class HostPort(msgspec.Struct, frozen=True, gc=False):
    """A port of the node that a container wants; `ip` "" is all of the node's addresses."""

    port: int
    protocol: str = "TCP"
    ip: str = ""

    def conflicts(self, other: "HostPort") -> bool:
        """Return True if one node cannot have both ports."""
        if self.port != other.port or self.protocol != other.protocol:
            return False
        anywhere = ("", "0.0.0.0")  # to kube-scheduler `::` is one more address
        return self.ip in anywhere or other.ip in anywhere or self.ip == other.ip


def have_conflicts(wanted: Sequence[HostPort], used: Iterable[HostPort]) -> bool:
    """Return True if one of the wanted ports is taken by one of the used."""
    by_number: dict[tuple[int, str], list[HostPort]] = {}
    for want in wanted:
        by_number.setdefault((want.port, want.protocol), []).append(want)
    return any(
        want.conflicts(port)
        for port in used
        for want in by_number.get((port.port, port.protocol), ())
    )


class Constraints(msgspec.Struct, frozen=True, gc=False):
    """A pod's constraints on its node, other than amounts of resources.

    `selector` are nodeSelector's pairs. `affinity` are the required terms, of which one must match
    (None: no such rule; empty: nothing matches). `volumes` are the bound volumes' terms: for each
    volume one of its terms must match. `unsupported` is a sentence about what Weft does not honour
    yet: such a pod stays pending with that reason. `features` are kubelet features that its node
    must declare. `pods` are its rules about other pods, `storage` those of its volumes that are not
    bound yet. `judged_elsewhere`: the caller has checked all of these already, and other pods'
    anti-affinity; only `ports` are checked, as an amount.
    """

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    ports: tuple[HostPort, ...] = ()
    volumes: tuple[tuple[Term, ...], ...] = ()
    unsupported: str = ""
    judged_elsewhere: bool = False
    features: tuple[str, ...] | UnsetType = UNSET
    pods: InterPodRules | UnsetType = UNSET  # left out of a decisions file if unset
    storage: StorageRules | UnsetType = UNSET

    @property
    def rules(self) -> int:
        """The number of all these rules; every ten listed values count as one more. A decision's
        work grows with this number."""
        terms = list(self.affinity or ())
        for either in self.volumes:
            terms += either
        others = len(self.selector) + len(self.tolerations) + len(self.ports)
        others += self.storage.rules if self.storage else 0
        return others + (self.pods.rules if self.pods else 0) + _rules_in(terms)

    def accepts_labels(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return True if the node satisfies nodeSelector and the required node affinity."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        return self.affinity is None or any(term.matches(name, labels) for term in self.affinity)

    def accepts_volumes(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return True if the node satisfies the node affinity of every bound volume."""
        return all(any(term.matches(name, labels) for term in terms) for terms in self.volumes)

    def lacking(self, declared: Sequence[str] | UnsetType) -> tuple[str, ...]:
        """Return the features that the pod needs and a node that declares the features in
        `declared` lacks."""
        return tuple(name for name in self.features or () if name not in (declared or ()))

    def untolerated(self, taints: tuple[Taint, ...]) -> Taint | None:
        """Return the first taint that keeps the pod off (NoSchedule or NoExecute); None for
        none."""
        for taint in taints:
            if taint.hard and not any(each.tolerates(taint) for each in self.tolerations):
                return taint
        return None

    def disliked(self, taints: tuple[Taint, ...]) -> int:
        """Return the number of PreferNoSchedule taints that the pod does not tolerate."""
        return sum(
            not taint.hard
            and not any(toleration.tolerates(taint) for toleration in self.tolerations)
            for taint in taints
        )


NO_CONSTRAINTS = Constraints()


def _rules_in(terms: Sequence[Term]) -> int:
    asked = [rule for term in terms for rule in (*term.labels, *term.fields)]
    return len(asked) + sum(len(rule.values) for rule in asked) // 10


PREFERENCES_PERCENT = 2
"""Default range of scores within which pods' preferences decide: from the best score down by this
percentage of the difference between best and worst."""


class Preferences(msgspec.Struct, frozen=True, gc=False):
    """A pod's preferences among nodes, in kube-scheduler's terms and weights. They rule out no
    node.

    `nodes` are preferred terms of node affinity, `pods` those of affinity and anti-affinity to
    pods, `spread` its ScheduleAnyway topology spread constraints. `by_default`: the pod has no such
    constraints, and `spread` are kube-scheduler's defaults for pods of one workload. `images` are
    the names of the images of its `containers` containers, each once.
    """

    nodes: tuple[Preference, ...] = ()
    pods: tuple[WeightedTerm, ...] = ()
    spread: tuple[SpreadRule, ...] = ()
    by_default: bool = False
    images: tuple[str, ...] = ()
    containers: int = 0

    @property
    def rules(self) -> int:
        """The number of rules on nodes and pods; a decision's work grows with them."""
        asked = [wish.term.pods for wish in self.pods]
        asked += [] if self.by_default else [rule.pods for rule in self.spread]
        return _rules_in([wish.term for wish in self.nodes]) + rules_in(asked)


# --- requests -------------------------------------------------------------------------------------

MemoryKind = Literal["none", "mib", "units", "node-units", "percent", "millionths", "whole"]
JobClass = Literal["latency-critical", "batch", "best-effort"]
TopologyWish = Literal["required", "none"]


LATENCY_CRITICAL, BATCH, BEST_EFFORT = "latency-critical", "batch", "best-effort"
"""Classes of pods (`Shape.job_class`); a pod without a class is treated as batch."""


class GpuMemoryRequest(msgspec.Struct, frozen=True, gc=False):
    """GPU memory in a dialect's unit; `mib_on` converts it to MiB of a card.

    kind `mib`: `value` MiB. `units`: `value` of the dialect's units, where a card of M MiB has M //
    unit_mib of them (half_up: rounded to the nearest), and all of them together are the whole card.
    `node-units`: `value` of the node's units (`on_node`); `unit_mib` is the unit if the node has
    none. `percent`, `millionths`: of the card. `whole`: all of it. `none`: nothing is charged.
    """

    kind: MemoryKind = "none"
    value: int = 0
    unit_mib: int = 1
    half_up: bool = False

    def on_node(self, unit_mib: int) -> "GpuMemoryRequest":
        """Return the request on a node whose unit is `unit_mib` MiB, 0 if unknown. Only requests in
        `node-units` are converted."""
        if self.kind != "node-units":
            return self
        unit_mib = unit_mib or self.unit_mib
        return (
            GpuMemoryRequest("mib", self.value)
            if unit_mib == 1
            else GpuMemoryRequest("units", self.value, unit_mib)
        )

    def units_on(self, card_mib: int) -> int:
        """Return the number of this dialect's units that a card of `card_mib` MiB advertises."""
        return (card_mib + (self.unit_mib // 2 if self.half_up else 0)) // self.unit_mib

    def mib_on(self, card_mib: int) -> int:
        """Return the MiB requested of a card of `card_mib` MiB; more than the card if it can't fit.
        `node-units` are read as on a node of unknown unit: call `on_node` first.
        """
        if self.kind == "mib":
            return self.value
        if self.kind == "none":
            return 0
        if self.kind == "whole":
            return card_mib
        parts = {"percent": 100, "millionths": 1_000_000}
        units = parts.get(self.kind) or self.units_on(card_mib)
        if self.value > units:
            return card_mib + 1
        if units == 0:
            return 0
        return self.value * card_mib // units

    def told_mib_on(self, card_mib: int) -> int:
        """Return the requested MiB for messages: `mib_on`, or if more units are requested than the
        card has, the MiB of these units."""
        asked_mib = self.mib_on(card_mib)
        if asked_mib <= card_mib or self.kind not in ("units", "node-units"):
            return asked_mib
        return max(asked_mib, self.value * self.unit_mib)


NO_MEMORY = GpuMemoryRequest()
WHOLE_CARD = GpuMemoryRequest(kind="whole")


class GpuRequest(msgspec.Struct, frozen=True, gc=False):
    """One demand for `count` distinct GPUs, each with this memory and `milli` thousandths of its
    cores.

    `whole` asks for idle cards and charges all of each; `memory` is then the least they must have.
    `split` makes `memory` the total, spread over the fewest GPUs that hold it together
    (genius/gpu-memory-total); `count` is then the least number of GPUs. `headroom_mib` must be free
    beyond the memory but is not charged (Genius's strict `>`). `least_mib` (at most the card) is
    charged if `memory` is less, as earlier runs needed it; such a GPU request never uses lent
    memory. `expected_mib` is the most that pods like this one were seen to use, 0 if unknown: this
    much must be free if memory is lent, whatever the pod requests.
    """

    count: int = 1
    memory: GpuMemoryRequest = NO_MEMORY
    milli: int = 0
    whole: bool = False
    split: bool = False
    headroom_mib: int = 0
    least_mib: int = 0
    expected_mib: int = 0


class DeviceRule(msgspec.Struct, frozen=True, gc=False):
    """Devices that a pod accepts. Empty tuples accept everything.

    `models` are compared as `how` says: `exact`, `contains` (case ignored) or `regex` (unanchored,
    case ignored, as genius/gpu-model); blank, `_` and `-` are alike (`model_names`). UUIDs are
    exact.
    """

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    how: Literal["exact", "contains", "regex"] = "exact"
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()

    def accepts_model(self, model: str) -> bool:
        """Return True if a device of this model is acceptable."""
        if self.models and not any(self._same(want, model) for want in self.models):
            return False
        return not any(self._same(bad, model) for bad in self.not_models)

    def accepts_uuid(self, uuid: str) -> bool:
        """Return True if the device with this UUID is acceptable."""
        return (not self.uuids or uuid in self.uuids) and uuid not in self.not_uuids

    def _same(self, pattern: str, model: str) -> bool:
        if self.how == "exact":
            return model_names.normalized(pattern) == model_names.normalized(model)
        if self.how == "contains":
            return model_names.contains(model, pattern)
        return model_names.matches(model, pattern)


ANY_DEVICE = DeviceRule()


class Shape(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Everything about a request that filters and scores may read; hashable, so cacheable.

    It is hashed once: it may have thousands of parts, and one event looks up thousands of shapes.

    `gpu_requests` are the pod's GPU requests. `cpu_milli`, `memory_mib`, `extended` (sorted pairs)
    are the pod's other resources. `needs_gpu_node`: a pod without GPU requests must run on a GPU
    node (Genius without labels). `unit_mib` is the gpushare unit the pod was written in, and nodes
    with another unit are left out; 0: each node's own unit counts. `resources` are those that must
    be delivered to its containers (`Node.delivers`), `isolation` the mode in which they must have
    their GPUs (`Node.isolation`), "" if the node chooses. `application` and `job_class` matter to
    interference-aware policies only; `trace_spec` keeps the raw model string of a trace (FGD counts
    pods by it). `expected_s` is how long the pod takes alone, rounded by `rounded_s`, 0 if it does
    not say. `slowdown_limit` is how much slower than that it may get by its SLO, where it is
    latency-critical. `constraints` are Kubernetes' own: taints, selectors, affinity, ports,
    volumes. `topology`: the pod's GPUs must be the best connected of the node (`required`), or may
    be any (`none`); unset: the best connected of those that score equally.
    """

    gpu_requests: tuple[GpuRequest, ...] = msgspec.field(default=(), name="claims")
    cpu_milli: int = 0
    memory_mib: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    devices: DeviceRule = ANY_DEVICE
    needs_gpu_node: bool = False
    unit_mib: int = 0
    resources: tuple[str, ...] = ()
    isolation: str = ""
    node_name: str = ""
    application: str = ""
    job_class: str = ""
    trace_spec: str = ""
    expected_s: int = 0
    slowdown_limit: SlowdownLimit = ()
    constraints: Constraints = NO_CONSTRAINTS
    topology: TopologyWish | UnsetType = UNSET  # left out of a decisions file if unset

    @property
    def gpus(self) -> int:
        """Return how many GPUs, or shares of different GPUs, the pod requests."""
        return sum(request.count for request in self.gpu_requests)


def rounded_s(seconds: float) -> int:
    """Round a duration to steps of √2, so that pods of similar durations have one shape.

    Below 1 s it is 1 s.
    """
    return int(2.0 ** (round(2.0 * math.log2(max(1.0, seconds))) / 2.0) + 0.5)


class ContainerRequest(msgspec.Struct, frozen=True, gc=False):
    """One container: what it requests itself (`asked`), and which of the shape's GPU requests it
    uses.

    `asked` is None for a container without a GPU: it holds none and sees none. `gpu_requests` are
    indexes into `Shape.gpu_requests`. `init` is True for init containers that end before the others
    start (restartable sidecars are not).
    """

    name: str
    asked: GpuRequest | None = None
    gpu_requests: tuple[int, ...] = msgspec.field(default=(), name="claims")
    init: bool = False


class PodRequest(msgspec.Struct, frozen=True, gc=False):
    """One pod's request, independent of its dialect.

    `priority` is spec.priority; `queue_priority` is the dialect's own (genius/priority), compared
    first. `created_ns` is the creation time in nanoseconds. `shared_by_containers`: one card serves
    the whole pod (gpushare). `system_names` are the schedulerNames of the dialect's system, its
    default first. `warnings` are sentences; a warning about a resource begins with the resource's
    name and "is".

    `workload` names the owner of pods like this one, "" if there is none. `labels` are the pod's,
    by which other pods' rules select it. `claims` are the names of its volume claims that wait for
    their first consumer, in the order of its constraints. `gang` is unset for a pod without a gang.
    `never_preempts`: no pod is preempted for it, whatever its priority (preemptionPolicy).
    `restart_s`: the seconds of its work that are lost when it is moved; unset: all since its start.
    `deadline_s`: the longest that it may run (activeDeadlineSeconds).
    """

    uid: str
    name: str
    shape: Shape
    namespace: str = "default"
    dialect: str = "weft"
    scheduler_name: str = "weft"
    system_names: tuple[str, ...] = ()
    priority: int = 0
    queue_priority: int = 0
    created_ns: int = 0
    containers: tuple[ContainerRequest, ...] = ()
    shared_by_containers: bool = False
    warnings: tuple[str, ...] = ()
    workload: str = ""
    labels: dict[str, str] | UnsetType = UNSET
    preferences: Preferences | UnsetType = UNSET  # left out of a decisions file if unset
    claims: tuple[str, ...] | UnsetType = UNSET
    gang: Gang | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    never_preempts: bool | UnsetType = UNSET
    restart_s: int | UnsetType = UNSET
    deadline_s: int | UnsetType = UNSET

    @property
    def came_ns(self) -> int:
        """The time from which the pod's age in the queue counts: the creation of its gang, or its
        own if that is unknown."""
        return (self.gang.created_ns if self.gang else 0) or self.created_ns

    @property
    def team_queue(self) -> str:
        """The team's queue that the pod belongs to."""
        return self.queue or self.namespace

    def goes_with(self, other: "PodRequest") -> bool:
        """Return True if the other pod is this one, or in the same gang."""
        mine, its = self.gang, other.gang
        return self.uid == other.uid or bool(mine and its and mine.key == its.key)


# --- quantities ----------------------------------------------------------------------------------

_QUANTITY = re.compile(
    r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?$", re.ASCII
)
_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    None: Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


_PLAIN = re.compile(r"(\d{1,15})(m|k|M|G|T|P|[KMGTP]i)?", re.ASCII)
_TIMES = {suffix: int(value) for suffix, value in _SUFFIX.items() if value >= 1}
"""The factors that are whole numbers, by suffix: most quantities are a number with one of these
suffixes, and need no decimals."""


def _whole(text: str | int | float, per: int) -> int | None:
    """Return the quantity times `per`, rounded up to a whole number; None if the text needs exact
    decimals."""
    if type(text) is int and 0 <= text < 10**15:
        return text * per
    match = _PLAIN.fullmatch(text) if type(text) is str else None
    if match is None:
        return None
    number, suffix = match.groups()
    if suffix == "m":
        return -(-int(number) * per // 1000)
    return int(number) * _TIMES[suffix] * per


def _decimal(text: str | int | float, where: str) -> Decimal:
    match = _QUANTITY.match(str(text).strip()) if not isinstance(text, bool) else None
    if match is None:
        raise BadInputError(
            where, f"{text!r} is not a Kubernetes quantity; write a number such as 2, 500m or 4Gi"
        )
    number, exponent, suffix = match.groups()
    if len(number) > 40 or (exponent and (len(exponent) > 4 or abs(int(exponent[1:])) > 40)):
        raise BadInputError(
            where, f"{str(text)[:40]!r} is far too large or too small for a quantity"
        )
    return Decimal(number + (exponent or "")) * _SUFFIX[suffix]


def parse_quantity(text: str | int | float, where: str = "") -> int:
    """Return the quantity in its base unit, rounded up to a whole number as Kubernetes does.

    Raises `BadInputError` naming `where` for text that is not a quantity, or is negative.
    """
    if (whole := _whole(text, 1)) is not None:
        return whole
    value = _decimal(text, where)
    if value < 0:
        raise BadInputError(where, f"{text!r} is negative; write 0 or more")
    return int(value.to_integral_value(ROUND_CEILING))


def parse_cpu_milli(text: str | int | float, where: str = "") -> int:
    """Return a CPU quantity in thousandths of a core, rounded up; `BadInputError` as for
    `parse_quantity`."""
    if (whole := _whole(text, 1000)) is not None:
        return whole
    value = _decimal(text, where) * 1000
    if value < 0:
        raise BadInputError(where, f"{text!r} is negative; write 0 or more")
    return int(value.to_integral_value(ROUND_CEILING))
