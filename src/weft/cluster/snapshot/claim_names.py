"""Replaces names in ResourceSlices and ResourceClaims, for `anonymous`."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from weft.cluster.snapshot.pseudonyms import Pseudonyms
from weft.cluster.state.slices import local
from weft.kube.dra import ResourceSlice

Json = dict[str, Any]
_MAKERS = re.compile(r"[a-z]{1,8}-[0-9]{1,4}(-mig-[0-9a-z-]{1,40})?")
"""Device names as drivers make them: they identify a GPU, but not its owner."""
_PODS = "pods"


def uuids_in(slices: Iterable[ResourceSlice]) -> Iterable[str]:
    """Yield the UUIDs of GPUs in slices."""
    for device in (each for shown in slices for each in shown.spec.devices or ()):
        for name, value in (device.attributes or {}).items():
            if local(name).endswith("uuid") and value.string:
                yield value.string


class ClaimNames:
    """Renames slices and claims; `plain` renames any object by its fields' names, `expressions` the
    terms of a selector."""

    def __init__(
        self,
        names: Pseudonyms,
        plain: Callable[[Json], Json],
        expressions: Callable[[list[Json]], list[Json]],
    ) -> None:
        self._names, self._plain, self._expressions = names, plain, expressions

    def of_slice(self, shown: Json) -> Json:
        """Return a ResourceSlice with renamed fields."""
        spec = dict(shown.get("spec", {}))
        devices = spec.pop("devices", [])
        renamed = self._plain({**shown, "spec": spec})
        if devices:
            renamed["spec"]["devices"] = [self._device(each) for each in devices]
        return renamed

    def _device(self, device: Json) -> Json:
        attributes, capacity = device.get("attributes"), device.get("capacity")
        rest = {k: v for k, v in device.items() if k not in ("attributes", "capacity", "name")}
        renamed = {"name": self._device_name(device.get("name", "")), **self._plain(rest)}
        if attributes:
            renamed["attributes"] = {
                name: {**value, "string": self._names.gpu(value["string"])}
                if local(name).endswith("uuid") and "string" in value
                else value
                for name, value in attributes.items()
            }
        return renamed | ({"capacity": capacity} if capacity else {})

    def _device_name(self, name: str) -> str:
        return name if _MAKERS.fullmatch(name) else self._names.name(name)

    def of_claim(self, claim: Json) -> Json:
        """Return a ResourceClaim with renamed fields."""
        renamed = self._plain({"metadata": claim.get("metadata", {})})
        if spec := claim.get("spec"):
            requests = spec.get("devices", {}).get("requests", [])
            renamed["spec"] = {"devices": {"requests": [self._plain(each) for each in requests]}}
        if status := claim.get("status"):
            renamed["status"] = self._status(status)
        return renamed

    def _status(self, status: Json) -> Json:
        renamed: Json = {}
        if allocation := status.get("allocation"):
            renamed["allocation"] = held = dict(allocation)
            if results := allocation.get("devices", {}).get("results"):
                held["devices"] = {"results": [self._result(each) for each in results]}
            if selector := allocation.get("nodeSelector"):
                held["nodeSelector"] = self._plain(selector)
        if users := status.get("reservedFor"):
            renamed["reservedFor"] = [self._user(each) for each in users]
        return renamed

    def _result(self, result: Json) -> Json:
        renamed = dict(result)
        for field, rename in (
            ("request", self._request),
            ("driver", self._names.name),
            ("pool", self._names.name),
            ("device", self._device_name),
        ):
            if renamed.get(field):
                renamed[field] = rename(renamed[field])
        return renamed

    def _request(self, request: str) -> str:
        return "/".join(map(self._names.name, request.split("/")))

    def _user(self, user: Json) -> Json:
        kind = user.get("resource", "")
        renamed = self._plain({k: v for k, v in user.items() if k != "resource"})
        if kind:
            renamed["resource"] = kind if kind == _PODS else self._names.name(kind)
        return renamed
