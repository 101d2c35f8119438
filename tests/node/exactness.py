"""Compares a container's inside with its pod's record: that, and nothing else, must be there."""

from kube_api import Object
from played_gpus import PlayedGpus
from real_node import RealNode

from weft.model.annotations import DELIVERY
from weft.model.delivery import DeliveryRecord, decode_delivery

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def record_of(pod: Object) -> DeliveryRecord:
    """The delivery record of the pod's Binding."""
    return decode_delivery(pod["metadata"]["annotations"][DELIVERY])


def containers_of(pod: Object) -> list[str]:
    """The names of all its containers."""
    spec = pod["spec"]
    return [one["name"] for one in (*spec.get("initContainers", ()), *spec["containers"])]


def is_exact(node: RealNode, gpus: PlayedGpus, pod: Object, record: DeliveryRecord) -> None:
    """Every container of the pod has what the record says, and nothing else of GPUs."""
    assert record.pod == pod["metadata"]["uid"]
    for name in containers_of(pod):
        where = f"{pod['metadata']['name']}, container {name}"
        inside, part = node.inside(pod, name), record.containers.get(name)
        shares = part.shares if part is not None else ()
        assert inside.gpus().keys() == gpus.devices_of([s.gpu for s in shares]), where
        assert all(one.may_open for one in inside.gpus().values()), where
        visible = ",".join(share.uuid for share in shares) or "void"
        wanted = {VISIBLE: visible, **(part.env if part is not None else {})}
        found = {key: inside.env.get(key) for key in wanted}
        assert found == wanted, f"{where}: {found}, not {wanted}"
