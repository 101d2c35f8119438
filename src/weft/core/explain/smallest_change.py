"""Finds the smallest changes that would make a pod fit, one for each axis (such as memory, GPU
model or queue), each verified by trial.

Nothing is estimated: every returned change was tried on the live ledger (and undone if it frees
something), and the pod fitted. An axis may have no change. A search takes many trials, each about
as long as one decision. Events may be handled between two trials (`ChangeSearch.steps`);
`ChangeSearch.confirmed` therefore tries each change again."""

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from weft.core.constraints.answers import pods_of
from weft.core.constraints.storage_answers import exact_size
from weft.core.engine.assessment import Assessment, Assessor
from weft.core.engine.engine import Engine
from weft.core.engine.nominations import is_kept
from weft.core.framework import Profile
from weft.core.ledger import Holding
from weft.model import (
    Code,
    DeviceRule,
    GpuMemoryRequest,
    GpuRequest,
    InterPodRules,
    PodRequest,
    Shape,
    StorageRules,
    UnboundClaim,
)
from weft.model.agent_offer import ISOLATIONS
from weft.model.annotations import TOPOLOGY

T = TypeVar("T")
Trying = Generator[None, None, T]
"""Generator that yields before each trial, and returns its result."""
_Size = tuple[int, int, int, int, str]
_CHUNK = 500  # pods or nodes examined without a trial before the search yields
Rank = Callable[[str], int]
"""Returns the rank of a pod (by UID) that could be ended; the lowest is tried first."""


class SuggestedChange(msgspec.Struct, frozen=True):
    """A change that would make the pod fit, and the UIDs of pods that would have to end."""

    axis: str
    text: str
    free: tuple[str, ...] = ()


class SmallestChange(SuggestedChange, frozen=True):
    """A change that was tried: a request that fits (`shape`), pods that would have to end, or (axis
    `queue`) limits of the pod's queue that would have to be raised."""

    shape: Shape | None = None


def changes(engine: Engine, pod: PodRequest) -> list[SmallestChange]:
    """Return at most one verified change per axis for a pod that fits nowhere."""
    search = ChangeSearch(engine, engine.profile_of(pod), pod)
    deque(search.steps(), maxlen=0)
    return search.found


class ChangeSearch:
    """Interruptible search for changes. `found` grows; `ended` is True once every axis was
    searched.

    The search has an `Assessor` of its own, so that its trial shapes do not displace shapes in the
    engine's cache. `rank` orders the pods that could be ended (of equal rank the smallest first);
    `name` returns NAMESPACE/NAME for a UID that is not in the engine's `placed`, "" if unknown."""

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        pod: PodRequest,
        rank: Rank = lambda uid: 0,
        name: Callable[[str], str] = lambda uid: "",
    ) -> None:
        self.found: list[SmallestChange] = []
        self.ended = False
        self._engine, self._profile, self._pod = engine, profile, pod
        self._shape = engine.oom_history.shape_of(pod)
        self._assessor, self._rank, self._known_as = Assessor(engine.ledger), rank, name

    def steps(self) -> Iterator[None]:
        """Search every axis, one trial between two yields; events may be handled in between."""
        for axis in (
            self._memory(),
            self._cores(),
            self._count(),
            self._model(),
            self._isolation(),
            self._topology(),
            self._host("cpu_milli", "cpu", "m of CPU"),
            self._host("memory_mib", "memory", "MiB of host memory"),
            self._extended(),
            self._volume(),
            self._spread(),
            self._rather("pod-affinity", "near"),
            self._rather("pod-anti-affinity", "away from"),
            self._queue(),
            self._free_pod(),
        ):
            change = yield from axis
            if change is not None:
                self.found.append(change)
        self.ended = True

    def confirmed(self) -> list[SmallestChange]:
        """Return the changes that still help now, after trying each again without yielding."""
        return [change for change in self.found if self._helps(change)]

    def _helps(self, change: SmallestChange) -> bool:
        if change.axis == "queue":
            with self._engine.teams.without_limits():
                return self._fits(self._shape)
        return self._fits(change.shape) if change.shape else self._fits_without(change.free)

    def _fits(self, shape: Shape) -> bool:
        return bool(self._assess(shape).counts[0])

    def _assess(self, shape: Shape) -> Assessment:
        """Assess all nodes for a pod of this shape, as of now."""
        self._assessor.observed = self._engine.assessor.observed
        shape = self._profile.shaped(shape)
        return self._engine.asked_of(self._assessor, self._profile, shape, self._pod)

    def _most(self, high: int, change: Callable[[int], Shape]) -> Trying[int | None]:
        """Find, by bisection, the greatest value in [0, high) for which the pod with the changed
        shape fits; None if none does."""
        low, best = 0, None
        while low < high:
            middle = (low + high) // 2
            yield
            if self._fits(change(middle)):
                best, low = middle, middle + 1
            else:
                high = middle
        return best

    def _gpu_requests(self, change: Callable[[GpuRequest], GpuRequest]) -> Shape:
        gpu_requests = tuple(change(gpu_request) for gpu_request in self._shape.gpu_requests)
        return replace(self._shape, gpu_requests=gpu_requests)

    def _memory(self) -> Trying[SmallestChange | None]:
        """Try less GPU memory, in each unit in which the pod requests it."""
        for kind in ("mib", "units", "node-units", "percent", "millionths"):
            requested = [_amount(c) for c in self._shape.gpu_requests if _memory_kind(c) == kind]
            if not requested:
                continue
            most = max(requested)
            best = yield from self._most(most, functools.partial(self._with_memory, kind))
            if best:
                text = f"request at most {_in_words(kind, best)} of GPU memory instead of "
                text += _in_words(kind, most, unit=False)
                return SmallestChange("memory", text, shape=self._with_memory(kind, best))
        return None

    def _with_memory(self, kind: str, most: int) -> Shape:
        def cap(gpu_request: GpuRequest) -> GpuRequest:
            if _memory_kind(gpu_request) != kind or _amount(gpu_request) <= most:
                return gpu_request
            memory = replace(gpu_request.memory, kind=kind, value=most)
            return replace(gpu_request, memory=memory)

        return self._gpu_requests(cap)

    def _cores(self) -> Trying[SmallestChange | None]:
        """Try fewer cores; a whole GPU becomes a share of its cores and memory alike."""
        requested = max((1000 if c.whole else c.milli for c in self._shape.gpu_requests), default=0)
        best = (yield from self._most(requested, self._with_cores)) if requested else None
        if not best:
            return None
        unit = "of a GPU's cores"
        if any(ask.whole and ask.memory.kind != "mib" for ask in self._shape.gpu_requests):
            unit = "of a GPU's cores and memory"
        text = f"request at most {best / 10:g} % {unit} instead of {requested / 10:g} %"
        return SmallestChange("cores", text, shape=self._with_cores(best))

    def _with_cores(self, milli: int) -> Shape:
        def cap(gpu_request: GpuRequest) -> GpuRequest:
            if gpu_request.whole:
                share = GpuMemoryRequest("percent", max(1, milli // 10))
                least = gpu_request.memory if gpu_request.memory.kind == "mib" else share
                return GpuRequest(gpu_request.count, least, milli)
            return replace(gpu_request, milli=min(gpu_request.milli, milli))

        return self._gpu_requests(cap)

    def _count(self) -> Trying[SmallestChange | None]:
        """Try fewer GPUs, with one limit for all GPU requests of the pod."""
        requested = max((gpu_request.count for gpu_request in self._shape.gpu_requests), default=0)

        def capped(count: int) -> Shape:
            return self._gpu_requests(lambda ask: replace(ask, count=min(ask.count, count)))

        best = yield from self._most(requested, lambda value: capped(max(1, value)))
        if requested < 2 or not best:
            return None
        gpus = "1 GPU" if best == 1 else f"{best} GPUs"
        each = "" if len(self._shape.gpu_requests) == 1 else " in every container"
        text = f"request at most {gpus}{each} instead of {requested}"
        return SmallestChange("count", text, shape=capped(best))

    def _model(self) -> Trying[SmallestChange | None]:
        rule = self._shape.devices
        if rule == DeviceRule():
            return None
        free = replace(self._shape, devices=DeviceRule())
        yield
        if not self._fits(free):
            return None
        nodes = self._engine.ledger.table.nodes
        for model in sorted({gpu.model for node in nodes for gpu in node.gpus}):
            accepting = replace(self._shape, devices=DeviceRule(models=(model,)))
            yield
            if self._fits(accepting):
                text = f"accept the GPU model {model or '(unnamed)'}"
                return SmallestChange("model", text, shape=accepting)
        return SmallestChange("model", "accept any GPU model", shape=free)

    def _isolation(self) -> Trying[SmallestChange | None]:
        """Try other isolation modes, the strictest first."""
        asked = self._shape.isolation
        for mode in reversed(ISOLATIONS) if asked else ():
            if mode == asked:
                continue
            other = replace(self._shape, isolation=mode)
            yield
            if self._fits(other):
                text = f"ask for isolation {mode} instead of {asked}"
                return SmallestChange("isolation", text, shape=other)
        return None

    def _topology(self) -> Trying[SmallestChange | None]:
        """Try any links between the GPUs instead of requiring the best ones."""
        if self._shape.topology != "required":
            return None
        any_links = replace(self._shape, topology=UNSET)
        yield
        if not self._fits(any_links):
            return None
        text = f"ask for {TOPOLOGY} preferred instead of required"
        return SmallestChange("topology", text, shape=any_links)

    def _host(self, field: str, axis: str, unit: str) -> Trying[SmallestChange | None]:
        requested = getattr(self._shape, field)

        def lowered(value: int) -> Shape:
            return replace(self._shape, **{field: value})

        best = (yield from self._most(requested, lowered)) if requested else None
        if best is None:
            return None
        text = f"request at most {best:,} {unit} instead of {requested:,}"
        return SmallestChange(axis, text, shape=lowered(best))

    def _extended(self) -> Trying[SmallestChange | None]:
        """Try less of an extended resource, and of the GPU memory if requested through it."""
        for name, requested in self._shape.extended:
            if name == "pods":
                continue
            change = functools.partial(self._with_extended, name, requested)
            least = 1 if self._by_resource(requested) else 0
            yield
            if least < requested and self._fits(change(least)):
                best = max(least, (yield from self._most(requested, change)) or 0)
                text = f"request at most {best:,} of {name} instead of {requested:,}"
                return SmallestChange("extended", text, shape=change(best))
        return None

    def _with_extended(self, name: str, requested: int, most: int) -> Shape:
        """Lower the resource, and in proportion the GPU memory if requested through it."""

        def lowered(gpu_request: GpuRequest) -> GpuRequest:
            value = -(-gpu_request.memory.value * most // requested)
            memory = replace(gpu_request.memory, value=value)
            return replace(gpu_request, memory=memory)

        shape = self._gpu_requests(lowered) if self._by_resource(requested) else self._shape
        lower = tuple((key, most if key == name else many) for key, many in shape.extended)
        return replace(shape, extended=lower)

    def _by_resource(self, requested: int) -> bool:
        """Return True if the GPU requests' memory adds up to this amount of the resource."""
        gpu_requests = self._shape.gpu_requests
        asked_mib = sum(ask.count * ask.memory.value for ask in gpu_requests)
        amounts = all(
            _memory_kind(ask) not in {"", "percent", "millionths"} for ask in gpu_requests
        )
        return asked_mib == requested and amounts

    def _volume(self) -> Trying[SmallestChange | None]:
        """Try a smaller size, then another storage class, for one of the claims without a volume. A
        claim that has a volume or a selected node keeps it."""
        storage, volumes = self._shape.constraints.storage, self._engine.existing.volumes
        asked = zip(storage.claims, self._pod.claims or (), strict=True) if storage else ()
        free = [
            (index, claim, f"let PersistentVolumeClaim {name} request")
            for index, (claim, name) in enumerate(asked)
            if not claim.reserved and claim.selected_node is None
        ]
        for index, claim, let in free:
            sizes = volumes.sizes_below(claim)
            smaller = functools.partial(self._with_smaller, index, claim, sizes)
            best = yield from self._most(len(sizes), smaller)
            if best is not None:
                text = f"{let} at most {exact_size(sizes[best])} instead of "
                text += exact_size(claim.size_bytes)
                return SmallestChange("volume", text, shape=smaller(best))
        for index, claim, let in free:
            for other in volumes.other_classes(claim):
                shape = self._with_claim(index, other)
                yield
                if self._fits(shape):
                    text = f"{let} class {other.storage_class} instead of {claim.storage_class}"
                    return SmallestChange("volume", text, shape=shape)
        return None

    def _with_smaller(
        self, index: int, claim: UnboundClaim, sizes: Sequence[int], at: int
    ) -> Shape:
        return self._with_claim(index, replace(claim, size_bytes=sizes[at]))

    def _with_claim(self, index: int, claim: UnboundClaim) -> Shape:
        constraints = self._shape.constraints
        storage = constraints.storage or StorageRules()
        claims = (*storage.claims[:index], claim, *storage.claims[index + 1 :])
        changed = replace(constraints, storage=replace(storage, claims=claims))
        return replace(self._shape, constraints=changed)

    def _spread(self) -> Trying[SmallestChange | None]:
        """Find the smallest maxSkew that would help, for one of the pod's spread rules."""
        rules = self._shape.constraints.pods or InterPodRules()
        for index, rule in enumerate(rules.spread):
            pods = pods_of(self._engine.existing, rule)
            most = rule.max_skew + (sum(pods.by_node.values()) if pods else 0) + 1

            def wider(less: int, index: int = index, most: int = most) -> Shape:
                spread = list(rules.spread)
                spread[index] = replace(spread[index], max_skew=most - less)
                return self._with_rules(replace(rules, spread=tuple(spread)))

            less = yield from self._most(most - rule.max_skew, wider)
            if less is not None:
                text = f"let maxSkew of the spread by {rule.topology_key} be {most - less:,}"
                return SmallestChange(
                    "spread", f"{text} instead of {rule.max_skew:,}", shape=wider(less)
                )
        return None

    def _rather(
        self, field: Literal["pod-affinity", "pod-anti-affinity"], how: str
    ) -> Trying[SmallestChange | None]:
        """Try without one of the required terms of this field, as if the term were only
        preferred."""
        rules = self._shape.constraints.pods or InterPodRules()
        terms = rules.affinity if field == "pod-affinity" else rules.anti_affinity
        for index, term in enumerate(terms):
            left = (*terms[:index], *terms[index + 1 :])
            fewer = (
                replace(rules, affinity=left)
                if field == "pod-affinity"
                else replace(rules, anti_affinity=left)
            )
            yield
            if self._fits(shape := self._with_rules(fewer)):
                text = f"prefer, not require, to be {how} {term.pods}, by {term.topology_key}"
                return SmallestChange(field, text, shape=shape)
        return None

    def _with_rules(self, rules: InterPodRules) -> Shape:
        return replace(self._shape, constraints=replace(self._shape.constraints, pods=rules))

    def _queue(self) -> Trying[SmallestChange | None]:
        """Try without the limits of the pod's queue; return the limits that would have to be
        raised."""
        teams = self._engine.teams
        if not teams.is_limited(self._pod.team_queue):
            return None
        yield
        with teams.without_limits():
            known = self._assess(self._shape)
        text = teams.raised_limits(known, self._pod) if known.counts[0] else ""
        return SmallestChange("queue", text) if text else None

    def _free_pod(self) -> Trying[SmallestChange | None]:
        """Find the smallest pod whose end would make room; if there is none, the GPU with the
        fewest pods that would make room if all of them ended."""
        holdings = self._engine.ledger.holdings
        for *_, uid in (yield from self._in_the_way()):
            yield
            holding = holdings.get(uid)
            if holding is not None and self._fits_without((uid,)):
                place = holding.placement
                gpus = ", ".join(str(gpu) for gpu in sorted({s.gpu for s in place.shares}))
                where = f"{place.node} GPU {gpus}" if gpus else place.node
                text = f"free {where}: end pod {self._name(uid)}"
                return SmallestChange("free", text, free=(uid,))
        return (yield from self._free_gpu())

    def _in_the_way(self) -> Trying[list[_Size]]:
        """Return the pods on nodes where ending pods could help, in the order of trials."""
        helped = self._helped()
        pods = []
        for number, (uid, holding) in enumerate(list(self._engine.ledger.holdings.items()), 1):
            if holding.placement.node in helped and not is_kept(uid):
                pods.append(_size(self._rank(uid), holding))
            if number % _CHUNK == 0:
                yield
        pods.sort()
        return pods

    def _helped(self) -> set[str]:
        """Return the nodes that refuse the pod because of other pods there, not because of the node
        itself."""
        codes = self._assess(self._shape).codes.tolist()
        nodes = self._engine.ledger.table.nodes
        return {
            node.name
            for node, code in zip(nodes, codes, strict=True)
            if code == 0 or Code(code).is_by_others
        }

    def _name(self, uid: str) -> str:
        placed = self._engine.placed.get(uid)
        known = f"{placed.pod.namespace}/{placed.pod.name}" if placed else self._known_as(uid)
        return f"{known} (UID {uid})" if known else f"UID {uid}"

    def _free_gpu(self) -> Trying[SmallestChange | None]:
        ledger = self._engine.ledger
        crowded = []
        helped = self._helped()
        for number, node in enumerate(ledger.table.nodes, 1):
            if number % _CHUNK == 0:
                yield
            if node.name not in helped:
                continue
            for gpu in node.gpus:
                uids = ledger.occupants(node.name, gpu.index)
                if len(uids) > 1 and not any(map(is_kept, uids)):
                    crowded.append((len(uids), node.name, gpu.index, uids))
        for _, node_name, index, uids in sorted(crowded):
            yield
            if self._fits_without(uids):
                text = f"free {node_name} GPU {index}: end its {len(uids)} pods"
                return SmallestChange("free", text, free=tuple(uids))
        return None

    def _fits_without(self, uids: Sequence[str]) -> bool:
        with self._engine.trial(uids):
            return self._fits(self._shape)


def _in_words(kind: str, amount: int, *, unit: bool = True) -> str:
    number = f"{amount / 10_000:g}" if kind == "millionths" else f"{amount:,}"
    units = {"mib": "MiB", "percent": "% of a card", "millionths": "% of a card"}
    return f"{number} {units.get(kind, 'units')}" if unit else number


def _memory_kind(gpu_request: GpuRequest) -> str:
    """Return the unit in which the request's memory can be lowered, "" if it cannot.

    All memory of a shared GPU counts as 100 percent."""
    if gpu_request.whole or gpu_request.memory.kind == "none":
        return ""
    return "percent" if gpu_request.memory.kind == "whole" else gpu_request.memory.kind


def _amount(gpu_request: GpuRequest) -> int:
    return 100 if gpu_request.memory.kind == "whole" else gpu_request.memory.value


def _size(rank: int, holding: Holding) -> _Size:
    place = holding.placement
    milli = memory_mib = 0
    for share in place.shares:
        milli += share.milli
        memory_mib += share.memory_mib
    return rank, milli, memory_mib, place.cpu_milli, place.uid
