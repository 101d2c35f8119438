"""Each pod is parsed once: kube-scheduler sends it whole, with filter and with prioritize.

At a bind only the pod's name and UID come; what filter was asked about is what will be bound.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from weft.kube.pods import Pod
from weft.model import PodRequest

LARGE_BYTES = 65_536
"""Of a pod's JSON. Pods have some kB, and memory must be bounded whatever somebody sends; a larger
one is bound as the watch shows it."""


class PodCache:
    """The requests of pods seen lately, by UID; the least recently asked about are forgotten.

    A pod is parsed again when its resourceVersion or `settings` (what a dialect's reading depends
    on) moved. `parsed` counts parses.
    """

    def __init__(self, parse: Callable[[Pod], PodRequest], keep: int = 10_000) -> None:
        self.parsed = 0
        self._parse = parse
        self._keep = keep
        self._known: OrderedDict[str, tuple[str, Hashable, PodRequest]] = OrderedDict()

    def request(self, pod: Pod, settings: Hashable, size: int = 0) -> PodRequest:
        """The pod's request; `BadInputError` where the pod contradicts itself.

        `size` is how long its JSON was: what is larger than `LARGE_BYTES` is not remembered.
        """
        uid, version = pod.metadata.uid, pod.metadata.resource_version
        known = self._known.get(uid)
        if known is not None and version and known[0] == version and known[1] == settings:
            self._known.move_to_end(uid)
            return known[2]
        request = self._parse(pod)
        self.parsed += 1
        if uid and size <= LARGE_BYTES:
            self._known[uid] = (version, settings, request)
            self._known.move_to_end(uid)
            if len(self._known) > self._keep:
                self._known.popitem(last=False)
        return request

    def seen(self, uid: str) -> PodRequest | None:
        """The request of the pod with this UID, if it was asked about lately."""
        known = self._known.get(uid)
        return known[2] if known else None
