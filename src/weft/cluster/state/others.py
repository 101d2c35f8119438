"""Lists shares of a node's GPUs that Weft did not place: those of other systems' pods, and of
ResourceClaims.

`weft explain`, `weft inspect` and `weft status` describe them in the same words. A share is certain
if an annotation, a label or a ResourceSlice names its GPU; otherwise it is charged because it may
be held.
"""

from collections.abc import Iterator
from typing import Literal

from weft.cluster.state.claims import ClaimCharge
from weft.cluster.state.pod_reader import read_there
from weft.cluster.state.pods import PodView
from weft.core.explain.account_sentences import (
    amount_in_words,
    held_in_words,
    percent_of,
    pod_of_in_words,
)
from weft.core.explain.explanation import OthersShare
from weft.dialects.registry import placer_of
from weft.kube.pods import Pod
from weft.model import BadInputError, Gpu, Node, ObjectMeta, PodRequest, Share

_NOBODY = "it is unknown which GPU it holds"
_TOLD = "what its node's agent reports of NVIDIA's device plugin"
_BY_PART = ("percent", "millionths")


def others_on(pods: PodView, name: str) -> list[OthersShare]:
    """Return the shares of this node's GPUs that pods of other systems and ResourceClaims hold, as
    charged now, sorted by GPU, then holder."""
    node = pods.there(name)
    if node is None:
        return []
    found = [share for pod in pods.on_node(name) for share in _of_pod(pods, pod, node)]
    for holder in pods.claims.holders_on(name):
        placement = pods.decided(holder)
        charge = pods.claims.charge_of(holder)
        problem = pods.claims.problems.get(charge.claim.metadata.uid, "")
        for share in placement.shares if placement is not None else ():
            unknown = (
                ""
                if share in charge.shares
                else problem or pods.claims.assumed.get(holder, _NOBODY)
            )
            found.append(claims_share(charge, share, node, unknown))
    return sorted(found, key=lambda s: (s.gpu, s.kind, s.namespace, s.name))


def _of_pod(pods: PodView, pod: Pod, node: Node) -> Iterator[OthersShare]:
    uid = pod.metadata.uid
    placement = pods.decided(uid)
    if placement is None or not placement.shares or pods.is_placed_by_weft(pod):
        return
    try:
        request = read_there(pods.counted(pod), node, pods.settings).request
    except BadInputError:
        request = None
    unknown = f"it {pods.assumed[uid]}" if uid in pods.assumed else ""
    if not unknown and pods.unsure(uid):
        unknown = "; ".join(doubt.text for doubt in pods.doubts.get(uid, ()))
    for share in placement.shares:
        yield pods_share(pod, request, share, node, unknown, is_told=uid in pods.told)


def pods_share(
    pod: Pod,
    request: PodRequest | None,
    share: Share,
    node: Node,
    unknown: str = "",
    *,
    is_told: bool = False,
) -> OthersShare:
    """Return the pod's share of a GPU; `request` is None if it cannot be read. `unknown` is the
    reason why it is uncertain whether the pod holds this GPU, "" if its annotations or labels name
    the GPU or (`is_told`) the node's agent reports it."""
    meta, gpu = pod.metadata, _gpu(node, share.gpu)
    placer = placer_of(pod, request.dialect if request is not None else "none")
    asked = request.shape.gpu_requests if request is not None else ()
    by_percent = len(asked) > share.gpu_request and asked[share.gpu_request].memory.kind in _BY_PART
    amount = amount_in_words(share, gpu, by_percent=by_percent)
    holder = pod_of_in_words(f"{meta.namespace}/{meta.name}", placer.title, placer.name)
    evidence = unknown or (_TOLD if is_told else placer.mark or "its annotations")
    why = evidence if unknown else f"by {evidence}"
    text = held_in_words(amount, holder, why, is_sure=not unknown)
    is_sure, system = not unknown, placer.name
    return _held(node, share, system, "pod", meta, evidence, text, is_sure=is_sure)


def claims_share(charge: ClaimCharge, share: Share, node: Node, unknown: str = "") -> OthersShare:
    """Return a claim's share of a GPU; `unknown` is the reason why it is uncertain whether the
    claim holds this GPU, "" if it is certain."""
    meta, gpu = charge.claim.metadata, _gpu(node, share.gpu)
    driver = charge.driver_of(share)
    evidence = unknown or f"allocated by driver {driver}"
    holder = f"ResourceClaim {meta.namespace}/{meta.name}"
    amount = amount_in_words(share, gpu, by_percent=False)
    text = held_in_words(amount, holder, evidence, is_sure=not unknown)
    return _held(node, share, driver, "claim", meta, evidence, text, is_sure=not unknown)


def _held(
    node: Node,
    share: Share,
    system: str,
    kind: Literal["pod", "claim"],
    meta: ObjectMeta,
    evidence: str,
    text: str,
    *,
    is_sure: bool,
) -> OthersShare:
    return OthersShare(
        node.name,
        share.gpu,
        share.memory_mib,
        share.milli,
        percent_of(share, _gpu(node, share.gpu)),
        system,
        kind,
        meta.namespace,
        meta.name,
        evidence,
        is_sure,
        text,
    )


def _gpu(node: Node, index: int) -> Gpu | None:
    return next((gpu for gpu in node.gpus if gpu.index == index), None)
