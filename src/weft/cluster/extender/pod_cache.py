"""Each pod is parsed once: kube-scheduler sends it whole, with filter and with prioritize.

What is known of a pod is known by all that was said of it, never by a name that it gives itself:
whoever sends another pod's UID with other content is answered about that content, and leaves the
other pod's answer as it is.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import blake2b

from weft.kube.pods import Pod
from weft.model import PodRequest

LARGE_BYTES = 65_536
"""Largest pod JSON that is kept. Pods have some kB; memory is bounded whatever somebody sends."""


class PodCache:
    """The requests of pods seen lately; the least recently asked about are forgotten.

    A pod is parsed again when its content or `settings` (what a dialect's reading depends on)
    moved. `parsed` counts parses.
    """

    def __init__(self, parse: Callable[[Pod], PodRequest], keep: int = 10_000) -> None:
        self.parsed = 0
        self._parse = parse
        self._keep = keep
        self._known: OrderedDict[Hashable, PodRequest] = OrderedDict()

    def sent(self, pod: Pod, raw: bytes, settings: Hashable) -> PodRequest:
        """The request of a pod that somebody sent as `raw`; `BadInputError` where it contradicts
        itself. What is larger than `LARGE_BYTES` is not remembered."""
        if len(raw) > LARGE_BYTES:
            return self._parsed(pod)
        return self._request(pod, (blake2b(raw, digest_size=16).digest(), settings))

    def watched(self, pod: Pod, settings: Hashable) -> PodRequest:
        """The request of a pod that the API showed: its version says all of its content."""
        meta = pod.metadata
        return self._request(pod, (meta.uid, meta.resource_version, settings))

    def _request(self, pod: Pod, key: Hashable) -> PodRequest:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._parsed(pod)
            if len(self._known) > self._keep:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    def _parsed(self, pod: Pod) -> PodRequest:
        self.parsed += 1
        return self._parse(pod)
