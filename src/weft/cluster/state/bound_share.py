"""Computes which GPU shares a bound pod is charged: those that its marks (annotations and labels)
name, or without marks the most that it may hold.

A pod whose marks name its GPUs is charged these, as far as the marks are believed
(`dialects/evidence.py`). Other pods were placed by a scheduler that recorded nothing, and a GPU
that is not charged to them would be assigned twice:
- whole GPUs (nvidia.com/gpu): charged as GPUs without pods, the last of the node first, as Weft
  itself fills nodes from the first; if too few are idle, then also as the emptiest other GPUs,
  which then hold more than they have. It is unknown which GPUs the device plugin chose, so keep
  such pods and shared ones on different nodes. GPUs that the marks of the pod's system name
  incompletely, or beyond its request, are charged in any case.
- a share: charged on every GPU of the node, as it may be on any of them. A share of no memory and
  no cores is charged on none, as a pod that requests nothing would keep whole GPUs from others.
- a pod whose devices NVIDIA's plugin chose, with time slicing, MPS or neither: charged as the
  node's agent reports it from the kubelet (`dialects/nvidia_plugin.py`); as above if it reports
  nothing.
- a pod whose resources contradict each other: charged as each system that it names reads its part
  of them, or if no system can, as many whole GPUs as it names units.
- a pod that requests no GPU but carries a delivery record: charged as the record says, if the
  node's agent may be an older one that follows it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from weft.cluster.state.pod_reader import plain_shape, read_there
from weft.core.explain.account_sentences import (
    MARKED_LATE,
    changed_in_words,
    contradictory_in_words,
    edited_in_words,
    lost_in_words,
    mistold_in_words,
    moved_in_words,
    undue_in_words,
    unreadable_in_words,
)
from weft.dialects import registry
from weft.dialects.catalog import NONE, is_gpu_resource, is_kept_mark
from weft.dialects.delivery import why_not_due
from weft.dialects.dialect import DialectSettings
from weft.dialects.evidence import ChargedPlacement, agreed, marked, without_marks
from weft.dialects.nvidia_plugin import anywhere, devices_held, given_shares
from weft.dialects.resources import slots, whole_cards
from weft.dialects.shares import (
    SaidByPod,
    asked_on,
    encode,
    placement_of,
    said_by,
    said_in,
    saying,
    share_on,
)
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.model import BadInputError, Gpu, Node, Placement, PodRequest, Shape, Share
from weft.model.agent_offer import decode_offer
from weft.model.annotations import AGENT, DELIVERY, PLACEMENT, PLACEMENT_COPY
from weft.model.bad_input import BadInputKind
from weft.model.ceilings import MOST_GPUS
from weft.model.delivery import DeliveryRecord, decode_delivery

Fullness = tuple[int, int, int, int]
HowFull = Callable[[Gpu], Fullness]
_IDLE: Fullness = (0, 0, 0, 0)
UNREADABLE = "PodUnreadable"
DOUBTS = (
    "UnitMismatch",
    "PlacementDoubted",
    "PlacementMoved",
    "GPULost",
    "DeliveryDoubted",
    "PluginGPUsDoubted",
    UNREADABLE,
)
"""Reasons of the Kubernetes events that report a `Doubt`."""


class Doubt(NamedTuple):
    """A problem with a bound pod's GPUs that is reported to people: an event's reason and text.

    `unsure`: the pod may hold less than it is charged, so no other pod is evicted because of its
    charge. `kind` is the kind of bad input as which the problem is counted; None if it is not.
    """

    reason: str
    text: str
    unsure: bool = True
    kind: BadInputKind | None = None


class BoundShare(NamedTuple):
    """The charge for a pod. `why` says what was assumed if its marks (annotations and labels) do
    not name its GPUs, else "".

    `moves`: the charge may change with what other pods on the node hold. `doubts`: problems with
    its marks. `told` describes the charge if it is what the node's agent reports, else ""; no other
    pod is evicted for such a charge. `fault` is the exception if reading failed by an error in
    Weft.
    """

    placement: Placement
    why: str = ""
    moves: bool = False
    doubts: tuple[Doubt, ...] = ()
    told: str = ""
    fault: Exception | None = None


_MARKED_LATE = Doubt("PlacementDoubted", MARKED_LATE)


_NO_WORDS = registry.KeptWords({}, {})


class AsSeenFirst(NamedTuple):
    """Facts about a bound pod from when it was first seen: later edits, and labels or marks that
    claim more than it requests, change nothing.

    `bound_with` is the value of Weft's annotation, "" if no two of Weft's annotations agree on one.
    `is_marked`: an annotation of Weft's named this pod and its node. `kept` are its labels and
    annotations that request GPUs, or in which other systems name its GPUs. `said` is what it stated
    about itself; None until it was charged.
    """

    bound_with: str
    kept: registry.KeptWords
    is_marked: bool
    said: SaidByPod | None = None


class BoundReading(NamedTuple):
    """A bound pod as it is now, with the facts from when it was first seen, by which it is
    charged."""

    pod: Pod
    first: AsSeenFirst

    @property
    def counted(self) -> Pod:
        """The pod with the labels and annotations that decide its charge as they were when it was
        first seen."""
        asking = not self.first.bound_with
        return registry.with_kept(self.pod, self.first.kept, asking=asking)

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of annotations and labels in which other systems name the pod's GPUs, and that
        changed since it was first seen."""
        now, then = registry.kept_of(self.pod), self.first.kept
        return tuple(
            sorted(
                name
                for new, old in zip(now, then, strict=True)
                for name in new.keys() | old.keys()
                if new.get(name) != old.get(name) and is_kept_mark(name)
            )
        )

    @property
    def is_marked_late(self) -> bool:
        """True if all of Weft's annotations were added to the pod after it was first seen."""
        first = self.first
        return not first.bound_with and not first.is_marked and marked(self.pod)


def seen_first(pod: Pod) -> AsSeenFirst:
    """Return the facts about a bound pod that count from now on, regardless of later edits."""
    if bound_with := agreed(pod):
        kept = registry.kept_of(pod, asking=False)
        return AsSeenFirst(bound_with, kept, is_marked=True, said=said_in(bound_with))
    return AsSeenFirst("", registry.kept_of(pod), marked(pod))


def seen_as_decided(placement: Placement) -> AsSeenFirst:
    """Return the facts of `seen_first` for a pod that the API shows bound exactly as decided,
    without labels or annotations to keep."""
    return AsSeenFirst(encode(placement), _NO_WORDS, is_marked=True, said=said_by(placement))


def account(
    reading: BoundReading,
    node: Node | None,
    settings: DialectSettings,
    how_full: HowFull,
    shown: KubeNode | None,
) -> BoundShare:
    """Return the charge of a bound pod on its node, without GPUs while the node is unknown (None).
    Never raises.

    `shown` is the node as the API shows it; `how_full` returns how full a GPU is without the pod.
    """
    pod, first = reading
    try:
        if node is None:
            share = without_node(reading.counted, settings)
        else:
            charge = by_late_marks if reading.is_marked_late else held_by
            share = charge(reading.counted, node, settings, how_full, first.bound_with)
            share = with_record(share, pod, node, settings, shown)
    except Exception as error:
        share = unreadable(pod, node or Node(pod.spec.node_name), settings, fault_in_words(error))
        share = share._replace(fault=error)
    if first.said is not None:
        share = share._replace(placement=saying(share.placement, first.said))
    doubts = list(share.doubts)
    if not first.bound_with and as_bound(pod):
        doubts.append(_MARKED_LATE)
    if changed := reading.changed:
        doubts.append(Doubt("PlacementDoubted", changed_in_words(changed)))
    return share._replace(doubts=tuple(doubts))


def fault_in_words(error: Exception) -> str:
    """Describe an error in Weft in a few words."""
    return f"{type(error).__name__}: {error}"[:300]


class GuessedUse:
    """Counts how full a node's GPUs are while GPUs are guessed for pods that do not name theirs. A
    MIG instance counts on its card."""

    def __init__(self, node: Node) -> None:
        self._card = {g.index: g.index if g.parent is None else g.parent for g in node.gpus}
        self._guesses: Counter[int] = Counter()
        self._memory_mib: Counter[int] = Counter()
        self._milli: Counter[int] = Counter()
        self._pods: Counter[int] = Counter()

    def known(self, shares: Iterable[Share]) -> None:
        """Count a pod that is known to hold these shares."""
        for share in shares:
            card = self._card.get(share.gpu, share.gpu)
            self._memory_mib[card] += share.memory_mib
            self._milli[card] += share.milli
            self._pods[card] += 1

    def guessed(self, shares: Iterable[Share]) -> None:
        """Count a pod that is assumed to hold these shares."""
        self._guesses.update(self._card.get(share.gpu, share.gpu) for share in shares)

    def how_full(self, gpu: Gpu) -> Fullness:
        """Return a sort key, all 0 for an idle GPU: assumed pods, MiB, thousandths of cores, and
        known pods. Assumed pods come first, so that two pods with whole GPUs share one only if no
        other is left."""
        card = gpu.index
        return self._guesses[card], self._memory_mib[card], self._milli[card], self._pods[card]


def placed_by_weft(pod: Pod) -> bool:
    """Return True if an annotation is Weft's placement of this very pod on its node."""
    return marked(pod)


def as_bound(pod: Pod) -> str:
    """Return the value of Weft's annotation if it is unchanged since the binding, that is, equal to
    its copy; else ""."""
    marks = pod.metadata.annotations or {}
    text = marks.get(PLACEMENT, "")
    return text if text == marks.get(PLACEMENT_COPY) and placed_by_weft(pod) else ""


def held_by(
    pod: Pod, node: Node, settings: DialectSettings, how_full: HowFull, bound_with: str = ""
) -> BoundShare:
    """Return the charge of this bound pod on its node; `how_full` returns how full a GPU is without
    the pod.

    `bound_with` is the value of Weft's annotation when the pod was first seen.
    """
    try:
        request, mismatch, why = read_there(pod, node, settings)
    except BadInputError as error:
        if not agreed(pod, bound_with):
            return contradicting(pod, node, settings, how_full, str(error))
        request, mismatch, why = _plain_request(pod, settings), "", str(error)
    doubts = [Doubt("UnitMismatch", mismatch)] if mismatch else []
    system = registry.dialect(request.dialect)
    if marks := system.wrong_marks(pod, request, node):
        text = contradictory_in_words(marks.text)
        doubts.append(Doubt("PlacementDoubted", text, kind=marks.kind))
    if not bound_with and (by_plugin := _by_plugin(pod, request, node, how_full)) is not None:
        return by_plugin._replace(doubts=(*doubts, *by_plugin.doubts))
    known = system.weigh(pod, request, node, bound_with)
    if known is None:
        share = guessed(request, node, how_full, system.perhaps_on(pod, node))
        return share._replace(doubts=(*doubts, *_unread(why, "what its spec requests")))
    doubts += [*_doubts(known, node), *_unread(why, "what it was bound with")]
    return BoundShare(known.placement, known.assumed, doubts=tuple(doubts))


def _by_plugin(pod: Pod, request: PodRequest, node: Node, how_full: HowFull) -> BoundShare | None:
    """Charge a pod that Weft did not place and that has devices of NVIDIA's plugin: what the node's
    agent reports, else the most that it may hold. None for other pods, and for pods that request
    only whole GPUs or MIG instances if the agent reports nothing."""
    devices = 0 if marked(pod) else devices_held(pod, request)
    if not devices:
        return None
    given = given_shares(pod, devices, node)
    if given.shares:
        return BoundShare(placement_of(request, node, given.shares), told=given.told)
    asked = anywhere(pod, node)
    if asked is None and not given.problem:
        return None
    if asked is not None:
        asks = (*request.shape.gpu_requests, asked)
        shape = replace(request.shape, gpu_requests=asks)
        request = replace(request, shape=shape)
    doubts = (Doubt("PluginGPUsDoubted", mistold_in_words(given.problem)),) if given.problem else ()
    if not request.shape.gpu_requests:
        return BoundShare(placement_of(request, node, ()), doubts=doubts)
    return guessed(request, node, how_full)._replace(doubts=doubts)


def by_late_marks(
    pod: Pod, node: Node, settings: DialectSettings, how_full: HowFull, bound_with: str = ""
) -> BoundShare:
    """Charge a bound pod that had none of Weft's annotations when first seen, and has some now.

    The annotations replace what was assumed, unless they name more than that: the pod's owner may
    have written them, to take GPUs from others.
    """
    said = held_by(pod, node, settings, how_full, bound_with)
    assumed = held_by(without_marks(pod), node, settings, how_full, bound_with)
    return said if _within(said.placement.shares, assumed.placement.shares) else assumed


def _within(said: Sequence[Share], assumed: Sequence[Share]) -> bool:
    """Return True if `said` charges neither any single GPU nor all GPUs together more than
    `assumed`."""
    for amount in (attrgetter("memory_mib"), attrgetter("milli")):
        new, old = [amount(share) for share in said], [amount(share) for share in assumed]
        if sum(new) > sum(old) or max(new, default=0) > max(old, default=0):
            return False
    return True


def _unread(why: str, charged: str) -> Iterator[Doubt]:
    if why:
        yield Doubt(UNREADABLE, unreadable_in_words(why, charged), unsure=False)


def with_record(
    held: BoundShare, pod: Pod, node: Node, settings: DialectSettings, shown: KubeNode | None
) -> BoundShare:
    """Return the charge, with a doubt added if the pod's delivery record gives it more than it
    requests.

    `shown` is the node as the API shows it, where its agent states whether it follows such records;
    if the agent may follow them, a pod without GPUs is charged those in the record. If the charge
    is in doubt or assumed already, nothing is added.
    """
    text = (pod.metadata.annotations or {}).get(DELIVERY)
    if text is None or held.doubts or held.why:
        return held
    try:
        record = decode_delivery(text)
    except ValueError:
        return held  # no agent delivers GPUs by such a record
    if (record.pod, record.node) != (pod.metadata.uid, node.name):
        return held  # nor by one for another pod or node
    problem = why_not_due(record, pod, node, settings)
    if not problem:
        return held
    placement, charged = held.placement, not held.placement.shares and _believes_records(shown)
    if charged:
        placement = replace(placement, shares=tuple(_named(record, node)))
    doubt = Doubt("DeliveryDoubted", undue_in_words(problem, charged=charged))
    return held._replace(placement=placement, doubts=(doubt,))


def _named(record: DeliveryRecord, node: Node) -> Iterator[Share]:
    """Yield the shares of the node's GPUs that a record names."""
    gpus = {gpu.index: gpu for gpu in node.gpus}
    for card in record.cards:
        if (gpu := gpus.get(card.gpu)) is not None:
            memory_mib, milli = min(card.memory_mib, gpu.memory_mib), min(card.milli, gpu.milli)
            yield Share(0, gpu.index, memory_mib, milli, gpu.uuid)


def _believes_records(shown: KubeNode | None) -> bool:
    """Return True if the node has an agent that does not compare records with what pods request."""
    text = (shown.metadata.annotations or {}).get(AGENT) if shown is not None else None
    if text is None:
        return False
    try:
        return not decode_offer(text).compares_records
    except ValueError:
        return True


def _doubts(known: ChargedPlacement, node: Node) -> Iterator[Doubt]:
    if known.edited:
        yield Doubt("PlacementDoubted", edited_in_words(known.edited))
    if known.moved:
        yield Doubt("PlacementMoved", moved_in_words(known.moved))
    if known.lost:
        yield Doubt("GPULost", lost_in_words(known.lost, node.name), unsure=False)


def without_node(pod: Pod, settings: DialectSettings) -> BoundShare:
    """Charge everything that the pod requests except GPUs, while its node is unknown."""
    node = Node(pod.spec.node_name)
    try:
        request = read_there(pod, node, settings).request
    except BadInputError:
        request = _plain_request(pod, settings)
    return BoundShare(placement_of(request, node, ()))


def guessed(
    request: PodRequest, node: Node, how_full: HowFull, perhaps_on: Collection[int] = ()
) -> BoundShare:
    """Return the charge of a pod or claim whose GPUs on its node are unknown.

    `perhaps_on` are GPUs that the pod's annotations and labels name incompletely: if the pod
    requests whole GPUs, it has at least these.
    """
    cards = [gpu for gpu in node.gpus if gpu.parent is None]
    named = [gpu for gpu in cards if gpu.index in perhaps_on]
    left = [gpu for gpu in reversed(cards) if gpu.index not in perhaps_on]
    left.sort(key=how_full)
    shares: list[Share] = []
    lacking = 0
    shared = said = False
    for index, gpu_request in enumerate(request.shape.gpu_requests):
        if gpu_request.whole:
            further = max(0, gpu_request.count - len(named))
            chosen, left = [*named, *left[:further]], left[further:]
            said, named = said or bool(named), []
            lacking += max(0, gpu_request.count - len(chosen))
            shared = shared or any(how_full(gpu) != _IDLE for gpu in chosen)
            shares += [share_on(index, gpu_request, gpu) for gpu in chosen]
        else:
            anywhere = [asked_on(index, gpu_request, gpu) for gpu in cards]
            shares += [share for share in anywhere if share.memory_mib or share.milli]
    moves = any(gpu_request.whole for gpu_request in request.shape.gpu_requests)
    why = "does not name its GPUs: "
    if lacking:
        why += f"its node has {lacking} GPUs fewer than it requests"
    elif said:
        why += "Weft assumes those that its annotations name in part, and the last idle ones"
    elif shared:
        why += "too few GPUs of its node are idle: it is charged on GPUs that other pods hold, too"
    elif not shares:
        why += "it requests no GPU memory and no cores, so nothing is charged"
    elif moves:
        why += "the last idle cards of its node are charged to it"
    else:
        why += "its share is charged on every card of its node"
    return BoundShare(placement_of(request, node, shares), why, moves)


def contradicting(
    pod: Pod, node: Node, settings: DialectSettings, how_full: HowFull, error: str
) -> BoundShare:
    """Return the charge of a bound pod whose resources contradict each other: the most that they
    can mean."""
    request = _plain_request(pod, settings)
    each, whole = registry.possible_requests(pod, settings)
    requests = [gpu_request for one in each for gpu_request in one.shape.gpu_requests]
    if whole:
        requests.append(whole_cards(min(whole, MOST_GPUS)))
    asked = replace(request, shape=replace(request.shape, gpu_requests=tuple(requests)))
    share = guessed(asked, node, how_full)
    why = f"contradicts itself ({error}): the most that it can mean is charged"
    return BoundShare(share.placement, why, share.moves)


def unreadable(pod: Pod, node: Node, settings: DialectSettings, error: str) -> BoundShare:
    """Return the charge of a bound pod if reading it raises an error in Weft: all GPUs that it may
    have. Never raises."""
    try:
        request, gpus = _plain_request(pod, settings), _names_gpus(pod)
    except Exception:  # its CPU and memory are unknown too
        request, gpus = PodRequest(pod.metadata.uid, pod.metadata.name, Shape()), True
    if not gpus:
        return BoundShare(placement_of(request, node, ()), f"cannot be read ({error})")
    shares = [
        Share(0, gpu.index, gpu.memory_mib, gpu.milli, gpu.uuid)
        for gpu in node.gpus
        if gpu.parent is None
    ]
    why = f"cannot be read ({error}): all GPUs of its node are charged to it"
    return BoundShare(placement_of(request, node, shares), why)


def _plain_request(pod: Pod, settings: DialectSettings) -> PodRequest:
    """Return the pod's request without GPUs."""
    shape = plain_shape(pod, settings)
    return PodRequest(pod.metadata.uid, pod.metadata.name, shape, dialect=NONE.name)


def _names_gpus(pod: Pod) -> bool:
    return any(
        is_gpu_resource(name)
        for slot in slots(pod)
        for asked in (slot.container.resources.limits, slot.container.resources.requests)
        for name in asked or ()
    )
