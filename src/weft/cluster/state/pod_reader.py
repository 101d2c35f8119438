"""Reads a pod of the API as a `PodRequest`: its GPUs by its dialect, and Kubernetes' own
constraints.

Kubernetes' own rules for where the pod may run become `Constraints`. A rule that Weft does not
honour yet is never ignored: `unsupported` names it, and the pod waits with that reason until
someone changes the pod.

Pods with the same requests are read once: a workload's pods differ in their names and little else.
A cached result depends only on the pod itself and the settings, so it never becomes outdated.

A pod's workload is the name of the owner that keeps creating pods like it:

    a controlling owner      namespace/Kind/name, as `ml/StatefulSet/db`
      a Deployment's           its ReplicaSet's name, less the pod template's hash
      a CronJob's              its Job's name, less the minute the pod was made for
    else weft.dev/application  namespace/application/name
    else                     "": no controller recreates the pod

Owners are found from names alone, without reading them from the API. A part that only looks like a
hash or a minute is kept.
"""

import datetime
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.cluster.state.groups import NO_GROUP, Groups, WrittenGroups
from weft.cluster.state.namespaces import Labels, Namespaces, UnnamedNamespaces
from weft.cluster.state.storage_objects import disks_of
from weft.cluster.state.volume_rules import (
    PodVolumes,
    labels_of,
    mounted_claims,
    term_of,
    terms_of,
)
from weft.dialects import registry
from weft.dialects.dialect import DialectSettings
from weft.dialects.foreign import ForeignRequest, foreign_requests
from weft.dialects.queues import named_queue
from weft.dialects.registry import non_gpu_resources
from weft.dialects.resources import HELD
from weft.dialects.system import CLASSES, application_of, timestamp_ns
from weft.kube.pods import (
    LabelSelector,
    OwnedMeta,
    OwnerReference,
    Pod,
    PodAffinityTerm,
    ScheduledSpec,
    TopologySpread,
)
from weft.model import (
    Constraints,
    HostPort,
    InterPodRules,
    MountedVolumes,
    Node,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Preference,
    Preferences,
    Requirement,
    Shape,
    SpreadRule,
    StorageRules,
    Toleration,
    WeightedTerm,
)
from weft.model.annotations import APPLICATION, CLASS
from weft.model.ceilings import MOST_RULES
from weft.model.declared_features import HOST_NETWORK_USERS, RESTARTS_ALL

WAY_OUT = "run this pod through kube-scheduler with Weft as its extender"
LARGE_BYTES = 65_536
"""The largest pod spec that is cached, in bytes. Most pods have some kB; larger ones would use too
much memory."""
TEMPLATE_HASH = "pod-template-hash"
_OF_EACH = (
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "controller-revision-hash",
)
"""Labels by which a StatefulSet's pods differ from each other."""
_MADE_ALIKE = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "ReplicationController": "v1"}
_SPREAD_BY_DEFAULT = (("kubernetes.io/hostname", 3), ("topology.kubernetes.io/zone", 5))
"""topologyKey and maxSkew of kube-scheduler's default constraints, which are ScheduleAnyway."""
_MINUTE = re.compile(r"(.+)-(\d{8})")
_LATE_MIN = 24 * 60  # a CronJob's pod is made at its minute, or when its Job tries again

_ANYWHERE, _UNCONSTRAINED = Preferences(), Constraints()
_NOTHING_MOUNTED, _NO_VOLUMES = StorageRules(), PodVolumes()
SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
Read = Callable[[Pod, DialectSettings, Constraints], PodRequest]
_encode = msgspec.msgpack.Encoder().encode


class Volumes(Protocol):
    """Returns what pods' volumes require of nodes, given what their claims are bound to."""

    def read(self, pod: Pod) -> PodVolumes:
        """Return the requirements of the pod's volumes."""
        ...


class UnknownVolumes:
    """The volumes of pods in manifests, without a cluster: what their claims are bound to is
    unknown."""

    def read(self, pod: Pod) -> PodVolumes:
        """Return only the disks that the pod itself names, as its claims are unknown."""
        return PodVolumes(storage=StorageRules(mounts=MountedVolumes(disks=disks_of(pod))))


_UNNAMED, _UNGROUPED = UnnamedNamespaces(), WrittenGroups()
# kube-scheduler has already checked these when it calls an extender.
_ASKED = Constraints(judged_elsewhere=True)


def read(
    pod: Pod,
    settings: DialectSettings,
    volumes: Volumes,
    namespaces: Namespaces = _UNNAMED,
    groups: Groups = _UNGROUPED,
) -> PodRequest:
    """Read a pod that Weft itself schedules."""
    of_volumes = volumes.read(pod) if pod.spec.volumes else _NO_VOLUMES
    preferences = preferences_of(pod, namespaces)
    constraints = constraints_with(pod, of_volumes, namespaces)
    rules = 0 if constraints == _UNCONSTRAINED else constraints.rules
    if (rules := rules + (preferences.rules if preferences else 0)) > MOST_RULES:
        stated = f"{rules} rules on nodes, pods, tolerations and host ports"
        why = f"the pod has {stated}; Weft reads {MOST_RULES} at most"
        constraints, preferences = Constraints(unsupported=why), UNSET
    meta, group = pod.metadata, NO_GROUP  # of a pod without any
    if meta.labels or meta.annotations or pod.spec.scheduling_group:
        group = groups.read(pod)
    if group.unhonoured:
        reasons = filter(None, (constraints.unsupported, group.unhonoured))
        constraints = replace(constraints, unsupported="; ".join(reasons))
    request = _cache.read(pod, settings, constraints)
    if of_volumes.claims:
        request = replace(request, claims=of_volumes.claims)
    if group is not NO_GROUP:
        warnings = (*request.warnings, *group.warnings)
        request = replace(request, gang=group.gang, warnings=warnings)
    return request if preferences is UNSET else replace(request, preferences=preferences)


def read_asked(pod: Pod, settings: DialectSettings) -> PodRequest:
    """Read a pod that kube-scheduler asks about. Of its constraints only host ports are read, as
    kube-scheduler checks the others itself."""
    return _cache.read(pod, settings, replace(_ASKED, ports=ports_of(pod.spec)))


def read_bound(pod: Pod, settings: DialectSettings) -> PodRequest:
    """Read a pod that has a node. Of its constraints only host ports are read, since the pod holds
    these ports on its node."""
    return _read(pod, settings, Constraints(ports=ports_of(pod.spec)))


class BoundRequest(NamedTuple):
    """A bound pod's request, read for its node. `mismatch` says in words what contradicts the
    node's memory unit, `unreadable` which of its labels and annotations could not be read; "" for
    none."""

    request: PodRequest
    mismatch: str
    unreadable: str


def read_there(pod: Pod, node: Node, settings: DialectSettings) -> BoundRequest:
    """Return the request of a bound pod on its node, from the parts of the pod that its owner
    cannot change."""
    request, unreadable = registry.parse_bound(pod, settings)
    constraints = Constraints(ports=ports_of(pod.spec))
    request = replace(request, shape=_counted(request.shape, constraints))
    there, mismatch = registry.dialect(request.dialect).on_node(pod, request, node, settings)
    return BoundRequest(there, mismatch, unreadable)


def not_placed(pod: Pod, request: PodRequest) -> list[ForeignRequest]:
    """List requests for GPUs in the pod, including possible ones, that Weft does not place."""
    foreign = foreign_requests(pod, by=request.dialect)
    claims = claims_request(pod.spec)
    waits = registry.unhonoured(pod, request.dialect)
    return [*foreign, *waits, *([claims] if claims is not None else [])]


def plain_shape(pod: Pod, settings: DialectSettings) -> Shape:
    """Read only what a pod requests besides GPUs, and its job class, if that can be read."""
    cpu, memory, extended = non_gpu_resources(pod, lends=settings.lends, bounds=HELD)
    job_class = (pod.metadata.annotations or {}).get(CLASS, "")
    shape = Shape(
        cpu_milli=cpu,
        memory_mib=memory,
        extended=extended,
        job_class=job_class if job_class in CLASSES else "",
    )
    return _counted(shape, Constraints(ports=ports_of(pod.spec)))


def _read_waiting(pod: Pod, settings: DialectSettings, constraints: Constraints) -> PodRequest:
    """Read a pod that is to be placed. A request for GPUs that no dialect reads keeps the pod
    pending."""
    reading = registry.read_pod(pod, settings)
    request = _constrained(reading.request, constraints)
    meta = pod.metadata
    if (meta.labels or meta.annotations) and (queue := named_queue(pod)):
        request = replace(request, queue=queue)
    if pod.spec.preemption_policy == "Never":
        request = replace(request, never_preempts=True)
    reasons = [each.text for each in reading.foreign if each.waits]
    if constraints.judged_elsewhere or not reasons:
        return request
    reasons += [constraints.unsupported] if constraints.unsupported else []
    waiting = replace(constraints, unsupported="; ".join(reasons))
    return replace(request, shape=replace(request.shape, constraints=waiting))


def _read(pod: Pod, settings: DialectSettings, constraints: Constraints) -> PodRequest:
    return _constrained(registry.parse_pod(pod, settings), constraints)


def _constrained(request: PodRequest, constraints: Constraints) -> PodRequest:
    return replace(request, shape=_counted(request.shape, constraints))


def _counted(shape: Shape, constraints: Constraints) -> Shape:
    """Return the shape with these constraints, and with a request for 1 of the node's `pods`."""
    extended = tuple(sorted((*shape.extended, ("pods", 1))))
    return replace(shape, extended=extended, constraints=constraints)


class ParseCache:
    """A cache of the last `keep` different results of `read`. For a pod like a cached one, only the
    fields that differ are replaced (its names, age, workload and labels)."""

    def __init__(self, read: Read, keep: int = 256) -> None:
        self._read, self._keep = read, keep
        self._known: OrderedDict[bytes, tuple[Constraints, PodRequest]] = OrderedDict()

    def read(self, pod: Pod, settings: DialectSettings, constraints: Constraints) -> PodRequest:
        """Return the pod's request, from the cache if a pod like it was read before. Errors are
        raised, and not cached."""
        meta = pod.metadata
        if not (meta.uid and meta.name and meta.namespace):  # not a pod from the API
            return self._read(pod, settings, constraints)
        key = _encode((settings, meta.labels, meta.annotations, pod.spec))
        known = self._known.get(key)
        workload, labels = workload_of(pod), meta.labels or UNSET
        if known is None or known[0] != constraints:
            request = self._read(pod, settings, constraints)
            if len(key) <= LARGE_BYTES:
                self._known[key] = constraints, request
            if len(self._known) > self._keep:
                self._known.popitem(last=False)
            return replace(request, workload=workload, labels=labels)
        self._known.move_to_end(key)
        return replace(
            known[1],
            uid=meta.uid,
            name=meta.name,
            namespace=meta.namespace,
            created_ns=timestamp_ns(meta.creation_timestamp),
            workload=workload,
            labels=labels,
        )


_cache = ParseCache(_read_waiting)


def constraints_of(pod: Pod, volumes: Volumes, namespaces: Namespaces = _UNNAMED) -> Constraints:
    """Return the constraints that keep the pod off nodes; `Constraints.unsupported` names those
    that Weft does not honour."""
    return constraints_with(pod, volumes.read(pod), namespaces)


def constraints_with(pod: Pod, of_volumes: PodVolumes, namespaces: Namespaces) -> Constraints:
    """Return the constraints that keep the pod off nodes; `of_volumes` is what its volumes
    demand."""
    spec = pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    claims = claims_request(spec)
    unsupported = [*not_honoured(pod, namespaces), *([claims.text] if claims else [])]
    way_out = f": {WAY_OUT}" if unsupported else ""
    return Constraints(
        selector=tuple(sorted((spec.node_selector or {}).items())),
        affinity=None if required is None else terms_of(required),
        tolerations=tuple(
            Toleration(t.key, t.operator or "Equal", t.value, t.effect)
            for t in spec.tolerations or ()
        ),
        ports=ports_of(spec),
        volumes=of_volumes.rules,
        unsupported="; ".join(unsupported) + way_out,
        features=features_of(spec) or UNSET,
        pods=rules_of(pod, namespaces),
        storage=UNSET if of_volumes.storage == _NOTHING_MOUNTED else of_volumes.storage,
    )


def ports_of(spec: ScheduledSpec) -> tuple[HostPort, ...]:
    """Return the node's ports that the pod's containers and sidecars take."""
    sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    return tuple(
        HostPort(port.host_port, port.protocol or "TCP", port.host_ip)
        for container in (*sidecars, *spec.containers)
        for port in container.ports or ()
        if port.host_port
    )


def features_of(spec: ScheduledSpec) -> tuple[str, ...]:
    """Return the features that the pod's node must declare, sorted."""
    containers = (*(spec.init_containers or ()), *spec.containers)
    rules = (rule for each in containers for rule in each.restart_policy_rules or ())
    features = [RESTARTS_ALL] if any(r.action == "RestartAllContainers" for r in rules) else []
    if spec.host_network and spec.host_users is False:
        features.append(HOST_NETWORK_USERS)
    return tuple(features)


def claims_request(spec: ScheduledSpec) -> ForeignRequest | None:
    """Return the note on the pod's ResourceClaims, for devices of any kind; None without claims."""
    if not spec.resource_claims:
        return None
    names = ", ".join(claim.name for claim in spec.resource_claims)
    text = (
        f"spec.resourceClaims ({names}) is Kubernetes' dynamic resource allocation: "
        "Weft alone does not place it"
    )
    return ForeignRequest("spec.resourceClaims", text, waits=True)


def claims_of(pod: Pod) -> list[str]:
    """Return the names of the PersistentVolumeClaims that the pod mounts, including those made for
    it."""
    return [mounted.claim for mounted in mounted_claims(pod)]


class OwnedPod(Protocol):
    """A pod with its owners."""

    @property
    def metadata(self) -> OwnedMeta:
        """The pod's metadata."""
        ...


def workload_of(pod: OwnedPod) -> str:
    """Return the name of the pod's workload; "" if it has none."""
    meta = pod.metadata
    namespace = meta.namespace or "default"
    controllers = (owner for owner in meta.owner_references or () if owner.controller)
    owner = next(controllers, None)
    if owner is not None and owner.kind == "Node":
        return ""  # a node's static pods; none of them uses a GPU
    if owner is not None:
        kind, name = _above(owner, pod)
        return f"{namespace}/{kind}/{name}"
    annotations = meta.annotations or {}
    application = application_of(annotations) if APPLICATION in annotations else ""
    return f"{namespace}/application/{application}" if application else ""


def _above(owner: OwnerReference, pod: OwnedPod) -> tuple[str, str]:
    """Return kind and name of the Deployment or CronJob above the owner, as far as names show; else
    the owner's."""
    if owner.kind == "ReplicaSet":
        tail = f"-{(pod.metadata.labels or {}).get(TEMPLATE_HASH, '')}"
        if len(tail) > 1 and owner.name.endswith(tail) and owner.name != tail:
            return "Deployment", owner.name.removesuffix(tail)
    if owner.kind == "Job" and (match := _MINUTE.fullmatch(owner.name)) is not None:
        late_min = _made_min(pod) - int(match[2])
        if 0 <= late_min <= _LATE_MIN:
            return "CronJob", match[1]
    return owner.kind, owner.name


def _made_min(pod: OwnedPod) -> int:
    """Return the time of the pod's creation, minutes since 1970; 0 if unknown."""
    try:
        made = datetime.datetime.fromisoformat(pod.metadata.creation_timestamp or "")
    except ValueError:
        return 0
    return int(made.timestamp()) // 60


# --- rules about other pods ----------------------------------------------------------------------
# A namespaceSelector with labels selects namespaces that `namespaces` knows. If it knows none, a
# pending pod with such a term waits, and of a pod that has a node the term counts everywhere.


def rules_of(pod: Pod, namespaces: Namespaces = _UNNAMED) -> InterPodRules | UnsetType:
    """Read the pod's rules about other pods for its placement; unset if it has none."""
    affinity = pod_terms_of(pod, _required(pod, "pod_affinity"), namespaces)
    anti_affinity = pod_terms_of(pod, _required(pod, "pod_anti_affinity"), namespaces)
    spread = tuple(_spread(pod, each) for each in _hard(pod))
    if not affinity and not anti_affinity and not spread:
        return UNSET
    return InterPodRules(
        affinity,
        anti_affinity,
        spread,
        is_its_own=bool(affinity) and all(_selects(term.pods, pod) for term in affinity),
    )


def marks_of(pod: Pod, namespaces: Namespaces = _UNNAMED) -> PodMarks:
    """Read what other pods' rules need to know of this pod, which has a node."""
    meta = pod.metadata
    near = pod_terms_of(pod, _required(pod, "pod_affinity"), namespaces)
    return PodMarks(
        meta.namespace or "default",
        meta.labels or {},
        pod_terms_of(pod, _required(pod, "pod_anti_affinity"), namespaces),
        bool(meta.deletion_timestamp),
        (*preferred_pods(pod, namespaces), *(WeightedTerm(1, term) for term in near)) or UNSET,
    )


def preferences_of(pod: Pod, namespaces: Namespaces = _UNNAMED) -> Preferences | UnsetType:
    """Read the pod's preferences about nodes; unset if it has none."""
    spec, said = pod.spec, pod.spec.topology_spread_constraints
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    preferred = (affinity.preferred or ()) if affinity is not None else ()
    images, default = images_of(spec), () if said else _default_spread(pod)
    found = Preferences(
        nodes=tuple(Preference(wish.weight, term_of(wish.preference)) for wish in preferred),
        pods=preferred_pods(pod, namespaces),
        spread=default or tuple(_spread(pod, each) for each in _soft(pod)),
        by_default=bool(default),
        images=images,
        containers=len(spec.init_containers or ()) + len(spec.containers) if images else 0,
    )
    return UNSET if found == _ANYWHERE else found


def preferred_pods(pod: Pod, namespaces: Namespaces) -> tuple[WeightedTerm, ...]:
    """Read which pods this pod prefers to be near, or (with a negative weight) not to be near."""
    affinity = pod.spec.affinity
    if affinity is None:
        return ()
    found: list[WeightedTerm] = []
    for part, sign in ((affinity.pod_affinity, 1), (affinity.pod_anti_affinity, -1)):
        wishes = (part.preferred or ()) if part is not None else ()
        terms = pod_terms_of(pod, [wish.pod_affinity_term for wish in wishes], namespaces)
        found += [WeightedTerm(sign * w.weight, t) for w, t in zip(wishes, terms, strict=True)]
    return tuple(found)


def images_of(spec: ScheduledSpec) -> tuple[str, ...]:
    """Return the images that the pod uses, one for each use, as nodes name them."""
    used = [container.image for container in (*(spec.init_containers or ()), *spec.containers)]
    used += [volume.image.reference for volume in spec.volumes or () if volume.image is not None]
    return tuple(image_name(name) for name in used if name)


def image_name(name: str) -> str:
    """Return the image's name, with the tag "latest" if it has none."""
    return f"{name}:latest" if name.rfind(":") <= name.rfind("/") else name


def _default_spread(pod: Pod) -> tuple[SpreadRule, ...]:
    """Return kube-scheduler's default spreading. It uses the selectors of the pod's Services and
    ReplicaSet, which Weft has no permission to read; so the pod's owner and the labels that all of
    the owner's pods have are used instead."""
    owners = (each for each in pod.metadata.owner_references or () if each.controller)
    owner, labels = next(owners, None), pod.metadata.labels or {}
    if owner is None or _MADE_ALIKE.get(owner.kind) != owner.api_version:
        return ()
    if TEMPLATE_HASH in labels:
        labels = {TEMPLATE_HASH: labels[TEMPLATE_HASH]}
    alike = sorted((key, value) for key, value in labels.items() if key not in _OF_EACH)
    if not alike:
        return ()
    selected = tuple(Requirement(key, "In", (value,)) for key, value in alike)
    pods = PodSelector((pod.metadata.namespace or "default",), selected)
    return tuple(SpreadRule(key, skew, pods) for key, skew in _SPREAD_BY_DEFAULT)


def not_honoured(pod: Pod, namespaces: Namespaces = _UNNAMED) -> list[str]:
    """List in words what in the spec Weft does not honour, apart from claims."""
    found = []
    for field, terms in (
        ("podAffinity", _required(pod, "pod_affinity")),
        ("podAntiAffinity", _required(pod, "pod_anti_affinity")),
    ):
        for term in terms:
            found += _bad_operators(f"spec.affinity.{field}", term.label_selector)
            found += _bad_operators(f"spec.affinity.{field}", term.namespace_selector)
            by_labels = labels_of(term.namespace_selector)
            if by_labels and namespaces.selected(by_labels) is None:
                found.append(
                    f"spec.affinity.{field}: namespaceSelector selects by labels, and Weft has no "
                    "permission to list and watch namespaces: apply deploy/scheduler.yaml or "
                    "upgrade the chart"
                )
    for spread in _hard(pod):
        found += _bad_operators("spec.topologySpreadConstraints", spread.label_selector)
    return list(dict.fromkeys(found))


def pod_terms_of(
    pod: Pod, terms: Iterable[PodAffinityTerm], namespaces: Namespaces = _UNNAMED
) -> tuple[PodTerm, ...]:
    """Return these terms of the pod's affinity or anti-affinity in the engine's form."""
    return tuple(
        PodTerm(
            term.topology_key,
            PodSelector(
                _namespaces(pod, term, namespaces),
                _with_keys(
                    labels_of(term.label_selector),
                    pod.metadata.labels or {},
                    term.match_label_keys or (),
                    term.mismatch_label_keys or (),
                ),
            ),
        )
        for term in terms
    )


def namespace_selectors_of(pod: Pod) -> list[Labels]:
    """List the label selectors for namespaces in the pod's affinity terms, required and
    preferred."""
    affinity, found = pod.spec.affinity, []
    if affinity is None:
        return []
    for part in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if part is not None:
            wishes = [wish.pod_affinity_term for wish in part.preferred or ()]
            for term in (*(part.required or ()), *wishes):
                if by_labels := labels_of(term.namespace_selector):
                    found.append(by_labels)
    return found


def _with_keys(
    labels: tuple[Requirement, ...] | None,
    own: Mapping[str, str],
    same: Sequence[str],
    other: Sequence[str] = (),
) -> tuple[Requirement, ...] | None:
    """Return the label requirements with those of matchLabelKeys (the pod's own values) and
    mismatchLabelKeys (any other values) added. API servers write those of affinity into the
    selector as well; duplicates are dropped. None, which selects nothing, stays None."""
    if labels is None:
        return None
    more = [Requirement(key, "In", (own[key],)) for key in same if key in own]
    more += [Requirement(key, "NotIn", (own[key],)) for key in other if key in own]
    return tuple(dict.fromkeys((*labels, *more)))


def _namespaces(pod: Pod, term: PodAffinityTerm, namespaces: Namespaces) -> tuple[str, ...] | None:
    """Return the namespaces of the term, named or selected; None for all."""
    if term.namespace_selector is None:
        return tuple(sorted(set(term.namespaces or (pod.metadata.namespace or "default",))))
    by_labels = labels_of(term.namespace_selector)
    selected = namespaces.selected(by_labels) if by_labels else None
    if selected is None or not term.namespaces:
        return selected
    return tuple(sorted({*term.namespaces, *selected}))


def _spread(pod: Pod, said: TopologySpread) -> SpreadRule:
    labels = _with_keys(
        labels_of(said.label_selector), pod.metadata.labels or {}, said.match_label_keys or ()
    )
    pods = PodSelector((pod.metadata.namespace or "default",), labels)
    return SpreadRule(
        said.topology_key,
        said.max_skew,
        pods,
        min_domains=1 if said.min_domains is None else said.min_domains,
        honors_affinity=said.node_affinity_policy != "Ignore",
        honors_taints=said.node_taints_policy == "Honor",
        counts_itself=_selects(pods, pod),
    )


def _selects(selector: PodSelector, pod: Pod) -> bool:
    return selector.matches(pod.metadata.namespace or "default", pod.metadata.labels or {})


def _required(pod: Pod, field: str) -> Sequence[PodAffinityTerm]:
    affinity = pod.spec.affinity
    terms = getattr(affinity, field) if affinity is not None else None
    return (terms.required or ()) if terms is not None else ()


def _hard(pod: Pod) -> list[TopologySpread]:
    said = pod.spec.topology_spread_constraints or ()
    return [each for each in said if each.when_unsatisfiable != "ScheduleAnyway"]


def _soft(pod: Pod) -> list[TopologySpread]:
    said = pod.spec.topology_spread_constraints or ()
    return [each for each in said if each.when_unsatisfiable == "ScheduleAnyway"]


def _bad_operators(field: str, selector: LabelSelector | None) -> list[str]:
    listed = (selector.match_expressions or ()) if selector is not None else ()
    return [
        f"{field}: {each.operator!r} is not an operator of label selectors; use "
        f"{', '.join(SELECTOR_OPERATORS)}"
        for each in listed
        if each.operator not in SELECTOR_OPERATORS
    ]
