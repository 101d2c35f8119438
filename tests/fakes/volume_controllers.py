"""The PersistentVolume controller and a provisioner, on the fake API server.

The controller binds a claim to the volume whose claimRef names it, by UID, and takes back a second
one that a scheduler, behind with what it saw, named it on. The provisioner makes a
volume for each claim that has a selected-node, on that node alone; a class of another provisioner
is answered by nobody.
"""

import asyncio
from typing import Any

from fakes.api_server import FakeApiServer

PROVISIONER = "made.example.com"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
_BOUND = {"pv.kubernetes.io/bind-completed": "yes"}

Json = dict[str, Any]


class VolumeControllers:
    """Both of them, as a task that looks at everything again and again."""

    def __init__(
        self, server: FakeApiServer, *, binds: bool = True, looks_every_s: float = 0.005
    ) -> None:
        self.binds, self._looks_every_s = binds, looks_every_s
        self._server = server
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "VolumeControllers":
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """Look again and again."""
        while True:
            if self.binds:
                for claim in self._all("persistentvolumeclaims"):
                    self._provision(claim)
                for volume in self._all("persistentvolumes"):
                    self._bind(volume)
            await asyncio.sleep(self._looks_every_s)

    def _all(self, resource: str) -> list[Json]:
        return self._server.store.all(self._server.kind(resource))

    def _provision(self, claim: Json) -> None:
        meta, spec = claim["metadata"], claim["spec"]
        node = meta.get("annotations", {}).get(SELECTED_NODE)
        name = f"made-{meta['uid']}"
        classes = {each["metadata"]["name"]: each for each in self._all("storageclasses")}
        made = any(each["metadata"]["name"] == name for each in self._all("persistentvolumes"))
        of_class = classes.get(spec.get("storageClassName", ""), {})
        if not node or made or spec.get("volumeName") or of_class.get("provisioner") != PROVISIONER:
            return
        on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        required = {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}
        body = {
            "metadata": {"name": name},
            "spec": {
                "capacity": spec["resources"]["requests"],
                "accessModes": spec["accessModes"],
                "storageClassName": spec["storageClassName"],
                "claimRef": {field: meta[field] for field in ("namespace", "name", "uid")},
                "nodeAffinity": {"required": required},
            },
            "status": {"phase": "Available"},
        }
        self._server.add("persistentvolumes", body)

    def _bind(self, volume: Json) -> None:
        ref, name = volume["spec"].get("claimRef"), volume["metadata"]["name"]
        if not ref or not ref.get("uid"):
            return
        claims = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): each
            for each in self._all("persistentvolumeclaims")
        }
        claim = claims.get((ref["namespace"], ref["name"]))
        if claim is None or claim["metadata"]["uid"] != ref["uid"]:
            return
        if claim["spec"].get("volumeName"):
            self._take_back(volume, claim["spec"]["volumeName"])
            return
        self._server.update("persistentvolumes", name, {"status": {"phase": "Bound"}})
        bound = {
            "metadata": {"annotations": _BOUND},
            "spec": {"volumeName": name},
            "status": {"phase": "Bound"},
        }
        self._server.update("persistentvolumeclaims", ref["name"], bound, ref["namespace"])

    def _take_back(self, volume: Json, bound_to: str) -> None:
        """A scheduler chose it too late: the claim is bound to another one, so it is free again."""
        meta = volume["metadata"]
        if meta["name"] == bound_to or _BY_CONTROLLER not in meta.get("annotations", {}):
            return
        free = {
            "metadata": {"annotations": {_BY_CONTROLLER: None}},
            "spec": {"claimRef": None},
            "status": {"phase": "Available"},
        }
        self._server.update("persistentvolumes", meta["name"], free)
