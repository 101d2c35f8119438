"""Pods that ask alike are read once: a workload's pods differ in their names and little else.

What is kept depends on nothing but the pod's own words and the settings, so nothing makes it stale.
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from weft.cluster.state.workload_name import workload_of
from weft.dialects.dialect import DialectSettings
from weft.dialects.requests import timestamp_ns
from weft.kube.pods import Pod
from weft.model import Constraints, PodRequest

Read = Callable[[Pod, DialectSettings, Constraints], PodRequest]

LARGE_BYTES = 65_536
"""Largest pod spec that is kept. Pods have some kB; larger ones would fill the memory."""

_encode = msgspec.msgpack.Encoder().encode


class ParseCache:
    """`read`, remembering its last `keep` different answers."""

    def __init__(self, read: Read, keep: int = 256) -> None:
        self._read, self._keep = read, keep
        self._known: OrderedDict[bytes, tuple[Constraints, PodRequest]] = OrderedDict()

    def read(self, pod: Pod, settings: DialectSettings, constraints: Constraints) -> PodRequest:
        """Read this pod, or one like it; whatever `read` raises comes through, and is not kept."""
        meta = pod.metadata
        if not (meta.uid and meta.name and meta.namespace):  # no pod of the API
            return self._read(pod, settings, constraints)
        key = _encode((settings, meta.labels, meta.annotations, pod.spec))
        known = self._known.get(key)
        if known is None or known[0] != constraints:
            known = constraints, self._read(pod, settings, constraints)
            if len(key) <= LARGE_BYTES:
                self._known[key] = known
            if len(self._known) > self._keep:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return replace(
            known[1],
            uid=meta.uid,
            name=meta.name,
            namespace=meta.namespace,
            created_ns=timestamp_ns(meta.creation_timestamp),
            workload=workload_of(pod),
        )
