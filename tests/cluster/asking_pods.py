"""Pods drawn at random that ask for GPUs in some system's words, or almost, and who schedules them
in a namespace that opted in."""

import json
import random
from collections.abc import Iterator

from kube_api import Api, Object

from weft.dialects import registry
from weft.dialects.catalog import ASKING_LABELS, NONE, RESOURCES
from weft.dialects.dialect import DialectSettings
from weft.kube.codec import PODS
from weft.model import BadInputError, PodManifest
from weft.model.annotations import CLASS, GPU_MODEL

OPTED_IN = "opted-in"
_AMOUNTS = ("0", 0, "0k", "0Ki", "1", 2, "300", "2k")
_NAMES = (*RESOURCES, "example.org/fpga", "nvidia.com/mig-1g.5gb", "amd.com/gpu")
_LABELS = (*sorted(ASKING_LABELS), "genius/priority", "app")
_ANNOTATIONS = (GPU_MODEL, CLASS, "nvidia.com/use-gputype", "example.org/note")


def pod(name: str, **metadata: dict[str, str]) -> Object:
    """A pod that asks for nothing."""
    container = {"name": "main", "image": "example.org/cuda"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container]},
    }


def random_pods(seed: int, count: int) -> Iterator[Object]:
    """So many, some of which name a scheduler of their own: `somebody`."""
    chance = random.Random(seed)
    for number in range(count):
        body = pod(f"random-{number}")
        containers: list[Object] = [
            {"name": f"c{at}", "image": "example.org/x"} for at in range(chance.randint(1, 3))
        ]
        for container in containers:
            if chance.random() < 0.4:
                amounts = {chance.choice(_NAMES): chance.choice(_AMOUNTS)}
                both = {"limits": amounts, "requests": amounts}
                container["resources"] = chance.choice((both, {"limits": amounts}))
        split = chance.randint(1, len(containers))
        body["spec"] = {"containers": containers[:split], "initContainers": containers[split:]}
        if chance.random() < 0.3:
            body["metadata"]["labels"] = {chance.choice(_LABELS): "1"}
        if chance.random() < 0.3:
            body["metadata"]["annotations"] = {chance.choice(_ANNOTATIONS): "1"}
        if chance.random() < 0.2:
            body["spec"]["schedulerName"] = "somebody"
        yield body


def made_of(api: Api, path: str, body: Object) -> Object:
    """The pod as it would be, with numbers as the server writes them."""
    made: Object = api.request("POST", path, body, query={"dryRun": "All"})
    return made


def scheduler_of(api: Api, path: str, body: Object) -> str:
    """The schedulerName that the pod would get."""
    return str(made_of(api, path, body)["spec"]["schedulerName"])


def check_agreement(user: Api, elsewhere: str, *, seed: int, count: int) -> None:
    """Asserts that the server and `registry.choose` agree on who asks, and that nobody is touched
    who names a scheduler or whose namespace did not opt in."""
    asked = 0
    for body in random_pods(seed, count):
        made = made_of(user, user.path("Pod", OPTED_IN), body)
        asks = _asks(PODS.decode(json.dumps(made).encode()))
        named = body["spec"].get("schedulerName", "")
        expected = named or ("weft" if asks else "default-scheduler")
        assert made["spec"]["schedulerName"] == expected, body
        asked += asks
        there = scheduler_of(user, user.path("Pod", elsewhere), body)
        assert there in ("somebody", "default-scheduler")
    assert count // 4 < asked < count


def _asks(manifest: PodManifest) -> bool:
    """Tells whether the scheduler would take it for one that asks; of two systems at once it says
    so."""
    try:
        return registry.choose(manifest, DialectSettings())[0] is not NONE
    except BadInputError:
        return True
