"""KAI Scheduler: `gpu-fraction` or `gpu-memory` in annotations, of one card or several.

A fraction is of the card's memory; cores are not requested. Since the request is no resource, the
kubelet does not see it. Only Weft's agent can give a container its part, if the container runtime
names each pod to the agent (delivery by name).

Only a *reservation pod* says which card the pods of a group have: a pod of KAI's own that requests
the whole card for the group. It has the group's label, is on the same node, and has the card's UUID
in an annotation (although the annotation's name says index). A bound pod is charged its part of
that card. The reservation pod is charged nothing while another pod of the group is on the node,
else the whole card, as KAI is about to use it.

If no reservation pod names its card, a pod is charged one whole card for each card of which it has
a part. If reservation pods name only some of the pod's cards, one card twice, or several cards for
one group, then these reservation pods are charged their cards, and the pods that share these cards
are charged nothing there.

Weft writes none of KAI's marks on pods that it places: KAI deletes pods of a group without a
reservation pod.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from msgspec import UNSET
from msgspec.structs import replace

from weft.dialects.dialect import DialectSettings, PodAnnotations
from weft.dialects.evidence import ChargedPlacement, marked
from weft.dialects.nvidia import GPU
from weft.dialects.resources import (
    ContainerSlot,
    PodWords,
    amount,
    per_container,
    whole_cards,
)
from weft.dialects.shares import find, placement_of, share_on, visible
from weft.dialects.system import BaseDialect, asks_of, build
from weft.model import (
    BadInputError,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    Placement,
    PodManifest,
    PodRequest,
    Shape,
)
from weft.model.bad_input import WrongMark
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS, MOST_LETTERS
from weft.model.node import CardNames

FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"
DEVICES = "gpu-fraction-num-devices"
CONTAINER = "gpu-fraction-container-name"
MPS = "mps"
GROUP = "runai-gpu-group"
GROUPS = f"{GROUP}/"
QUEUE = "kai.scheduler/queue"
RESERVED_CARD = "run.ai/reserve_for_gpu_index"
RESERVATIONS = "kai-resource-reservation"
"""Namespace of KAI's reservation pods. Pods of other namespaces never count as reservation pods, as
any user could label a pod like one."""

_NUMBER = re.compile(r"(?:\d{1,4}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,2})?", re.ASCII)
_MILLIONTHS = 1_000_000
_UNLABELLED = ("", "default-scheduler")
_KEPT_FOR_NONE = "reserves its GPU for a group that has no pods"
_KEPT_FOR_ALL = "reserves its GPU for a group with a pod whose GPUs are not known"


class Kai(BaseDialect):
    """KAI's dialect: a part of each of n distinct cards, for one container."""

    name = "kai"
    title = "KAI"
    scheduler_names = ("kai-scheduler",)
    asking_annotations = (FRACTION, MEMORY, DEVICES, CONTAINER)
    kept_marks = (GROUP, f"{GROUPS}*")
    carried_by = (GPU, FRACTION, MEMORY)
    served_by_itself = True

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """Return True if an annotation requests a part of a GPU, or the pod is a reservation pod.

        The annotations' names are generic: a pod of Kubernetes' default scheduler is KAI's only
        with one of KAI's labels.
        """
        if is_reservation(words.manifest):
            return words.asks_for((GPU,))
        if not any(words.annotations.get(name) for name in (FRACTION, MEMORY)):
            return False
        labelled = QUEUE in words.labels or bool(groups_of(words.manifest))
        return labelled or words.manifest.spec.scheduler_name not in _UNLABELLED

    def yields(self, words: PodWords) -> bool:
        """Return True unless the pod is a reservation pod: next to another system's requests KAI's
        annotations are ignored, as their names are generic."""
        return not is_reservation(words.manifest)

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the request: a part of each card, or a reservation pod's whole card."""
        if is_reservation(words.manifest):
            layout = per_container(words.slots, asks_of(words, (GPU,), _whole))
            return build(words, self.name, layout)
        notes: list[str] = []
        try:
            ask, index = _ask(words.annotations), _container(words.slots, words.annotations)
        except BadInputError as error:
            groups = groups_of(words.manifest)
            if not (words.manifest.spec.node_name and groups):
                raise
            # KAI gave it parts of so many cards; their size is unknown.
            ask, index = whole_cards(len(groups)), _container(words.slots, {})
            notes.append(str(error))
        asks: list[GpuRequest | None] = [None] * len(words.slots)
        asks[index] = ask
        shape = Shape(isolation="mps") if words.annotations.get(MPS) == "true" else None
        layout = per_container(words.slots, asks)
        return build(words, self.name, layout, shape=shape, warnings=notes)

    def delivered_by(self, words: PodWords) -> tuple[str, ...]:
        """Return the name of the annotation that requests GPUs; () for a reservation pod. No
        kubelet advertises it, so only an agent that delivers by name serves such a pod."""
        return () if is_reservation(words.manifest) else (_asking_by(words.annotations),)

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return no annotations, only the environment variables that KAI's ConfigMap gives a
        container."""
        env = visible(request, placement)
        asked = {c.name: c.asked for c in request.containers if c.asked is not None}
        for name, values in env.items():
            memory = asked[name].memory
            if memory.kind == "millionths":
                values["GPU_PORTION"] = f"{Decimal(memory.value) / _MILLIONTHS:f}"
        return PodAnnotations(env=env)

    def on_node(
        self, pod: PodManifest, request: PodRequest, node: Node, settings: DialectSettings
    ) -> tuple[PodRequest, str]:
        """Return the request and "". A reservation pod whose group has pods on the node, all on
        known cards, requests no GPU; a pod of which it is unknown on which card its part is
        requests whole cards."""
        if pod.spec.node_name != node.name or marked(pod) or not request.shape.gpu_requests:
            return request, ""
        names, kept = _names(node), _kept_whole(node)
        if is_reservation(pod):
            group = _one(groups_of(pod))
            in_use = any(group in groups for groups in names.sharing)
            return (_asking(request) if in_use and group not in kept else request), ""
        groups, asked = groups_of(pod), request.shape.gpu_requests[0]
        left = tuple(group for group in groups if group not in kept)
        if _known(groups, node) and len(groups) == asked.count:
            return _asking(request, replace(asked, count=len(left))), ""
        if (count := max(asked.count, len(groups)) - (len(groups) - len(left))) > 0:
            return _asking(request, whole_cards(count)), ""
        return _asking(request), ""

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement that the reservation pods of the pod's groups give, or a reservation
        pod's own annotation; None if neither gives one."""
        gpu_request = request.shape.gpu_requests[0]
        if is_reservation(pod):
            uuids = [_reserved_card(pod)]
        else:
            called, kept = _names(node).cards, _kept_whole(node)
            groups = groups_of(pod)
            if not _known(groups, node):
                return None
            uuids = [called[GROUPS + group] for group in groups if group not in kept]
        cards = {gpu.uuid: gpu for gpu in (find(node, uuid) for uuid in uuids) if gpu is not None}
        cards = {uuid: gpu for uuid, gpu in cards.items() if uuid in uuids}
        if len(cards) != len(uuids) or len(cards) != gpu_request.count:
            return None
        shares = [share_on(0, gpu_request, gpu) for gpu in cards.values()]
        return placement_of(request, node, sorted(shares, key=lambda share: share.gpu))

    def weigh(
        self, pod: PodManifest, request: PodRequest, node: Node, bound_with: str = ""
    ) -> ChargedPlacement | None:
        """Return the charge, or None, as `BaseDialect` does; for a reservation pod also why it
        holds its card."""
        charged = super().weigh(pod, request, node, bound_with)
        if charged is None or not request.shape.gpu_requests:
            return charged
        if is_reservation(pod) and groups_of(pod):
            kept = _one(groups_of(pod)) in _kept_whole(node)
            return charged._replace(assumed=_KEPT_FOR_ALL if kept else _KEPT_FOR_NONE)
        return charged

    def cards_named_by(self, pod: PodManifest) -> str:
        """Return the source of the pod's card: its group's reservation pod, or a reservation pod's
        own annotation; "" if there is none."""
        if is_reservation(pod):
            return RESERVED_CARD if _reserved_card(pod) else ""
        return "its reservation pod" if groups_of(pod) else ""

    def wrong_marks(self, pod: PodManifest, request: PodRequest, node: Node) -> WrongMark | None:
        """Return what is wrong: a reservation pod without a group, or annotations that contradict
        each other or cannot be read; None if nothing."""
        if is_reservation(pod):
            lost = f"it reserves a card for KAI and has no label {GROUP}: no pod can share it"
            return None if groups_of(pod) else WrongMark("reservation-without-group", lost)
        annotations = pod.metadata.annotations or {}
        try:
            _ask(annotations)
        except BadInputError as error:
            both = bool(annotations.get(FRACTION) and annotations.get(MEMORY))
            return WrongMark("amounts-contradict" if both else "mark-unreadable", str(error))
        return None


def groups_of(pod: PodManifest) -> tuple[str, ...]:
    """Return the names of KAI's groups of which the pod is a member, sorted; a group shares one
    card."""
    labels = pod.metadata.labels
    if not labels:
        return ()
    several = sorted(n.removeprefix(GROUPS) for n in labels if n.startswith(GROUPS))
    one = labels.get(GROUP, "")
    return tuple(several) or ((one,) if one else ())


def is_reservation(pod: PodManifest) -> bool:
    """Return True for pods by which KAI reserves a card for the pods that share it."""
    return pod.metadata.namespace == RESERVATIONS


def card_names(pods: Iterable[PodManifest]) -> CardNames:
    """Return the cards of KAI's groups on one node, as these pods of the node name them; a group
    whose reservation pods name several cards gets no card."""
    cards: dict[str, set[str]] = {}
    sharing: set[tuple[str, ...]] = set()
    found: list[tuple[str, str]] = []
    for pod in pods:
        groups = groups_of(pod)
        if not groups:
            continue
        if not is_reservation(pod):
            annotations = pod.metadata.annotations or {}
            if annotations.get(FRACTION) or annotations.get(MEMORY):
                sharing.add(groups)
        elif uuid := _reserved_card(pod):
            cards.setdefault(_one(groups), set()).add(uuid)
            found.append((pod.metadata.creation_timestamp or "", uuid))
    uuids = tuple(dict.fromkeys(uuid for _, uuid in sorted(found)))
    named = {GROUPS + group: min(uuids) for group, uuids in cards.items() if len(uuids) == 1}
    several = {group: tuple(sorted(uuids)) for group, uuids in cards.items() if len(uuids) > 1}
    return CardNames(named, frozenset(sharing), several, uuids)


def _known(groups: Sequence[str], node: Node) -> bool:
    """Return True if there are groups, and each has a card of its own that the node shows."""
    called = _names(node).cards
    uuids = {called.get(GROUPS + group, "") for group in groups}
    return 0 < len(uuids) == len(groups) and uuids <= {gpu.uuid for gpu in node.gpus if gpu.uuid}


def _kept_whole(node: Node) -> frozenset[str]:
    """Return the groups whose reservation pods are charged their cards while the other pods of
    these groups are charged nothing.

    These are all groups of any pod that has a group whose card is unknown, or two groups of one
    card: the pod may be on any of the cards reserved for them.
    """
    names = _names(node)
    unknown = {group for groups in names.sharing if not _known(groups, node) for group in groups}
    if not unknown:
        return frozenset()
    shown = {gpu.uuid for gpu in node.gpus if gpu.uuid}
    return frozenset(
        group
        for group in unknown
        if shown & {names.cards.get(GROUPS + group, ""), *names.reserved.get(group, ())}
    )


def _asking(request: PodRequest, *asks: GpuRequest) -> PodRequest:
    """Return the request with these GPU requests instead of its own; requests for 0 cards are
    dropped."""
    kept = tuple(each for each in asks if each.count)
    return replace(request, shape=replace(request.shape, gpu_requests=kept))


def _names(node: Node) -> CardNames:
    return CardNames() if node.called is UNSET else node.called


def _one(groups: tuple[str, ...]) -> str:
    return groups[0] if len(groups) == 1 else ""


def _reserved_card(pod: PodManifest) -> str:
    text = (pod.metadata.annotations or {}).get(RESERVED_CARD, "").strip()
    return text if len(text) <= MOST_LETTERS else ""


def _whole(slot: ContainerSlot) -> GpuRequest | None:
    count = amount(slot, GPU)
    return whole_cards(count) if count else None


def _asking_by(annotations: Mapping[str, str]) -> str:
    return FRACTION if annotations.get(FRACTION) else MEMORY


def _ask(annotations: Mapping[str, str]) -> GpuRequest:
    """Return the GPU request in the annotations: a part of each of one or more cards."""
    if annotations.get(FRACTION) and annotations.get(MEMORY):
        raise BadInputError(
            f"metadata.annotations[{MEMORY}]", f"contradicts {FRACTION}; keep one of the two"
        )
    name = _asking_by(annotations)
    text = annotations[name].strip()
    count = _whole_number(annotations, DEVICES, 1, MOST_GPUS) if annotations.get(DEVICES) else 1
    if name == MEMORY and annotations.get(MPS) == "true":
        raise BadInputError(
            f"metadata.annotations[{MPS}]", f"is allowed only with {FRACTION}; leave it out"
        )
    if name == MEMORY:
        mib = _whole_number(annotations, MEMORY, 1, MOST_GPU_MIB)
        return GpuRequest(count, GpuMemoryRequest("mib", mib))
    fraction = Decimal(text) if _NUMBER.fullmatch(text) else Decimal(0)
    if not 0 < fraction < 1:
        raise BadInputError(
            f"metadata.annotations[{FRACTION}]",
            f"{text[:40]!r} is not a part of a GPU; write a number between 0 and 1, such as 0.5",
        )
    millionths = int((fraction * _MILLIONTHS).to_integral_value(rounding="ROUND_CEILING"))
    return GpuRequest(count, GpuMemoryRequest("millionths", millionths))


def _whole_number(annotations: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = annotations[name].strip()
    number = int(text) if re.fullmatch(r"[0-9]{1,12}", text, re.ASCII) else -1
    if not least <= number <= most:
        raise BadInputError(
            f"metadata.annotations[{name}]",
            f"{text[:40]!r} is not a whole number from {least} to {most:,}",
        )
    return number


def _container(slots: list[ContainerSlot], annotations: Mapping[str, str]) -> int:
    """Return the index of the container that gets the cards: the one that the annotation names,
    else the first main container. `BadInputError` if the pod has no such container."""
    wanted = annotations.get(CONTAINER, "")
    for index, slot in enumerate(slots):
        if slot.container.name == wanted if wanted else slot.role == "main":
            return index
    raise BadInputError(
        f"metadata.annotations[{CONTAINER}]", f"the pod has no container {wanted[:40]!r}"
    )
