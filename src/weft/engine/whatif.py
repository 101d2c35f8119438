"""The smallest change that would make a pod fit, one per axis, each one tried out.

Nothing here is estimated: every change returned was applied to the live ledger (under a
checkpoint where it frees something) and the pod found a place. No change on an axis is an answer.
"""

import functools
from collections.abc import Callable, Iterator

import msgspec

from weft.engine.engine import Engine
from weft.framework import Profile
from weft.ledger.ledger import Holding
from weft.model import DeviceRule, GpuClaim, Memory, PodRequest, Shape


class Change(msgspec.Struct, frozen=True):
    """One change: what to ask instead (`shape`), or which pods to free (`free`, by UID)."""

    axis: str
    text: str
    shape: Shape | None = None
    free: tuple[str, ...] = ()


def changes(engine: Engine, pod: PodRequest) -> list[Change]:
    """For a pod that fits nowhere: at most one change an axis, each verified."""
    finder = _Finder(engine, engine.profile_of(pod), pod.shape)
    return [change for change in finder.all() if change is not None]


class _Finder:
    def __init__(self, engine: Engine, profile: Profile, shape: Shape) -> None:
        self._engine, self._profile, self._shape = engine, profile, shape

    def all(self) -> Iterator[Change | None]:
        yield self._memory()
        yield self._cores()
        yield self._count()
        yield self._model()
        yield self._host("cpu_milli", "cpu", "m of CPU")
        yield self._host("memory_mib", "memory", "MiB of host memory")
        yield self._free_pod()

    def _fits(self, shape: Shape) -> bool:
        for policy in self._profile.pre_filters:
            shape = policy.pre_filter(shape)
        return bool(self._engine.assessor.assess(self._profile, shape).counts[0])

    def _most(self, high: int, change: Callable[[int], Shape]) -> int | None:
        """The greatest value in [0, high) whose changed shape fits; None if none does."""
        low, best = 0, None
        while low < high:
            middle = (low + high) // 2
            if self._fits(change(middle)):
                best, low = middle, middle + 1
            else:
                high = middle
        return best

    def _claims(self, change: Callable[[GpuClaim], GpuClaim]) -> Shape:
        claims = tuple(change(claim) for claim in self._shape.claims)
        return msgspec.structs.replace(self._shape, claims=claims)

    def _memory(self) -> Change | None:
        """Less GPU memory, in one of the kinds it is asked in."""
        for kind in ("mib", "units", "percent"):
            asked = [_amount(c) for c in self._shape.claims if _memory_kind(c) == kind]
            if not asked:
                continue
            most = max(asked)
            best = self._most(most, functools.partial(self._with_memory, kind))
            if best:
                unit = {"mib": "MiB", "percent": "% of a card"}.get(kind, "units")
                text = f"ask at most {best:,} {unit} of GPU memory instead of {most:,}"
                return Change("memory", text, self._with_memory(kind, best))
        return None

    def _with_memory(self, kind: str, most: int) -> Shape:
        def cap(claim: GpuClaim) -> GpuClaim:
            if _memory_kind(claim) != kind or _amount(claim) <= most:
                return claim
            memory = msgspec.structs.replace(claim.memory, kind=kind, value=most)
            return msgspec.structs.replace(claim, memory=memory)

        return self._claims(cap)

    def _cores(self) -> Change | None:
        """Fewer cores; a whole card becomes a share of its cores and memory alike."""
        asked = max((1000 if c.whole else c.milli for c in self._shape.claims), default=0)
        best = self._most(asked, self._with_cores) if asked else None
        if not best:
            return None
        what = "of a GPU's cores"
        if any(claim.whole and claim.memory.kind != "mib" for claim in self._shape.claims):
            what = "of a GPU, cores and memory,"
        text = f"ask at most {best / 10:g} % {what} instead of {asked / 10:g} %"
        return Change("cores", text, self._with_cores(best))

    def _with_cores(self, milli: int) -> Shape:
        def cap(claim: GpuClaim) -> GpuClaim:
            if claim.whole:
                share = Memory("percent", max(1, milli // 10))
                least = claim.memory if claim.memory.kind == "mib" else share
                return GpuClaim(claim.count, least, milli)
            return msgspec.structs.replace(claim, milli=min(claim.milli, milli))

        return self._claims(cap)

    def _count(self) -> Change | None:
        """Fewer GPUs, at most so many for each claim."""
        asked = max((claim.count for claim in self._shape.claims), default=0)

        def capped(count: int) -> Shape:
            return self._claims(
                lambda claim: msgspec.structs.replace(claim, count=min(claim.count, count))
            )

        best = self._most(asked, lambda value: capped(max(1, value)))
        if asked < 2 or not best:
            return None
        gpus = "1 GPU" if best == 1 else f"{best} GPUs"
        each = "" if len(self._shape.claims) == 1 else " in every container"
        return Change("count", f"ask for at most {gpus}{each} instead of {asked}", capped(best))

    def _model(self) -> Change | None:
        rule = self._shape.devices
        if rule == DeviceRule():
            return None
        free = msgspec.structs.replace(self._shape, devices=DeviceRule())
        if not self._fits(free):
            return None
        for model in sorted({gpu.model for node in self._engine.ledger.table.nodes
                             for gpu in node.gpus}):  # fmt: skip
            one = msgspec.structs.replace(self._shape, devices=DeviceRule(models=(model,)))
            if self._fits(one):
                return Change("model", f"accept the GPU model {model or '(unnamed)'}", one)
        return Change("model", "accept any GPU model", free)

    def _host(self, field: str, axis: str, unit: str) -> Change | None:
        asked = getattr(self._shape, field)

        def lowered(value: int) -> Shape:
            return msgspec.structs.replace(self._shape, **{field: value})

        best = self._most(asked, lowered) if asked else None
        if best is None:
            return None
        return Change(axis, f"ask at most {best:,} {unit} instead of {asked:,}", lowered(best))

    def _free_pod(self) -> Change | None:
        """The smallest pod whose end would make room; failing that, the emptiest such GPU."""
        ledger = self._engine.ledger
        held = sorted(ledger.holdings.values(), key=_size)
        for holding in held:
            if self._fits_without([holding.placement.uid]):
                place = holding.placement
                gpus = ", ".join(str(gpu) for gpu in sorted({s.gpu for s in place.shares}))
                where = f"{place.node} GPU {gpus}" if gpus else place.node
                uid = place.uid
                return Change("free", f"free {where}: end pod {self._name(uid)}", free=(uid,))
        return self._free_gpu()

    def _name(self, uid: str) -> str:
        placed = self._engine.placed.get(uid)
        return f"{placed.pod.namespace}/{placed.pod.name} (UID {uid})" if placed else f"UID {uid}"

    def _free_gpu(self) -> Change | None:
        ledger = self._engine.ledger
        crowded = []
        for node in ledger.table.nodes:
            for gpu in node.gpus:
                uids = ledger.occupants(node.name, gpu.index)
                if len(uids) > 1:
                    crowded.append((len(uids), node.name, gpu.index, uids))
        for _, node_name, index, uids in sorted(crowded):
            if self._fits_without(uids):
                text = f"free {node_name} GPU {index}: end its {len(uids)} pods"
                return Change("free", text, free=tuple(uids))
        return None

    def _fits_without(self, uids: list[str]) -> bool:
        ledger = self._engine.ledger
        ledger.checkpoint()
        try:
            for uid in uids:
                ledger.release(uid)
            return self._fits(self._shape)
        finally:
            ledger.rollback()


def _memory_kind(claim: GpuClaim) -> str:
    """In what the claim's memory could be lowered; all of a shared card is 100 percent."""
    if claim.whole or claim.memory.kind == "none":
        return ""
    return "percent" if claim.memory.kind == "whole" else claim.memory.kind


def _amount(claim: GpuClaim) -> int:
    return 100 if claim.memory.kind == "whole" else claim.memory.value


def _size(holding: Holding) -> tuple[int, int, int, str]:
    place = holding.placement
    return (
        sum(share.milli for share in place.shares),
        sum(share.memory_mib for share in place.shares),
        place.cpu_milli,
        place.uid,
    )
