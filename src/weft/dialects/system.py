"""The code that all dialects share; each system's own file has only what differs.

`BaseDialect` writes and reads placements, and `build` makes a `PodRequest` from a dialect's reading
and what every system's pods have in common. Weft's own annotations (`weft.dev/gpu-model`,
`isolation`, `application`, `class`, `expected-duration`, `slo-ms`, `solo-p99-ms`, `topology`) may
be on a pod of any system.

An annotation may have 256 kB. An invalid value is refused if it decides where the pod goes, and
ignored with a warning if it only describes the pod.
"""

import re
from calendar import timegm
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.dialects import evidence, shares
from weft.dialects.dialect import DialectSettings, PodAnnotations, TieBreak, UnitSettings
from weft.dialects.evidence import ChargedPlacement
from weft.dialects.resources import (
    ContainerRequests,
    ContainerSlot,
    PodWords,
    per_container,
    too_many,
)
from weft.dialects.slo import slowdown_limit_of
from weft.model import (
    BadInputError,
    DeviceRule,
    Gpu,
    GpuRequest,
    Node,
    Placement,
    PodManifest,
    PodRequest,
    Shape,
)
from weft.model.agent_offer import ISOLATIONS
from weft.model.annotations import (
    APPLICATION,
    CLASS,
    EXPECTED_DURATION,
    GPU_MODEL,
    ISOLATION,
    MOVABLE,
    PLACEMENT,
    RESTART_COST,
    SLO_MS,
    SOLO_P99_MS,
    TOPOLOGY,
)
from weft.model.bad_input import WrongMark
from weft.model.ceilings import (
    LEAST_PRIORITY,
    MOST_ASKING,
    MOST_GPU_MIB,
    MOST_GPUS,
    MOST_LETTERS,
    MOST_PRIORITY,
)
from weft.model.delivery import NO_DEVICES
from weft.model.nearest import unknown
from weft.model.request import (
    ANY_DEVICE,
    BATCH,
    BEST_EFFORT,
    LATENCY_CRITICAL,
    TopologyWish,
    rounded_s,
)
from weft.model.slowdown_limit import SlowdownLimit

USED_ANNOTATIONS = (APPLICATION, CLASS, EXPECTED_DURATION, SLO_MS, SOLO_P99_MS)
"""Annotations in which a pod describes itself (application, class, duration, SLO); its placement
keeps what they say."""

TOPOLOGIES = ("required", "preferred", "none")
CLASSES = (LATENCY_CRITICAL, BATCH, BEST_EFFORT)

_MOST_LISTED = 16_384  # some 400 UUIDs: more would be looked through for every GPU
_MOST_SHOWN = 40

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?[Zz]")
_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s?)?", re.A)
_DURATION_MOST_S = 366 * 86_400
MOST_DEADLINE_S = 2**31 - 1
CHECKPOINTED_S = 60
"""Seconds of work that a pod with checkpoints loses when it restarts: about a minute."""
_CLAIM_ANNOTATION = "egpuc.elasticgpu.io/"


class BaseDialect:
    """A `Dialect` without `parse`. A name in these attributes that ends in * is a prefix.

    `title` is what people call the system, `name` if empty; `scheduler_names` are its schedulers,
    the default first. `resources` are the names by which its pods request GPUs; `resource_pattern`
    matches these and those that Weft does not read. `asking_labels` and `asking_annotations`
    request GPUs too. To admission policies (`cluster/admission/`) pods that ask in any other way
    look like ordinary pods. `carried_by` are other systems' resources by which a pod may be this
    system's. A pod that names none of all these resources, labels and annotations is never this
    system's. `asks_by_name`: its schedulerName alone makes a pod its own (Genius and Kube-Knots
    pods may have no resource or label).

    `counted` are the resources that the system's device plugin serves: for a container that names
    one, the node need advertise no other; for all others, each resource that the container names.
    `pod_asks_as_one`: its pods request GPUs for all containers together, so each container may use
    all that the pod holds.

    `written` are the annotations and labels in which its schedulers and agents say which GPUs a pod
    has, `written_on_nodes` those about a node's. Admission policies keep all others from writing
    these (`cluster/admission/`). `agent_annotation` is the annotation in which its agent on the
    node writes the card that it picked itself: Weft writes it only if it replaces that agent
    (`annotate_started`), and `recover` reads it alone. `card_marks` are annotations that name a
    bound pod's cards, if there are no `kept_marks`.

    `served_by_itself`: the system keeps scheduling next to Weft and delivers what it gave. Its
    `kept_marks` are annotations and labels that say what a bound pod has; as with
    `asking_annotations`, the value seen first counts. `unhonoured` are annotations that keep a pod
    pending, as Weft does not do what they ask.
    """

    name: str = ""
    title: str = ""
    scheduler_names: tuple[str, ...] = ()
    tie_break: TieBreak = "first"
    resources: ClassVar[tuple[str, ...]] = ()
    resource_pattern: ClassVar[str] = ""
    asking_labels: ClassVar[tuple[str, ...]] = ()
    asking_annotations: ClassVar[tuple[str, ...]] = ()
    carried_by: ClassVar[tuple[str, ...]] = ()
    counted: ClassVar[tuple[str, ...]] = ()
    asks_by_name: ClassVar[bool] = False
    pod_asks_as_one: ClassVar[bool] = False
    agent_annotation: ClassVar[str] = ""
    written: ClassVar[tuple[str, ...]] = ()
    unhonoured: ClassVar[tuple[str, ...]] = ()
    kept_marks: ClassVar[tuple[str, ...]] = ()
    served_by_itself: ClassVar[bool] = False
    written_on_nodes: ClassVar[tuple[str, ...]] = ()
    card_marks: ClassVar[tuple[str, ...]] = ()

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """Return True if the pod requests GPUs in this system's form, whatever its
        schedulerName."""
        return any(words.asking[self.resources])

    def yields(self, words: PodWords) -> bool:
        """Return True if any other system in whose form the pod also requests GPUs takes
        precedence."""
        return False

    def delivered_by(self, words: PodWords) -> tuple[str, ...]:
        """Return the resources or annotations that the node must serve for a pod that names none of
        the system's resources."""
        return ()

    def owns(self, pod: PodManifest, settings: DialectSettings) -> bool:
        """Return True if this pod requests GPUs in this system's form."""
        by_name = self.asks_by_name and pod.spec.scheduler_name in self.scheduler_names
        return by_name or self.carries(PodWords(pod), settings)

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """Return how much of each resource of this system a node advertises for one card; nothing
        by default.

        `pieces`: the card's MIG instances, 1 for a card that is not cut into instances.
        """
        return {}

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the request; raise `BadInputError`, naming field and value, if the pod cannot be
        read."""
        raise NotImplementedError

    def write(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return the annotations and labels that this system and Weft write for the placement, and
        the containers' environment."""
        if not placement.shares:
            return PodAnnotations()
        own = self.annotate(request, placement, node, now_ns)
        return replace(own, annotations={**own.annotations, PLACEMENT: shares.encode(placement)})

    def read(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement that the pod is charged for on `node`; see `evidence.py`.

        None if its annotations are another pod's, or do not name a GPU of the node for each
        request. A pod that asks for no GPU holds only CPU, memory and other resources.
        """
        charged = self.weigh(pod, request, node)
        return charged.placement if charged is not None and not charged.anywhere else None

    def weigh(
        self, pod: PodManifest, request: PodRequest, node: Node, bound_with: str = ""
    ) -> ChargedPlacement | None:
        """Return the charge of a bound pod, with what is wrong with its annotations and labels;
        None if they give no placement of this pod. `bound_with`: the value of Weft's annotation
        that the pod was first seen bound with, if known."""
        text = evidence.agreed(pod, bound_with) if pod.spec.node_name == node.name else ""
        asks = bool(request.shape.gpu_requests)
        if not asks and not text:
            return ChargedPlacement(shares.placement_of(request, node, ()))
        if not text and evidence.anothers(pod, request, node):
            return None
        records = evidence.records(pod, request, node, text)
        own = self.recover(pod, request, node) if asks else None
        if own is not None and (self.agent_annotation or not records):
            return ChargedPlacement(
                own, moved=evidence.moved(request, records, own, self.agent_annotation)
            )
        return evidence.weigh(request, node, records, own, self.name) if records else None

    def wrong_marks(self, pod: PodManifest, request: PodRequest, node: Node) -> WrongMark | None:
        """Return what is wrong with this system's own annotations and labels on a bound pod; None
        if nothing."""
        return None

    def perhaps_on(self, pod: PodManifest, node: Node) -> frozenset[int]:
        """Return the indexes of the node's cards that this system's annotations on the bound pod
        name, even if they give no full placement."""
        return frozenset()

    def cards_named_by(self, pod: PodManifest) -> str:
        """Return the name of the annotation or label of this system that says which cards this
        bound pod has; "" if there is none."""
        meta, names = pod.metadata, self.card_marks or self.kept_marks
        marks = {**(meta.labels or {}), **(meta.annotations or {})}
        beginnings = tuple(name[:-1] for name in names if name[-1] == "*")
        found = (
            n for n in sorted(marks) if n in names or (beginnings and n.startswith(beginnings))
        )
        return next(found, "")

    def on_node(
        self, pod: PodManifest, request: PodRequest, node: Node, settings: DialectSettings
    ) -> tuple[PodRequest, str]:
        """Return the request of a pod bound to `node` in that node's units, and a sentence about
        any contradiction, "" for none."""
        return request, ""

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return this system's annotations, labels and environment; by default only the variable
        that says which GPUs each container sees."""
        return PodAnnotations(env=shares.visible(request, placement))

    def annotate_started(
        self,
        pod: PodManifest,
        request: PodRequest,
        placement: Placement,
        others: Sequence[PodManifest],
        now_ns: int,
    ) -> dict[str, str]:
        """Return the annotations that the system's device plugin writes when a container starts and
        that the pod lacks. `others` are the other pods of its node."""
        return {}

    def env_when_bound(
        self, pod: PodManifest, request: PodRequest, env: dict[str, dict[str, str]]
    ) -> dict[str, dict[str, str]]:
        """Return the environment that `write` gives, changed to what the system's own agent
        chose."""
        return env

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement that this system's annotations and labels alone give; None if they
        give none."""
        return None


class PerContainerDialect(BaseDialect):
    """A system in which each container has GPUs of its own: `ask` reads one container's request."""

    def ask(self, slot: ContainerSlot, notes: list[str]) -> GpuRequest | None:
        """Return what a container that names one of the system's resources asks for; None for
        nothing. `notes` take warnings."""
        raise NotImplementedError

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the request: GPUs of its own for each container."""
        notes: list[str] = []
        asks = asks_of(words, self.resources, lambda slot: self.ask(slot, notes))
        return build(words, self.name, per_container(words.slots, asks), warnings=notes)


# --- a pod's request -----------------------------------------------------------------------------


def asks_of(
    words: PodWords, names: tuple[str, ...], ask: Callable[[ContainerSlot], GpuRequest | None]
) -> list[GpuRequest | None]:
    """Return each container's request as `ask` reads it; None if it names none of these
    resources."""
    asking = words.asking[names]
    if (number := sum(asking)) > MOST_ASKING:
        raise too_many(number)
    return [ask(slot) if asks else None for slot, asks in zip(words.slots, asking, strict=True)]


def build(
    words: PodWords,
    dialect: str,
    layout: ContainerRequests,
    *,
    shape: Shape | None = None,
    shared: bool = False,
    warnings: Sequence[str] = (),
) -> PodRequest:
    """Build a pod's request: its GPU requests (`layout`), what only the dialect knows (`shape`),
    and what all systems have in common. `shared`: the pod's containers use the same GPUs."""
    own, pod = shape or Shape(), words.manifest
    meta = pod.metadata
    _check(layout)
    annotations = meta.annotations or {}
    notes = [*warnings, *_environment_notes(words, layout, dialect), *_request_notes(annotations)]
    job_class = _one_of(annotations, CLASS, CLASSES)
    isolation = _one_of(annotations, ISOLATION, ISOLATIONS) or own.isolation
    full = replace(
        own,
        gpu_requests=layout.gpu_requests,
        devices=_devices(own.devices, annotations, notes),
        isolation=isolation if layout.gpu_requests else "",
        node_name=pod.spec.node_name,
        application=application_of(annotations, notes) or own.application,
        job_class=job_class,
        expected_s=_expected_s(annotations, notes),
        slowdown_limit=_slowdown_limit(annotations, job_class, notes),
        topology=_topology(annotations, layout),
    )
    name = meta.name or meta.generate_name
    namespace = meta.namespace or "default"
    return PodRequest(
        uid=meta.uid or f"{namespace}/{name}",
        name=name,
        namespace=namespace,
        shape=full,
        dialect=dialect,
        scheduler_name=pod.spec.scheduler_name or "default-scheduler",
        priority=_priority(pod, notes),
        restart_s=_restart_s(annotations, notes),
        deadline_s=deadline_of(pod),
        created_ns=timestamp_ns(meta.creation_timestamp),
        containers=layout.containers,
        shared_by_containers=shared,
        warnings=tuple(notes),
    )


def _priority(pod: PodManifest, notes: list[str]) -> int:
    """Return spec.priority, limited to what the API server accepts, with a note if it was
    changed."""
    asked = pod.spec.priority or 0
    if asked != (priority := max(LEAST_PRIORITY, min(asked, MOST_PRIORITY))):
        notes.append(
            f"spec.priority {str(asked)[:_MOST_SHOWN]} does not fit into 32 bits, and API servers "
            f"reject it: it counts as {priority}"
        )
    return priority


def _slowdown_limit(
    annotations: Mapping[str, str], job_class: str, notes: list[str]
) -> SlowdownLimit:
    """Return the slowdown that the pod's SLO allows; () for the many pods without one."""
    if SLO_MS in annotations or SOLO_P99_MS in annotations:
        return slowdown_limit_of(annotations, job_class, notes)
    return ()


def _check(layout: ContainerRequests) -> None:
    """Refuse requests that are too large together, though none of them is too large by itself."""
    gpus = sum(gpu_request.count for gpu_request in layout.gpu_requests)
    if gpus > MOST_GPUS:
        wrong = f"{gpus:,} GPUs in all: no node has more than {MOST_GPUS:,}"
        raise BadInputError("spec.containers", wrong)
    for gpu_request in layout.gpu_requests:
        most = MOST_GPU_MIB * (MOST_GPUS if gpu_request.split else 1)
        if (value := gpu_request.memory.value) > most:
            wrong = f"{value:,} of a GPU's memory in all: no GPU has more than {most:,} MiB"
            raise BadInputError("spec.containers", wrong)


def timestamp_ns(text: str | None) -> int:
    """Return a Kubernetes timestamp (RFC 3339, UTC) as nanoseconds since 1970; 0 if there is
    none. `BadInputError` for text that is not a time."""
    if not text:
        return 0
    match = _TIME.fullmatch(text.strip())
    try:
        seconds = timegm(tuple(map(int, match.groups()[:6]))) if match is not None else None
    except ValueError:  # a month 13
        seconds = None
    if match is None or seconds is None:
        wrong = f"{text!r} is not a time; write 2026-01-31T08:00:00Z"
        raise BadInputError("metadata.creationTimestamp", wrong)
    return seconds * 10**9 + int((match[7] or "").ljust(9, "0"))


def _one_of(annotations: dict[str, str], name: str, allowed: Sequence[str]) -> str:
    value = annotations.get(name, "")
    if value and value not in allowed:
        wrong = unknown(value[:_MOST_SHOWN], allowed, "write")
        raise BadInputError(f"metadata.annotations[{name}]", wrong)
    return value


def _topology(annotations: dict[str, str], layout: ContainerRequests) -> TopologyWish | UnsetType:
    """Return how the pod's GPUs must be connected; unset for `preferred`, and for `required` if
    the pod has only one GPU."""
    wish = _one_of(annotations, TOPOLOGY, TOPOLOGIES)
    several = sum(ask.count for ask in layout.gpu_requests) > 1
    if wish == "required":
        return "required" if several else UNSET
    return "none" if wish == "none" else UNSET


def _devices(own: DeviceRule, annotations: dict[str, str], notes: list[str]) -> DeviceRule:
    models = listed(annotations, GPU_MODEL)
    if not models:
        return own
    if own != ANY_DEVICE:
        notes.append(f"{GPU_MODEL} is ignored: the pod's own system names its devices already")
        return own
    return DeviceRule(models=models, how="contains")


def application_of(annotations: Mapping[str, str], notes: list[str] | None = None) -> str:
    """Return the application in the pod's annotation; "" if that is not a valid name, with a
    note."""
    text = annotations.get(APPLICATION, "")
    if len(text) <= MOST_LETTERS and text.isprintable():
        return text
    if notes is not None:
        notes.append(
            f"annotation {APPLICATION} is ignored: {text[:_MOST_SHOWN]!a}, of {len(text):,} "
            f"characters, is not a valid name: write at most {MOST_LETTERS}, all of them printable"
        )
    return ""


def _expected_s(annotations: Mapping[str, str], notes: list[str]) -> int:
    """Return the pod's expected duration alone on its GPU in seconds, rounded; 0 if it gives none,
    or an invalid one."""
    text = annotations.get(EXPECTED_DURATION, "").strip()
    if 0 < (seconds := _seconds(text)) <= _DURATION_MOST_S:
        return rounded_s(seconds)
    if text:
        notes.append(
            f"annotation {EXPECTED_DURATION} is ignored: {text[:_MOST_SHOWN]!a} is not a duration "
            "of at most 366 days: write seconds, or a duration such as 2h30m"
        )
    return 0


def _restart_s(annotations: Mapping[str, str], notes: list[str]) -> int | UnsetType:
    """Return the seconds of work that are lost when the pod is moved; unset if the pod does not
    say."""
    text = annotations.get(RESTART_COST, "").strip()
    if text == "checkpointed":
        return CHECKPOINTED_S
    if text and 0 <= (seconds := _seconds(text)) <= _DURATION_MOST_S:
        return seconds
    if text:
        notes.append(
            f"annotation {RESTART_COST} is ignored: {text[:_MOST_SHOWN]!a} is neither checkpointed "
            "nor a duration of at most 366 days: write seconds, or a duration such as 1m30s"
        )
    return UNSET


def deadline_of(pod: PodManifest) -> int | UnsetType:
    """Return spec.activeDeadlineSeconds; unset if there is none, or the API server would not
    accept it."""
    asked = pod.spec.active_deadline_seconds or 0
    return asked if 0 < asked <= MOST_DEADLINE_S else UNSET


def _seconds(text: str) -> int:
    """Return the duration in seconds; -1 if the text is not a duration."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return -1
    parts = [int(part or 0) for part in match.groups()]
    return sum(part * unit for part, unit in zip(parts, (86_400, 3_600, 60, 1), strict=False))


def listed(annotations: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the non-empty parts of the comma-separated list in this annotation; `BadInputError`
    if the list is too long."""
    text = annotations.get(name, "")
    if len(text) > _MOST_LISTED:
        wrong = f"the list has {len(text):,} characters; write at most {_MOST_LISTED:,}"
        raise BadInputError(f"metadata.annotations[{name}]", wrong)
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _environment_notes(words: PodWords, layout: ContainerRequests, dialect: str) -> list[str]:
    """Return warnings about GPU variables that the pod itself sets: only an agent on the node
    replaces them."""
    notes: list[str] = []
    delivered = {"NVIDIA_VISIBLE_DEVICES", *(("LD_PRELOAD",) if dialect == "alnair" else ())}
    for slot, request in zip(words.slots, layout.containers, strict=True):
        for variable in slot.container.env or ():
            if variable.name not in delivered:
                continue
            if request.asked is not None:
                notes.append(
                    f"container {request.name} sets {variable.name} itself: Weft's agent replaces "
                    "the value; on nodes without the agent the container keeps it regardless of "
                    "Weft's assignment"
                )
            elif variable.value not in NO_DEVICES:
                notes.append(
                    f"container {request.name} sets {variable.name} but asks for no GPU: "
                    "Weft charges none for it, and only Weft's agent keeps it from using the "
                    "node's GPUs"
                )
    return notes


def _request_notes(annotations: dict[str, str]) -> list[str]:
    movable = annotations.get(MOVABLE, "true")
    notes = []
    if movable not in ("true", "false"):
        notes = [
            f"annotation {MOVABLE} is ignored: {movable[:_MOST_SHOWN]!a} is neither true nor false"
        ]
    return notes + [
        f"annotation {name} is ignored: no released system implements Elastic GPU claims"
        for name in sorted(annotations)
        if name.startswith(_CLAIM_ANNOTATION)
    ]
