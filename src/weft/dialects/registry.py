"""Finds each pod's dialect, reads the pod by it, and writes placements in its form.

The pod's resources, labels and annotations decide, as they are what the pod gets; the schedulerName
alone decides only for systems without resources (`asks_by_name`). A schedulerName of another system
causes a warning. Requests of two unrelated systems in one pod are an error, as neither reading
would be what the author meant.
"""

from collections.abc import Sequence, Set
from typing import NamedTuple

from msgspec.structs import replace

from weft.dialects.catalog import (
    ALL,
    ASKING_ANNOTATIONS,
    ASKING_LABELS,
    NONE,
    RESOURCES,
    is_gpu_resource,
    kept_marks,
    kept_words,
)
from weft.dialects.dialect import DialectSettings, PodAnnotations
from weft.dialects.evidence import AnyPod, agreed, marked
from weft.dialects.foreign import ANNOTATIONS, READ, ForeignRequest, foreign_in
from weft.dialects.kai import groups_of
from weft.dialects.resources import (
    HELD,
    REFUSED,
    ContainerSlot,
    InputBounds,
    NonGpuResources,
    PodWords,
    amount,
    asked_of,
    beside_gpus,
    slots,
    to_deliver,
)
from weft.dialects.shares import delivered
from weft.dialects.system import CLASSES, USED_ANNOTATIONS, BaseDialect
from weft.model import (
    BadInputError,
    ManifestContainer,
    Node,
    Placement,
    PodManifest,
    PodRequest,
)
from weft.model.annotations import CLASS
from weft.model.ceilings import MOST_GPUS
from weft.model.delivery import DeliveryRecord
from weft.model.manifest import Quantities
from weft.model.nearest import unknown

BY_NAME: dict[str, BaseDialect] = {system.name: system for system in (*ALL, NONE)}
_BY_SCHEDULER: dict[str, BaseDialect] = {}
_NAMED_BY: dict[str, set[int]] = {}
"""Indexes in `ALL` of the systems that may read a resource or label, by its name."""
for _place, _system in enumerate(ALL):
    for _scheduler in _system.scheduler_names:
        _BY_SCHEDULER.setdefault(_scheduler, _system)
    for _name in (*_system.resources, *_system.asking_labels, *_system.carried_by):
        _NAMED_BY.setdefault(_name, set()).add(_place)
_RESOURCES_OF = {name: system.resources for system in ALL for name in system.resources}
# Resources of other systems that each system reads as well, so they are no second system.
INCLUDES = {
    "coscheml": ("gpushare",),
    "hami": ("nvidia",),
    "genius": ("nvidia",),
    "kubeknots": ("nvidia",),
    "kai": ("nvidia",),
    "volcano": ("nvidia",),
    "koordinator": ("nvidia",),
}


def dialect(name: str) -> BaseDialect:
    """Return the dialect of this name; "none" is that of pods without a GPU. `BadInputError` for
    an unknown name."""
    if name not in BY_NAME:
        raise BadInputError("dialect", unknown(name, BY_NAME))
    return BY_NAME[name]


class Placer(NamedTuple):
    """The system that placed a bound pod: a dialect's name and title, or a schedulerName and "".
    `mark`: the annotation or label that names its cards, "" if there is none."""

    name: str
    title: str
    mark: str


def placer_of(manifest: PodManifest, reads: str) -> Placer:
    """Return the system that placed this bound pod, if Weft did not; `reads` is the pod's
    dialect."""
    system = dialect(reads)
    mark, scheduler = system.cards_named_by(manifest), manifest.spec.scheduler_name
    if not mark:
        named = _BY_SCHEDULER.get(scheduler)
        if named is None or named.name == "weft":
            return Placer(scheduler or "default-scheduler", "", "")
        system = named
    return Placer(system.name, system.title or system.name, mark)


def systems_of(words: PodWords, settings: DialectSettings) -> list[BaseDialect]:
    """Return the systems in whose form the pod requests GPUs, in the order of `ALL`. Only systems
    that read one of the names of the pod's resources, labels and annotations are checked."""
    places: set[int] = set()
    for names in (words.naming, words.labels, words.annotations):
        for name in _NAMED_BY.keys() & names.keys():
            places |= _NAMED_BY[name]
    found = [ALL[place] for place in sorted(places) if ALL[place].carries(words, settings)]
    return [s for s in found if not s.yields(words)] if len(found) > 1 else found


def choose(pod: PodManifest, settings: DialectSettings) -> tuple[BaseDialect, str]:
    """Return the pod's system, and a warning ("" for none) if its schedulerName is another
    system's."""
    return _choose(PodWords(pod), settings)


def _choose(words: PodWords, settings: DialectSettings) -> tuple[BaseDialect, str]:
    owners = systems_of(words, settings)
    if len(owners) > 1:
        included = {name for system in owners for name in INCLUDES.get(system.name, ())}
        owners = [system for system in owners if system.name not in included]
    scheduler = words.manifest.spec.scheduler_name
    named = _BY_SCHEDULER.get(scheduler)
    if named is not None and named.asks_by_name:
        includes = INCLUDES[named.name]
        if all(system.name in includes for system in owners):
            return named, ""
    if len(owners) > 1:
        claims = " and ".join(f"{s.name} ({_example(s, words.manifest)})" for s in owners)
        raise BadInputError(
            "spec", f"requests GPUs in the form of {claims}; keep one system and remove the others"
        )
    if not owners:
        return NONE, ""
    owner = owners[0]
    if named is None or named.name in (owner.name, "weft"):
        return owner, ""
    if named.served_by_itself and owner.name in INCLUDES[named.name]:
        return owner, ""  # whole cards, which the named system places too, without marks
    return owner, (
        f"schedulerName {scheduler} is {named.name}'s, but the pod requests GPUs in the form of "
        f"{owner.name}: it is read as {owner.name}'s"
    )


class ManifestReading(NamedTuple):
    """The request of a pod, and its requests for GPUs (`foreign`) that no dialect reads."""

    request: PodRequest
    foreign: tuple[ForeignRequest, ...]


def parse_pod(manifest: PodManifest, settings: DialectSettings) -> PodRequest:
    """Return the pod's request, or `BadInputError` naming field, value and a remedy."""
    return read_pod(manifest, settings).request


def read_pod(manifest: PodManifest, settings: DialectSettings) -> ManifestReading:
    """Return the pod's request and what Weft does not support in it. The containers are walked
    once."""
    words = PodWords(manifest, _RESOURCES_OF)
    system, warning = _choose(words, settings)
    request = system.parse(words, settings)
    beside = beside_gpus(
        words, REFUSED, is_gpu_resource, counted=RESOURCES if settings.lends else ()
    )
    shape = replace(
        request.shape,
        cpu_milli=beside.cpu_milli,
        memory_mib=beside.memory_mib,
        extended=beside.extended,
        resources=to_deliver(words, system.counted, system.resources) or system.delivered_by(words),
    )
    foreign: tuple[ForeignRequest, ...] = ()
    if not READ.issuperset(words.naming) or any(map(words.annotations.get, ANNOTATIONS)):
        foreign = tuple(foreign_in(words, by=system.name))
    if system.unhonoured:
        foreign += unhonoured(manifest, system.name)
    warnings = (warning, *request.warnings) if warning else request.warnings
    if foreign:  # those with `waits` become the reason why the pod is pending
        warnings += tuple(each.text for each in foreign if not each.waits)
    names = system.scheduler_names
    return ManifestReading(
        replace(request, shape=shape, system_names=names, warnings=warnings), foreign
    )


def unhonoured(pod: PodManifest, name: str) -> tuple[ForeignRequest, ...]:
    """Return the annotations by which a pod of this dialect asks for something that Weft does not
    do."""
    annotations, found = pod.metadata.annotations or {}, []
    for key in dialect(name).unhonoured:
        if text := annotations.get(key):
            why = f"annotation {key} ({text[:40]!r}) is not honoured by Weft"
            found.append(ForeignRequest(key, why, waits=True))
    return tuple(found)


def write(request: PodRequest, placement: Placement, node: Node, now_ns: int) -> PodAnnotations:
    """Return the annotations, labels and environment for this placement."""
    return dialect(request.dialect).write(request, placement, node, now_ns)


class WrittenPlacement(NamedTuple):
    """A placement as its Binding carries it: the annotations, labels and environment (`marks`), and
    the delivery record, None for a pod that holds no GPU."""

    marks: PodAnnotations
    record: DeliveryRecord | None


def written(
    request: PodRequest, placement: Placement, node: Node, now_ns: int, *, most_permille: int
) -> WrittenPlacement:
    """Return the annotations, labels, environment and delivery record of a placement;
    `most_permille` as for `shares.delivered`."""
    system = BY_NAME[request.dialect]
    marks, as_one = system.write(request, placement, node, now_ns), system.pod_asks_as_one
    record = delivered(
        request, placement, node, marks.env, as_one=as_one, most_permille=most_permille
    )
    return WrittenPlacement(marks, record)


def read_placement(
    manifest: PodManifest, node: Node, settings: DialectSettings
) -> Placement | None:
    """Return the placement of a bound pod on `node` by its annotations; None if they give none."""
    return read_bound(manifest, node, settings)[1]


def parse_bound(manifest: PodManifest, settings: DialectSettings) -> tuple[PodRequest, str]:
    """Return a bound pod's request by those parts of the pod that its owner can no longer change,
    and a sentence on a part that cannot be read, "" for none.

    Labels and annotations that request GPUs count only if a scheduler placed the pod by them and no
    two of its annotations agree on a placement. Raises `BadInputError` if its containers' resources
    contradict each other.
    """
    asked = manifest if _placed_by_words(manifest) else without_asking(manifest)
    try:
        request = parse_pod(asked, settings)
    except BadInputError as error:
        request, why = parse_pod(without_words(manifest), settings), str(error)
    else:
        why = _unreadable(manifest, settings) if asked is not manifest else ""
    return request, why


class KeptWords(NamedTuple):
    """A bound pod's labels and annotations of which the value seen first counts, whatever is
    written later: those that request GPUs, and those in which systems that run next to Weft say
    which GPUs the pod has."""

    labels: dict[str, str]
    annotations: dict[str, str]


def kept_of(manifest: PodManifest, *, asking: bool = True) -> KeptWords:
    """Return the pod's labels and annotations of which the value seen first counts; those that
    request GPUs only with `asking`."""
    words = kept_words if asking else kept_marks
    return KeptWords(words(manifest.metadata.labels), words(manifest.metadata.annotations))


def with_kept(manifest: AnyPod, kept: KeptWords, *, asking: bool = True) -> AnyPod:
    """Return the pod with the labels and annotations in `kept` instead of its present ones that
    `kept_of` returns."""
    own = kept_of(manifest, asking=asking)
    if own == kept:
        return manifest
    meta = manifest.metadata
    labels = {name: text for name, text in (meta.labels or {}).items() if name not in own.labels}
    annotations = {
        name: text for name, text in (meta.annotations or {}).items() if name not in own.annotations
    }
    labels, annotations = labels | kept.labels, annotations | kept.annotations
    return replace(manifest, metadata=replace(meta, labels=labels, annotations=annotations))


def without_asking(manifest: PodManifest) -> PodManifest:
    """Return the pod without labels and annotations that request GPUs."""
    meta = manifest.metadata
    labels, annotations = meta.labels or {}, meta.annotations or {}
    if ASKING_LABELS.isdisjoint(labels) and ASKING_ANNOTATIONS.isdisjoint(annotations):
        return manifest
    labels = {name: text for name, text in labels.items() if name not in ASKING_LABELS}
    annotations = {n: text for n, text in annotations.items() if n not in ASKING_ANNOTATIONS}
    return replace(manifest, metadata=replace(meta, labels=labels, annotations=annotations))


def without_words(manifest: PodManifest) -> PodManifest:
    """Return the pod as its spec alone requests GPUs: without labels, and only with annotations
    that describe it (application, class, duration, SLO)."""
    said = {
        name: text
        for name, text in (manifest.metadata.annotations or {}).items()
        if name in USED_ANNOTATIONS and (name != CLASS or text in CLASSES)
    }
    return replace(manifest, metadata=replace(manifest.metadata, labels=None, annotations=said))


def _placed_by_words(manifest: PodManifest) -> bool:
    """Return True if labels or annotations that request GPUs decide what this bound pod holds:
    the pod was placed by a scheduler that reads them, or it has such annotations and is in one
    of KAI's groups, or one of Weft's annotations gives it a placement. False if two of its
    annotations agree on Weft's placement."""
    labels, annotations = manifest.metadata.labels or {}, manifest.metadata.annotations or {}
    if agreed(manifest):
        return False
    if not ASKING_ANNOTATIONS.isdisjoint(annotations) and groups_of(manifest):
        return True
    scheduler = manifest.spec.scheduler_name
    reading = {
        name
        for system in ALL
        if scheduler in system.scheduler_names
        for name in (*system.asking_labels, *system.asking_annotations)
    }
    return not (reading.isdisjoint(labels) and reading.isdisjoint(annotations)) or marked(manifest)


def _unreadable(manifest: PodManifest, settings: DialectSettings) -> str:
    try:
        parse_pod(manifest, settings)
    except BadInputError as error:
        return str(error)
    return ""


class PossibleRequests(NamedTuple):
    """Upper bounds for the request of a pod whose resources contradict each other: each system's
    reading of its own resources, and a number of whole cards for what no system can read."""

    readings: tuple[PodRequest, ...]
    cards: int


def possible_requests(manifest: PodManifest, settings: DialectSettings) -> PossibleRequests:
    """Return, for each system whose resources the pod names, how it reads its own resources. Never
    raises `BadInputError`.

    What a system cannot read counts as one card for each unit, so that no quota sees too few.
    """
    spec_alone = without_words(manifest)
    carried = systems_of(PodWords(spec_alone), settings)
    included = {name for system in carried for name in INCLUDES.get(system.name, ())}
    readings, cards = [], 0
    for system in carried:
        if system.name in included:
            continue
        own = {*system.resources, *system.counted}
        for name in INCLUDES.get(system.name, ()):
            own |= set(BY_NAME[name].resources)
        try:
            readings.append(system.parse(PodWords(_asking_only(spec_alone, own)), settings))
        except BadInputError:
            cards += sum(_units(slot, own) for slot in slots(manifest))
    return PossibleRequests(tuple(readings), cards)


def _asking_only(manifest: PodManifest, names: Set[str]) -> PodManifest:
    """Return the pod with only these of its containers' resources."""

    def only(amounts: Quantities | None) -> Quantities:
        return {name: amount for name, amount in (amounts or {}).items() if name in names}

    def asking(containers: Sequence[ManifestContainer] | None) -> list[ManifestContainer]:
        return [
            replace(
                each,
                resources=replace(
                    each.resources,
                    limits=only(each.resources.limits),
                    requests=only(each.resources.requests),
                ),
            )
            for each in containers or ()
        ]

    spec = manifest.spec
    asked = replace(
        spec, containers=asking(spec.containers), init_containers=asking(spec.init_containers)
    )
    return replace(manifest, spec=asked)


def _units(slot: ContainerSlot, names: Set[str]) -> int:
    """Return the units of these resources that the container requests, at most as many as a node
    has GPUs; 1 if that is not a whole number."""
    try:
        units = sum(amount(slot, name, HELD) for name in asked_of(slot, sorted(names)))
    except BadInputError:
        return 1
    return min(units, MOST_GPUS)


def read_bound(
    manifest: PodManifest, node: Node, settings: DialectSettings
) -> tuple[PodRequest, Placement | None]:
    """Return the bound pod's request as its node counts it, and its placement, None if its
    annotations give none."""
    request = parse_pod(manifest, settings)
    system = dialect(request.dialect)
    request = system.on_node(manifest, request, node, settings)[0]
    return request, system.read(manifest, request, node)


def _example(system: BaseDialect, pod: PodManifest) -> str:
    """Return the name of a resource or label in the pod that this system reads, for messages."""
    names = [name for name in (pod.metadata.labels or {}) if name.startswith(("genius/", "GPU_M"))]
    for container in (*(pod.spec.init_containers or ()), *pod.spec.containers):
        names += [*(container.resources.limits or ()), *(container.resources.requests or ())]
    resources = system.resources or tuple(names)
    return next((name for name in names if name in resources), system.name)


def non_gpu_resources(
    pod: PodManifest, *, lends: bool = False, bounds: InputBounds = REFUSED
) -> NonGpuResources:
    """Return the pod's requests of CPU, memory and other resources; with `lends` GPU resources as
    well.

    An amount above what any node has is refused or, with the bounds `HELD`, reduced to the most
    that a node has; with `HELD`, containers' resources that cannot be read count as nothing.
    """
    counted = RESOURCES if lends else ()
    return beside_gpus(PodWords(pod), bounds, is_gpu_resource, counted=counted)
