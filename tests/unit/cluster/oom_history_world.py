"""A cluster on a fake API server whose jobs run out of memory, for the tests beside this file."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import live_world
from live_world import Json, World, living, pod, until

from fakes.api_clock import VirtualClock
from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cluster.stores.oom_history_store import OomHistoryEntry, entry_of, key_of
from weft.core.engine import OomRecord
from weft.core.policies.fgd import Fgd
from weft.kube.client import ApiClient
from weft.kube.configmap import OwnConfigMap

JOB, KEY = "d/Job/train", "d.Job.train"
NAMED = {"name": "weft-lessons", "namespace": "kube-system"}
CUDA = "torch.OutOfMemoryError: CUDA out of memory."


def made_by(raw: Json, kind: str = "Job", name: str = "train") -> Json:
    """The pod, as that owner makes it."""
    raw["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    return raw


def terminated(code: int = 1, reason: str = "Error") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": CUDA}}


def stored(server: FakeApiServer) -> dict[str, str]:
    """The ConfigMap's data, as it is."""
    return live_world.stored(server, NAMED["name"])


def entry(server: FakeApiServer, workload: str = JOB) -> OomHistoryEntry | None:
    text = stored(server).get(key_of(workload))
    return entry_of(key_of(workload), text) if text is not None else None


class Scene(World):
    """A cluster on a fake API server, whose lessons are kept there."""

    def __init__(self, server: FakeApiServer, client: ApiClient, **how: Any) -> None:
        config_map = OwnConfigMap(client, NAMED["namespace"], NAMED["name"])
        super().__init__(server, client, Fgd(), config_map=config_map, **how)

    @property
    def known(self) -> dict[str, OomRecord]:
        return self.live.engine.oom_history.known

    async def bound(self, name: str, memory_mib: int = 2_000) -> None:
        """Add a pod of the job and wait until the watch shows it bound."""
        self.server.add("pods", made_by(pod(name, memory_mib)))
        await until(lambda: (p := self.live.pod("d", name)) and p.spec.node_name)

    def charged(self, name: str) -> tuple[int, int]:
        """MiB and thousandths of a GPU that its binding says."""
        marks = self.server.get("pods", name, "d")["metadata"]["annotations"]
        (share,) = json.loads(marks["weft.dev/placement"])["shares"]
        return share[2], share[3]

    def fails(self, name: str, restarts: int | None = None, **how: Any) -> None:
        """Lets the pod run out of memory: for good, or to run again for the so-many-th time."""
        last = terminated(**how)
        one: Json = {"name": "c", "restartCount": restarts or 0}
        one |= {"state": last} if restarts is None else {"lastState": last, "state": {}}
        status: Json = {"containerStatuses": [one]}
        status["phase"] = "Failed" if restarts is None else "Running"
        self.server.update("pods", name, {"status": status}, "d")


def holders(made: Scene) -> list[str]:
    return list(made.live.engine.ledger.holdings)


@asynccontextmanager
async def scene(
    server: FakeApiServer, *, lead: bool = True, quietly: bool = True, **how: Any
) -> AsyncIterator[Scene]:
    """A process's life."""
    async with client_of(server, VirtualClock(auto=True)) as client:
        made = Scene(server, client, **how)
        async with living(made, lead=lead, quietly=quietly):
            yield made


def put(server: FakeApiServer, **data: str) -> None:
    """Somebody else writes into the ConfigMap, or makes it."""
    data = {key.replace("__", "."): text for key, text in data.items()}
    if stored(server):
        server.update("configmaps", NAMED["name"], {"data": data}, NAMED["namespace"])
    else:
        server.add("configmaps", {"metadata": NAMED, "data": data})


def oom_record(workload: str = JOB, times: int = 1, least_mib: int = 1_000, **more: Any) -> str:
    return json.dumps({"workload": workload, "times": times, "least_mib": least_mib, **more})
