"""Decides the charge of a bound pod from its annotations and labels, which may have been edited.

Anyone who may change a pod may change its annotations, and the ledger is rebuilt from them. So no
single annotation makes a charge smaller: what two of the pod's *marks* (texts that give its GPUs)
agree on stays its charge.

    marks of a placement           `weft.dev/placement`, its copy, the delivery record, the value
                                   that the running process first saw the pod bound with, the
                                   system's own marks
    two of Weft's marks agree      what they say is charged; a third that differs is only reported
    none agree                     on each GPU the largest amount in any mark is charged, so that an
                                   edit frees nothing
    the system's own marks differ  what they say is charged too: the system's agent follows them
    less than the spec asks        what the spec asks is charged, ignoring labels if two marks agree
    fewer GPUs than the spec asks  the request is charged on every card of the node
    a GPU that the node lacks      stays charged until it returns, if two of Weft's marks name it

All marks are read from API objects, except the value that the process first saw, which takes
precedence.

If a system's agent picks the card when the container starts (`BaseDialect.agent_annotation`), its
annotation counts, whichever card Weft chose.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from weft.dialects.shares import asked_on, decode, placement_of, subject_of
from weft.model import GpuRequest, Node, Placement, PodManifest, PodRequest, Share
from weft.model.annotations import DELIVERY, PLACEMENT, PLACEMENT_COPY
from weft.model.delivery import decode_delivery

BINDING = "its Binding"
HeldShares = dict[tuple[int, int], Share]
"""Shares, by the indexes of the GPU request and the GPU."""
AnyPod = TypeVar("AnyPod", bound=PodManifest)
Records = dict[str, tuple[Share, ...] | None]
"""The shares in each of Weft's annotations, by name; None for one that cannot be read."""


class ChargedPlacement(NamedTuple):
    """The placement for which a bound pod is charged, as its annotations and labels give it.

    Texts are sentences, "" for nothing. `edited`: what is wrong with the annotations. `moved`: the
    GPUs that the system's agent gave the pod instead of Weft's. `lost`: GPUs that the pod has and
    the node does not show. `anywhere`: a part is charged on every card of the node, as its card is
    unknown. `assumed`: what was assumed in addition to the system's own annotations.
    """

    placement: Placement
    edited: str = ""
    moved: str = ""
    lost: tuple[int, ...] = ()
    anywhere: bool = False
    assumed: str = ""


def agreed(pod: PodManifest, bound_with: str = "") -> str:
    """Return the value of `weft.dev/placement` that two of this bound pod's annotations agree on;
    "" if none do.

    `bound_with` is the value that the running process first saw the pod bound with; if known, it is
    returned.
    """
    if bound_with:
        return bound_with
    marks, here = pod.metadata.annotations or {}, (pod.metadata.uid, pod.spec.node_name)
    first, copy = marks.get(PLACEMENT, ""), marks.get(PLACEMENT_COPY, "")
    if first == copy:
        whole = here[1] and subject_of(first) == here and decode(first) is not None
        return first if whole else ""
    uid, node = here
    if not node or not (amounts := _delivered(marks.get(DELIVERY, ""), uid, node)):
        return ""
    own = [text for text in (first, copy) if subject_of(text) == here]
    return next((text for text in own if _by_gpu(decode(text) or ()) == amounts), "")


def marked(pod: PodManifest) -> bool:
    """Return True if one of Weft's annotations gives a placement of this very pod on this node."""
    marks = pod.metadata.annotations or {}
    bound_to = (pod.metadata.uid, pod.spec.node_name)
    return bool(pod.spec.node_name) and any(
        subject_of(marks.get(name, "")) == bound_to for name in (PLACEMENT, PLACEMENT_COPY)
    )


def without_marks(pod: AnyPod) -> AnyPod:
    """Return the pod without the annotations that Weft writes with a placement."""
    marks = pod.metadata.annotations or {}
    kept = {n: text for n, text in marks.items() if n not in (PLACEMENT, PLACEMENT_COPY, DELIVERY)}
    return replace(pod, metadata=replace(pod.metadata, annotations=kept))


_Amounts = dict[int, tuple[int, int]]
"""MiB of memory and thousandths of cores, by the GPU's index."""


def _delivered(text: str, uid: str, node: str) -> _Amounts:
    """Return the amounts that a delivery record charges this pod on this node; {} if the record is
    another pod's or node's, or cannot be read."""
    try:
        record = decode_delivery(text)
    except ValueError:
        return {}
    if (record.pod, record.node) != (uid, node):
        return {}
    return {card.gpu: (card.memory_mib, card.milli) for card in record.cards}


def _by_gpu(shares: Sequence[Share]) -> _Amounts:
    amounts: _Amounts = {}
    for share in shares:
        memory_mib, milli = amounts.get(share.gpu, (0, 0))
        amounts[share.gpu] = memory_mib + share.memory_mib, milli + share.milli
    return amounts


def records(pod: PodManifest, request: PodRequest, node: Node, bound_with: str = "") -> Records:
    """Return the shares in each of Weft's annotations of this pod on this node; {} if the pod has
    no such annotation.

    An annotation of another pod or node counts as damaged. `bound_with` is the value that two
    annotations agree on.
    """
    annotations = pod.metadata.annotations or {}
    texts = {name: annotations[name] for name in (PLACEMENT, PLACEMENT_COPY) if name in annotations}
    if bound_with and list(texts.values()) != [bound_with, bound_with]:
        texts[BINDING] = bound_with
    here = (request.uid, node.name)
    asking = None if bound_with else request
    return {
        name: decode(text, asking) if subject_of(text) == here else None
        for name, text in texts.items()
    }


def anothers(pod: PodManifest, request: PodRequest, node: Node) -> bool:
    """Return True if the pod is bound to another node, or if Weft's annotations belong to
    another pod or name another node: then all of the pod's annotations count as copied, those of
    its system too."""
    if pod.spec.node_name and pod.spec.node_name != node.name:
        return True
    annotations = pod.metadata.annotations or {}
    texts = [annotations[name] for name in (PLACEMENT, PLACEMENT_COPY) if name in annotations]
    here = (request.uid, node.name)
    return bool(texts) and all(subject_of(text) not in (None, here) for text in texts)


def weigh(
    request: PodRequest, node: Node, recorded: Records, own: Placement | None, system: str
) -> ChargedPlacement:
    """Return the charge that follows from the shares in Weft's annotations (`recorded`) and in
    those of the pod's system (`own`).

    If two of Weft's annotations agree (`recorded` has `BINDING`, or both annotations are equal),
    Weft's other annotations are ignored.
    """
    faults = _contradictions(recorded, own, system)
    sure = BINDING in recorded or (
        PLACEMENT_COPY in recorded and set(recorded.values()) == {recorded[PLACEMENT_COPY]}
    )
    believed = {BINDING: recorded[BINDING]} if BINDING in recorded else recorded
    voices = {name: shares for name, shares in believed.items() if shares is not None}
    if own is not None:
        voices[f"{system}'s own annotations"] = own.shares
    present = {gpu.index for gpu in node.gpus}
    held: HeldShares = {}
    for name, shares in voices.items():
        for share in shares:
            if sure or share.gpu in present:
                _raise(held, share)
            else:
                faults.append(f"{name} names GPU {share.gpu}, which its node does not show")
    anywhere = False
    for index, gpu_request in enumerate(request.shape.gpu_requests):
        claimed = [share for share in held.values() if share.gpu_request == index]
        faults += _less(index, gpu_request, node, held, grown=sure)
        if _too_few(gpu_request, claimed):
            anywhere = True
            faults.append(
                f"{_amounts(claimed)} is less than the pod asks for: the rest may be on any card"
            )
            for gpu in node.gpus:
                if gpu.parent is None:
                    _raise(held, asked_on(index, gpu_request, gpu))
    lost = tuple(sorted({gpu for _, gpu in held if gpu not in present}))
    placement = placement_of(request, node, tuple(held.values()))
    return ChargedPlacement(placement, "; ".join(faults), lost=lost, anywhere=anywhere)


def moved(request: PodRequest, recorded: Records, own: Placement, mark: str) -> str:
    """Return a sentence if the system's agent gave the pod other GPUs than Weft chose; else ""."""
    for shares in recorded.values():
        if shares and _places(shares) != _places(own.shares):
            assignment = f"{request.dialect}'s agent gave it {_gpus(own.shares)} ({mark})"
            return f"{assignment}, Weft had chosen {_gpus(shares)}"
    return ""


def _contradictions(recorded: Records, own: Placement | None, system: str) -> list[str]:
    faults = [
        f"{name} is damaged or another pod's" for name, shares in recorded.items() if shares is None
    ]
    if PLACEMENT not in recorded:
        faults.append(f"{PLACEMENT} is missing")
    readable = {name: shares for name, shares in recorded.items() if shares is not None}
    first = next(iter(readable), "")
    for name, shares in readable.items():
        if shares != readable[first]:
            faults.append(f"{first} says {_amounts(readable[first])}, {name} {_amounts(shares)}")
    if own is not None and readable and _places(own.shares) != _places(readable[first]):
        said_first = f"{first} says {_gpus(readable[first])}"
        faults.append(f"{said_first}, {system}'s own annotations {_gpus(own.shares)}")
    return faults


def _less(
    index: int, gpu_request: GpuRequest, node: Node, held: HeldShares, *, grown: bool
) -> list[str]:
    """Raise the charge on each GPU to at least what this GPU request asks of the GPU; return a
    sentence for each charge that was less.

    `grown`: less memory than a requested percentage is not reported, as the card may have been
    smaller when the pod was placed.
    """
    grown = grown and (gpu_request.whole or gpu_request.memory.kind not in ("mib", "none"))
    faults = []
    for gpu in () if gpu_request.split else node.gpus:
        own = held.get((index, gpu.index))
        if own is None:
            continue
        least = asked_on(index, gpu_request, gpu)
        _raise(held, least)
        if own.milli < least.milli or (own.memory_mib < least.memory_mib and not grown):
            faults.append(f"{_amounts([own])} is less than the pod asks for, {_amounts([least])}")
    return faults


def _too_few(gpu_request: GpuRequest, shares: Sequence[Share]) -> bool:
    """Return True if these shares are fewer GPUs than requested, or less memory of a split
    request."""
    few_mib = sum(share.memory_mib for share in shares) < gpu_request.memory.value
    return len(shares) < gpu_request.count or (gpu_request.split and few_mib)


def _raise(held: HeldShares, share: Share) -> None:
    """Raise the charge on the share's GPU to at least this share."""
    charged = held.setdefault((share.gpu_request, share.gpu), share)
    memory_mib, milli = max(charged.memory_mib, share.memory_mib), max(charged.milli, share.milli)
    if (memory_mib, milli) != (charged.memory_mib, charged.milli):
        held[share.gpu_request, share.gpu] = replace(charged, memory_mib=memory_mib, milli=milli)


def _places(shares: Sequence[Share]) -> set[tuple[int, int]]:
    return {(share.gpu_request, share.gpu) for share in shares}


def _gpus(shares: Sequence[Share]) -> str:
    return "GPU " + ", ".join(map(str, sorted({s.gpu for s in shares}))) if shares else "no GPU"


def _amounts(shares: Sequence[Share]) -> str:
    parts = [
        f"{share.memory_mib:,} MiB{f' and {share.milli:,} thousandths' if share.milli else ''} "
        f"of GPU {share.gpu}"
        for share in shares
    ]
    return " and ".join(parts[:4]) + (" and more" if len(parts) > 4 else "") or "nothing"
