"""Reports pods that hold more GPU memory than they were assigned, and evicts them if configured.

A pod's use of each GPU is compared with the memory that its record assigns it there. A process'
CUDA context (some hundred MiB) counts, as other pods cannot use that memory; so there is a margin.
The excess must last: an allocator that soon frees memory harms nobody.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec

from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError
from weft.kube.events import Note
from weft.kube.structs import ObjectReference
from weft.model.log_fields import about
from weft.node.agent.usage import ContainerUse, NodeUse, WatchedPod

log = logging.getLogger("weft.agent")

REASON = "GPUMemoryOverShare"


class OverShareOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `margin_mib`: a CUDA context takes 300 to 600 MiB that few users include in their requests.
    `margin_percent`: of the share; the larger of the two margins counts. `after_s`: how long a pod
    must exceed its share without interruption. `evict`: off by default, as the pod may matter more
    than those it displaces. `evict_again_s`: between two tries to evict the same pod, which a
    disruption budget may forbid.
    """

    margin_mib: int = 512
    margin_percent: int = 5
    after_s: float = 10
    evict: bool = False
    evict_again_s: float = 30


class OverShare(NamedTuple):
    """A pod that holds more of a GPU than it was assigned."""

    pod: WatchedPod
    gpu: int
    used_mib: int
    share_mib: int

    @property
    def text(self) -> str:
        """The excess, as a sentence for users."""
        return (
            f"holds {self.used_mib} MiB of GPU {self.gpu}, {self.used_mib - self.share_mib} MiB "
            f"more than its share of {self.share_mib} MiB"
        )


Evict = Callable[[WatchedPod], Awaitable[None]]
"""A function that evicts a pod through the API; raises what the client raises."""


class OverShareGuard:
    """An observer of `UsageWatch`; `run` evicts if configured.

    `over` are the pods that have exceeded their share for at least `after_s`. `reports` counts how
    often a pod was newly reported, `evictions` the attempts to evict, by outcome: evicted, blocked
    (by a disruption budget), gone, failed.
    """

    def __init__(
        self, emit: Callable[[Note], None], evict: Evict, options: OverShareOptions | None = None
    ) -> None:
        self.over: tuple[OverShare, ...] = ()
        self.reports = 0
        self.evictions: Counter[str] = Counter()
        self._emit, self._evict = emit, evict
        self._options = options or OverShareOptions()
        self._since_s: dict[tuple[str, int], float] = {}
        self._told: set[tuple[str, int]] = set()
        self._tried_s: dict[str, float] = {}
        self._due: asyncio.Queue[OverShare] = asyncio.Queue(maxsize=1_000)

    def observe(self, use: NodeUse) -> None:
        """Find the pods over their share in this reading, report new ones, and plan evictions."""
        exceeding = {(o.pod.uid, o.gpu): o for o in self._exceeding(use.containers)}
        self._since_s = {key: self._since_s.get(key, use.at_s) for key in exceeding}
        lasting = {
            key: each
            for key, each in exceeding.items()
            if use.at_s - self._since_s[key] >= self._options.after_s
        }
        for key, each in lasting.items():
            if key not in self._told:
                self.reports += 1
                log.warning("pod %s %s", _named(each.pod), each.text, extra=about(each.pod))
                self._emit(_note(each, self._options.evict))
            self._plan(each, use.at_s)
        self._told &= exceeding.keys()
        self._told |= lasting.keys()
        uids = {uid for uid, _ in lasting}
        self._tried_s = {uid: at_s for uid, at_s in self._tried_s.items() if uid in uids}
        self.over = tuple(lasting.values())

    async def run(self) -> None:
        """Evict pods as `observe` plans it, until cancelled."""
        while True:
            each = await self._due.get()
            outcome = await self._outcome(each)
            self.evictions[outcome] += 1
            text = "pod %s %s: %s"
            log.warning(text, _named(each.pod), each.text, outcome, extra=about(each.pod))

    def _exceeding(self, containers: Iterable[ContainerUse]) -> Iterable[OverShare]:
        used: Counter[tuple[str, int]] = Counter()
        pods: dict[str, WatchedPod] = {}
        for use in containers:
            if use.pod is not None and use.pod.record is not None:
                used[use.pod.uid, use.gpu] += use.memory_mib
                pods[use.pod.uid] = use.pod
        for (uid, gpu), mib in used.items():
            record = pods[uid].record
            assert record is not None
            for card in record.cards:
                # A pod that requests only cores was assigned no amount of memory.
                if card.gpu == gpu and card.memory_mib and mib > self._most_mib(card.memory_mib):
                    yield OverShare(pods[uid], gpu, mib, card.memory_mib)

    def _most_mib(self, share_mib: int) -> int:
        options = self._options
        return share_mib + max(options.margin_mib, share_mib * options.margin_percent // 100)

    def _plan(self, each: OverShare, now_s: float) -> None:
        tried_s = self._tried_s.get(each.pod.uid)
        again = tried_s is None or now_s - tried_s >= self._options.evict_again_s
        if self._options.evict and again and not self._due.full():
            self._tried_s[each.pod.uid] = now_s
            self._due.put_nowait(each)

    async def _outcome(self, each: OverShare) -> str:
        try:
            await self._evict(each.pod)
        except NotFoundError:
            return "gone"
        except ApiError as error:
            return "blocked" if error.code == 429 else _failed(error)
        except (LostError, NotSentError) as error:
            return _failed(error)
        return "evicted"


def _failed(error: Exception) -> str:
    log.warning("no eviction: %s", error)
    return "failed"


def _note(each: OverShare, evicts: bool) -> Note:
    pod = each.pod
    regarding = ObjectReference("Pod", pod.namespace, pod.name, pod.uid, "v1")
    text = f"The pod {each.text}" + ("; it is evicted" if evicts else "")
    return Note(regarding, REASON, text, "Warning", "Watching")


def _named(pod: WatchedPod) -> str:
    return f"{pod.namespace}/{pod.name}"
