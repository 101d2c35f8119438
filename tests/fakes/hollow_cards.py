"""Which GPUs of its node a hollow pod has, and how much of each. Pure."""

from collections.abc import Container, Mapping

from weft.dialects.dialect import DialectSettings
from weft.dialects.nvidia import Nvidia
from weft.dialects.registry import parse_pod, read_placement
from weft.model import BadInputError, Node, PodManifest

Given = Mapping[int, int]
"""MiB by GPU index."""


def assigned_devices(
    pod: PodManifest, node: Node, taken: Container[int], settings: DialectSettings
) -> tuple[Given, str]:
    """The GPUs that a pod's marks give it; and a warning where they leave that open, "" if not.

    Nobody writes down the cards of `nvidia.com/gpu` pods that another scheduler placed: they get
    the first that are not `taken`, as far as there are any.
    """
    try:
        request = parse_pod(pod, settings)
        placement = read_placement(pod, node, settings)
    except BadInputError as error:
        return {}, f"its request cannot be read, so it has no GPU: {error}"
    if placement is not None:
        devices: dict[int, int] = {}
        for share in placement.shares:
            devices[share.gpu] = devices.get(share.gpu, 0) + share.memory_mib
        return devices, ""
    if request.dialect != Nvidia.name:
        return {}, "no mark says which GPU it has, so it uses none"
    count = sum(asked.count for asked in request.shape.gpu_requests)
    idle = [gpu for gpu in node.gpus if gpu.parent is None and gpu.index not in taken][:count]
    short = f"it has {len(idle)} of {count} cards: the others are taken"
    return {gpu.index: gpu.memory_mib for gpu in idle}, short if len(idle) < count else ""
