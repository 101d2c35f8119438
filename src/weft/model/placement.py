"""A placement: the node and GPUs that a pod gets, and how much of each GPU."""

import msgspec

from weft.model.request import HostPort
from weft.model.slowdown_limit import SlowdownLimit


class Share(msgspec.Struct, frozen=True, gc=False):
    """A GPU request's part of one GPU: `memory_mib` MiB and `milli` thousandths of its cores.

    `gpu_request` is the index into the pod's GPU requests, `gpu` the GPU's index on its node.
    """

    gpu_request: int
    gpu: int
    memory_mib: int
    milli: int
    uuid: str = ""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """A pod's node and GPU shares, and what else it takes of the node.

    `application`, `job_class`, `expected_s` and `slowdown_limit` describe the pod, as in
    `Shape`.
    """

    uid: str
    node: str
    shares: tuple[Share, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    ports: tuple[HostPort, ...] = ()
    application: str = ""
    job_class: str = ""
    expected_s: int = 0
    slowdown_limit: SlowdownLimit = ()
