"""Computes what a scheduler that starts now would charge each bound pod of a cluster."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from weft.cluster.reading.claims import ClaimObjects
from weft.cluster.reading.reading import HowToRead
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pod_reader import read_bound
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Event, PodGone, PodSeenBound
from weft.core.ledger import Ledger
from weft.dialects.dialect import DialectSettings
from weft.kube.clock import Clock
from weft.kube.pods import Pod
from weft.kube.structs import ConfigMap, KubeNode
from weft.kube.watch import Added
from weft.model import BadInputError, Node, Share

AccountState = Literal["adopted", "ambiguous", "conflicting"]


class PodAccount(msgspec.Struct, frozen=True):
    """Charge of a bound pod.

    `state`: `adopted`, the pod's annotations name its GPUs, and nothing contradicts them;
    `ambiguous`, its GPUs are unknown, so at least what it may hold is charged; `conflicting`, its
    annotations contradict its spec, its node or each other, so the most is charged. `unreadable` is
    a field that no dialect can read, and the fault; `why` is the problem with the pod, or ""."""

    namespace: str
    name: str
    uid: str
    node: str
    system: str
    state: AccountState
    shares: tuple[Share, ...]
    why: str = ""
    unreadable: tuple[str, str] | None = None

    @property
    def full_name(self) -> str:
        """Namespace and name of the pod, as NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"


class OverfullGpu(NamedTuple):
    """A GPU that is charged more memory or cores than it has; `sure`: the pods in state `adopted`
    alone are charged more."""

    node: str
    gpu: int
    charged_mib: int
    has_mib: int
    sure: bool
    pods: tuple[str, ...]


class ClusterAccount(NamedTuple):
    """The GPU nodes as Weft reads them, each bound pod's charge, overcharged GPUs, and the
    ledger."""

    nodes: tuple[Node, ...]
    pods: tuple[PodAccount, ...]
    overfull: tuple[OverfullGpu, ...]
    ledger: Ledger


def account_of(
    nodes: Iterable[KubeNode],
    config_maps: Iterable[ConfigMap],
    pods: Iterable[Pod],
    reading: HowToRead,
    clock: Clock,
    claims: ClaimObjects | None = None,
) -> ClusterAccount:
    """Return the charges of these objects' pods in a new ledger, computed as a scheduler that just
    started would."""
    claims = claims or ClaimObjects()
    known = NodeView(reading.rules, lends=reading.settings.lends)
    for each in claims.slices:
        known.take_slice(Added(each))
    for node in nodes:
        known.take_node(Added(node))
    for config_map in config_maps:
        known.take_config_map(Added(config_map))
    for device in reading.devices.values():
        known.take_device(Added(device))
    new, _ = known.changed()
    ledger = Ledger(new)
    view = PodView(
        (), known, VolumeView(), ledger, reading.settings, on_bad=lambda pod, why: None, clock=clock
    )
    for device_class in claims.classes:
        view.claims.take_class(Added(device_class))
    for claim in claims.claims:
        _hear(ledger, view.claim_moved(*view.claims.take(Added(claim))))
    bound = [pod for pod in pods if pod.spec.node_name and not pod.ended]
    for pod in bound:
        _hear(ledger, view.in_safe_order([view.update(pod)]))
    bound.sort(key=lambda pod: (pod.metadata.namespace, pod.metadata.name))
    accounts = [
        None if view.claims.covered(pod) else _account(pod, view, reading.settings) for pod in bound
    ]
    with_gpus = tuple(node for node in new if node.gpus)
    known_accounts = [account for account in accounts if account is not None]
    overfull = tuple(_overfull(with_gpus, [*known_accounts, *_claim_accounts(view, new)]))
    known_accounts = [_with_overfull(account, overfull) for account in known_accounts]
    return ClusterAccount(with_gpus, tuple(known_accounts), overfull, ledger)


def _hear(ledger: Ledger, events: Iterable[Event]) -> None:
    for event in events:
        if isinstance(event, PodSeenBound):
            ledger.adopt(event.placement)
        elif isinstance(event, PodGone):
            ledger.release(event.uid)


def _account(pod: Pod, view: PodView, settings: DialectSettings) -> PodAccount | None:
    """Return the pod's charge; None if the pod neither holds nor requests a GPU."""
    meta = pod.metadata
    placement = view.decided(meta.uid)
    assumed, doubts = view.assumed.get(meta.uid, ""), view.doubts.get(meta.uid, ())
    try:
        request = read_bound(pod, settings)
        system, asks = request.dialect, bool(request.shape.gpu_requests)
        unreadable = None
    except BadInputError as error:
        system, asks, unreadable = "", True, (error.where, error.problem)
    shares = placement.shares if placement is not None else ()
    if not asks and not shares:
        return None
    state: AccountState = "ambiguous" if assumed else "adopted"
    why = assumed
    if asks and not shares and not why:
        node = view.there(pod.spec.node_name)
        if node is not None and node.gpus and unreadable is None and not doubts:
            return None  # a reservation of KAI's: pods that share its GPU are charged
        state, why = "ambiguous", "its node shows no GPUs: nothing can be charged"
    if doubts or unreadable is not None:
        state = "conflicting"
        why = "; ".join([*(doubt.text for doubt in doubts), *([assumed] if assumed else [])])
    return PodAccount(
        meta.namespace,
        meta.name,
        meta.uid,
        pod.spec.node_name,
        system,
        state,
        shares,
        why,
        unreadable,
    )


def _claim_accounts(view: PodView, nodes: Iterable[Node]) -> Iterator[PodAccount]:
    """Yield the charges of ResourceClaims, each as a `PodAccount`: they take up GPUs, but are not
    listed among the pods."""
    for node in nodes:
        for holder in sorted(view.claims.holders_on(node.name)):
            placement = view.decided(holder)
            state: AccountState = "ambiguous" if holder in view.claims.assumed else "adopted"
            namespace, _, name = view.name_of(holder).partition("/")
            shares = placement.shares if placement is not None else ()
            yield PodAccount(namespace, name, holder, node.name, "", state, shares)


def _overfull(nodes: Iterable[Node], pods: Sequence[PodAccount]) -> Iterator[OverfullGpu]:
    """Yield the GPUs that are charged more memory or cores than they have, node by node."""
    here: dict[tuple[str, int], list[tuple[PodAccount, Share]]] = {}
    for pod in pods:
        for share in pod.shares:
            here.setdefault((pod.node, share.gpu), []).append((pod, share))
    for node in nodes:
        for gpu in node.gpus:
            held = here.get((node.name, gpu.index), [])
            mib, milli = _sums(share for _, share in held)
            if mib > gpu.memory_mib or milli > gpu.milli:
                sure_mib, sure_milli = _sums(s for pod, s in held if pod.state == "adopted")
                sure = sure_mib > gpu.memory_mib or sure_milli > gpu.milli
                names = tuple(pod.full_name for pod, _ in held)
                yield OverfullGpu(node.name, gpu.index, mib, gpu.memory_mib, sure, names)


def _with_overfull(pod: PodAccount, overfull: Iterable[OverfullGpu]) -> PodAccount:
    """Return the pod's charge, in state `conflicting` if pods in state `adopted`, this one among
    them, are charged more of a GPU than it has."""
    for gpu in overfull:
        if gpu.sure and pod.state == "adopted" and pod.full_name in gpu.pods:
            why = (
                f"it and other pods were given more of GPU {gpu.gpu} on {gpu.node} than the GPU has"
            )
            return msgspec.structs.replace(pod, state="conflicting", why=why)
    return pod


def _sums(shares: Iterable[Share]) -> tuple[int, int]:
    mib = milli = 0
    for share in shares:
        mib, milli = mib + share.memory_mib, milli + share.milli
    return mib, milli
