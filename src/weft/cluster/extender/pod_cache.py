"""Caches parsed pods, because kube-scheduler sends a whole pod with filter and again with
prioritize.

The cache key is the pod's whole content, never just the UID in the request: a request with another
pod's UID but different content is answered for that content, and does not change the other pod's
entry."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import blake2b

from weft.kube.pods import Pod
from weft.model import PodRequest

LARGE_BYTES = 65_536
"""Largest pod JSON that is cached. Pods have some kB; the limit bounds memory for any input."""


class PodCache:
    """Caches the requests of pods; the least recently used are dropped.

    A pod is parsed again when its content changes, or `settings` that influence how it is read.
    `parsed` counts parses."""

    def __init__(self, parse: Callable[[Pod], PodRequest], keep: int = 10_000) -> None:
        self.parsed = 0
        self._parse = parse
        self._keep = keep
        self._known: OrderedDict[Hashable, PodRequest] = OrderedDict()

    def sent(self, pod: Pod, raw: bytes, settings: Hashable) -> PodRequest:
        """Return the request of a pod sent as `raw`; `BadInputError` if the pod contradicts itself.

        A pod larger than `LARGE_BYTES` is not cached.
        """
        if len(raw) > LARGE_BYTES:
            return self._parsed(pod)
        return self._request(pod, (blake2b(raw, digest_size=16).digest(), settings))

    def watched(self, pod: Pod, settings: Hashable) -> PodRequest:
        """Return the request of a pod from the API server, identified by UID and resource
        version."""
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
