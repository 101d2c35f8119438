"""A driver of dynamic resource allocation for a real kubelet: shares of GPUs by capacity.

It registers as drivers do, prepares what was allocated, and gives containers nothing. The messages
are the kubelet's own (`pluginregistration/v1`, `dra/v1`), as far as they are used.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kube_api import Api, Object

DRIVER, V1 = "gpu.weft.test", "resource.k8s.io/v1"
_DRA = "v1.DRAPlugin"
"""The interface as a driver names it when it registers; the service has a longer name."""
_DRA_SERVICE = f"k8s.io.kubelet.pkg.apis.dra.{_DRA}"
_REGISTRATION = "pluginregistration.Registration"
_REGISTERED_S = 60.0
_TEXT, _FLAG, _MESSAGE = 9, 8, 11
_FORMS: dict[str, list[tuple[str, int, bool]]] = {
    "Nothing": [],
    "PluginInfo": [
        *(("type", _TEXT, False), ("name", _TEXT, False), ("endpoint", _TEXT, False)),
        ("supported_versions", _TEXT, True),
    ],
    "RegistrationStatus": [("plugin_registered", _FLAG, False), ("error", _TEXT, False)],
    "Claim": [("namespace", _TEXT, False), ("uid", _TEXT, False), ("name", _TEXT, False)],
    "Claims": [("claims", _MESSAGE, True)],
    "Device": [
        *(("request_names", _TEXT, True), ("pool_name", _TEXT, False)),
        *(("device_name", _TEXT, False), ("cdi_device_ids", _TEXT, True)),
        ("share_id", _TEXT, False),
    ],
    "Prepared": [("devices", _MESSAGE, True), ("error", _TEXT, False)],
    "Entry": [("key", _TEXT, False), ("value", _MESSAGE, False)],
    "Answer": [("claims", _MESSAGE, True)],
}
"""Messages, and their fields in order: name, type, whether there are several."""
_OF = {"Claims": "Claim", "Prepared": "Device", "Entry": "Prepared", "Answer": "Entry"}
"""The message in each one's field. A map is sent as entries; unprepared claims need no more."""


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="dra", package="weft.test", syntax="proto3")
    for name, fields in _FORMS.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, several) in enumerate(fields, 1):
            made = message.field.add(
                name=field, number=number, type=kind, label=3 if several else 1
            )
            if kind == _MESSAGE:
                made.type_name = f".weft.test.{_OF[name]}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"weft.test.{name}"))
        for name in _FORMS
    }


_M = _messages()


class ClaimDriver:
    """One node's. `root` is the kubelet's folder; `prepared` are the UIDs of claims in use."""

    def __init__(self, api: Api, root: Path) -> None:
        self.prepared: set[str] = set()
        self._api = api
        self._folder, self._registry = root / "plugins" / DRIVER, root / "plugins_registry"
        self._registered = threading.Event()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """The kubelet has taken it when this begins."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._registry.mkdir(parents=True, exist_ok=True)
        claims = {"NodePrepareResources": self._prepare, "NodeUnprepareResources": self._unprepare}
        asked = {"GetInfo": self._info, "NotifyRegistrationStatus": self._status}
        servers = [
            _server(self._folder / "dra.sock", _DRA_SERVICE, claims, "Claims"),
            _server(self._registry / f"{DRIVER}-reg.sock", _REGISTRATION, asked, ""),
        ]
        try:
            assert self._registered.wait(_REGISTERED_S), "the kubelet did not register the driver"
            yield
        finally:
            for server in reversed(servers):
                server.stop(None).wait()

    def publish(self, node: str, cards: Sequence[tuple[str, int]]) -> None:
        """A slice of these cards, UUID and MiB, that claims share by memory."""
        devices = [
            {
                "name": f"card-{index}",
                "attributes": {"uuid": {"string": uuid}},
                "allowMultipleAllocations": True,
                "capacity": {"memory": {"value": f"{mib}Mi", "requestPolicy": _policy(mib)}},
            }
            for index, (uuid, mib) in enumerate(cards)
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices}
        chosen = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
        for kind, body in (("ResourceSlice", spec), ("DeviceClass", chosen)):
            meta = {"name": DRIVER}
            self._api.create({"apiVersion": V1, "kind": kind, "metadata": meta, "spec": body})

    def withdraw(self) -> None:
        """No slice and no class any more."""
        for kind in ("ResourceSlice", "DeviceClass"):
            self._api.delete(kind, DRIVER, version=V1)

    # --- what the kubelet asks ---

    def _info(self, _: Any) -> Any:
        endpoint = str(self._folder / "dra.sock")
        versions = [_DRA]
        return _M["PluginInfo"](
            type="DRAPlugin", name=DRIVER, endpoint=endpoint, supported_versions=versions
        )

    def _status(self, status: Any) -> Any:
        if status.plugin_registered:
            self._registered.set()
        return _M["Nothing"]()

    def _prepare(self, request: Any) -> Any:
        answer = _M["Answer"]()
        for asked in request.claims:
            claim = self._api.get("ResourceClaim", asked.name, asked.namespace, V1)
            assert claim["metadata"]["uid"] == asked.uid
            self.prepared.add(asked.uid)
            entry = answer.claims.add(key=asked.uid)
            for result in claim["status"]["allocation"]["devices"]["results"]:
                entry.value.devices.add(
                    request_names=[result["request"]],
                    pool_name=result["pool"],
                    device_name=result["device"],
                    share_id=result.get("shareID", ""),
                )
        return answer

    def _unprepare(self, request: Any) -> Any:
        answer = _M["Answer"]()
        for asked in request.claims:
            self.prepared.discard(asked.uid)
            answer.claims.add(key=asked.uid).value.SetInParent()
        return answer


def claim(name: str, memory_mib: int) -> Object:
    """A claim for so much memory of one card."""
    capacity = {"requests": {"memory": f"{memory_mib}Mi"}}
    exactly = {"deviceClassName": DRIVER, "capacity": capacity}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return {"apiVersion": V1, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def _policy(mib: int) -> Object:
    return {"default": f"{mib}Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}


def _server(socket: Path, service: str, calls: dict[str, Any], request: str) -> grpc.Server:
    forms = {"GetInfo": "Nothing", "NotifyRegistrationStatus": "RegistrationStatus"}
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            lambda message, _, call=call: call(message),
            _M[request or forms[name]].FromString,
            lambda answer: answer.SerializeToString(),
        )
        for name, call in calls.items()
    }
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    return server
