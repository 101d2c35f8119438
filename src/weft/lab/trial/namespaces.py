"""Creates and removes a turn's namespace.

Every object of an experiment is labelled with its name. So if a turn is killed, the next start
finds and removes all that it left."""

import msgspec

from weft.kube.client import ApiClient
from weft.kube.codec import SkippedObjects
from weft.kube.errors import NotFoundError
from weft.lab.trial.objects import NAMESPACES
from weft.model import BadInputError, ObjectMeta
from weft.model.annotations import EXPERIMENT, TURN

_GONE_WITHIN_S, _LOOK_S = 300.0, 0.5


class TurnLabels(msgspec.Struct, frozen=True):
    """Labels of a turn's objects: the experiment's name, and the turn as a hash of its cell."""

    experiment: str
    turn: str

    @property
    def namespace(self) -> str:
        """Name of the turn's namespace."""
        return f"weft-{self.experiment[:45].rstrip('-')}-{self.turn[:8]}"

    def labels(self) -> dict[str, str]:
        """Return the labels for every object that the turn creates."""
        return {EXPERIMENT: self.experiment, TURN: self.turn}


async def make_namespace(client: ApiClient, labels: TurnLabels) -> ObjectMeta:
    """Create the turn's namespace, and return its metadata."""
    metadata = {"name": labels.namespace, "labels": labels.labels()}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    return (await client.create(NAMESPACES, "", msgspec.json.encode(body))).metadata


async def remove_namespaces(client: ApiClient, experiment: str) -> list[str]:
    """Remove all namespaces of earlier turns of this experiment, and return their names.

    `BadInputError` if one is not gone in time: its pods may still hold GPUs."""
    query = {"labelSelector": f"{EXPERIMENT}={experiment}"}
    body = await client.call("GET", NAMESPACES.of(""), query=query)
    names = [each.metadata.name for each in NAMESPACES.decode_page(body, SkippedObjects()).items]
    for name in names:
        await remove_namespace(client, name)
    return names


async def remove_namespace(client: ApiClient, name: str) -> None:
    """Delete the namespace, and return once it is gone."""
    deadline_s = client.clock.monotonic() + _GONE_WITHIN_S
    try:
        await client.delete(NAMESPACES, "", name)
        while client.clock.monotonic() < deadline_s:
            await client.clock.sleep(_LOOK_S)
            await client.get(NAMESPACES, "", name)
    except NotFoundError:
        return
    what = f"is still there {_GONE_WITHIN_S:g} s after its deletion; `kubectl get namespace {name} "
    raise BadInputError(f"namespace {name}", f"{what}-o yaml` shows what blocks it")
