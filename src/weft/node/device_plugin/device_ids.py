"""Device IDs: one for each unit of a resource, `<GPU index>-<number>`, as short as possible.

A kubelet counts a resource by its devices and accepts no list beyond 4 MiB. Which IDs it picks does
not decide which GPU a container gets: that was decided before. Still, IDs of the GPU assigned to
the next pod are preferred, because the kubelet aligns CPUs with the NUMA nodes of these IDs.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from weft.dialects.advertised import AdvertisedCard
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin.kubelet_api import HEALTHY, UNHEALTHY


def device_list(
    cards: Iterable[AdvertisedCard], resource: str, numa: Mapping[int, int]
) -> plugin.ListAndWatchResponse:
    """Build the list of all devices of a resource; `numa` has the NUMA node of each GPU that has
    one."""
    response = plugin.ListAndWatchResponse()
    for card in cards:
        index = card.gpu.index
        topology = None
        if index in numa:
            topology = plugin.TopologyInfo(nodes=[plugin.NUMANode(ID=numa[index])])
        health = HEALTHY if card.in_service else UNHEALTHY
        response.devices.extend(
            plugin.Device(ID=f"{index}-{number}", health=health, topology=topology)
            for number in range(card.units.get(resource, 0))
        )
    return response


def gpu_of(device_id: str) -> int:
    """Return the index of the GPU that the ID belongs to; -1 for an ID not of this form."""
    index, dash, number = device_id.partition("-")
    return int(index) if dash and index.isdecimal() and number.isdecimal() else -1


def preferred_ids(
    available: Collection[str], must: Sequence[str], size: int, gpus: Sequence[int]
) -> list[str]:
    """Choose `size` of the available IDs, including those in `must`, from `gpus` if possible.

    Further IDs come from as few GPUs as possible, preferring those with just enough IDs left.
    """
    chosen = list(dict.fromkeys(must))[:size]
    if not chosen and len(gpus) == 1:  # the usual case, with up to 100,000 available
        prefix = f"{gpus[0]}-"
        own = [device_id for device_id in available if device_id.startswith(prefix)]
        if len(own) >= size:
            return heapq.nsmallest(size, own, key=_by_number)
    taken = set(chosen)
    begun = {gpu_of(device_id) for device_id in chosen}
    left: dict[int, list[str]] = {}
    for device_id in available:
        if device_id not in taken:
            left.setdefault(gpu_of(device_id), []).append(device_id)

    def order(gpu: int) -> tuple[object, ...]:
        wanted = gpus.index(gpu) if gpu in gpus else len(gpus)
        enough = len(left[gpu]) >= size - len(chosen)
        # The fewest that are enough; if none is enough, the most, so that few GPUs are used.
        count = len(left[gpu]) if enough else -len(left[gpu])
        return wanted, gpu not in begun, not enough, count, gpu

    for gpu in sorted(left, key=order):
        if len(chosen) >= size:
            break
        chosen += heapq.nsmallest(size - len(chosen), left[gpu], key=_by_number)
    return chosen


def _by_number(device_id: str) -> tuple[int, str]:
    return len(device_id), device_id
