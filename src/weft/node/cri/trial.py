"""Tests whether the container runtime creates a container whose required plugin is away.

The trial makes a sandbox of its own, on the node's network and unknown to the kubelet, and in it
one container that requires a plugin that does not exist. The container is created or refused, but
never started, and the sandbox is always removed afterwards. The image is the smallest present on
the node.

Other plugins of the runtime see sandbox and container as those of any pod. The pod's UID is a hash,
like that of a static pod, which nobody looks up in the API server.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from grpc import StatusCode, aio

from weft.model import WeftError
from weft.model.annotations import REQUIRED_PLUGINS
from weft.node.agent.fail_closed import ClosedTrial
from weft.node.cri import cri_pb2 as cri

NAME = "weft-trial"
NAMESPACE = "kube-system"
NOBODY = "nobody"
"""The name of the plugin that does not exist."""

_RUNTIME, _IMAGES = "runtime.v1.RuntimeService", "runtime.v1.ImageService"
_SYSTEM_SLICE, _ROOT_CGROUP = "system.slice", "/"
_TIMEOUT_S = 20.0
_MOST_LETTERS = 300


class TrialError(WeftError):
    """The container runtime does not answer, or cannot do what the trial needs."""


async def try_closed(socket: Path, timeout_s: float = _TIMEOUT_S) -> ClosedTrial:
    """Run the trial at this socket of the runtime and return its outcome."""
    if not socket.exists():
        text = f"not tested: there is no {socket}; mount the container runtime's socket there"
        return ClosedTrial("unknown", text)
    async with aio.insecure_channel(f"unix://{socket}") as channel:
        service = _Service(channel, timeout_s)
        try:
            return await _tried(service)
        except TrialError as error:
            return ClosedTrial("unknown", f"the test could not be done: {error}")


class _Service:
    """The runtime's two gRPC services, with their messages by name."""

    def __init__(self, channel: aio.Channel, timeout_s: float) -> None:
        self._channel, self._timeout_s = channel, timeout_s

    async def ask(self, method: str, request: Any, service: str = _RUNTIME) -> Any:
        """Call a method; `TrialError` has the runtime's error text."""
        try:
            return await self.raw(method, request, service)
        except aio.AioRpcError as error:
            raise TrialError(f"{method}: {_said(error)}") from None

    async def raw(self, method: str, request: Any, service: str = _RUNTIME) -> Any:
        """Call a method; raises gRPC's own error."""
        call = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(cri, f"{method}Response").FromString,
        )
        return await call(request, timeout=self._timeout_s)


async def _tried(service: _Service) -> ClosedTrial:
    image = await _any_image(service)
    config = _sandbox(await _cgroup_parent(service))
    async with _running(service, config) as sandbox:
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox,
            config=cri.ContainerConfig(
                metadata=cri.ContainerMetadata(name=NAME),
                image=cri.ImageSpec(image=image),
                command=["never-started"],
            ),
            sandbox_config=config,
        )
        try:
            await service.raw("CreateContainer", request)
        except aio.AioRpcError as error:
            said = _said(error)
            if NOBODY in said:
                return ClosedTrial("closed", f"the runtime refused: {said}")
            raise TrialError(f"CreateContainer: {said}") from None
    return ClosedTrial("open", "the runtime created a container whose required plugin was away")


async def _any_image(service: _Service) -> str:
    """Return the smallest image on the node, as its content does not matter."""
    answer = await service.ask("ListImages", cri.ListImagesRequest(), _IMAGES)
    if not answer.images:
        raise TrialError("there is no image on the node")
    return str(min(answer.images, key=lambda image: (image.size, image.id)).id)


async def _cgroup_parent(service: _Service) -> str:
    """Return the parent of the sandbox's cgroup: systemd needs a slice, and `system.slice` always
    exists.

    Without systemd return the root: containerd's default would create a parent that outlives the
    trial. For older runtimes, which do not report their cgroup driver and have no validators,
    return "".
    """
    try:
        answer = await service.raw("RuntimeConfig", cri.RuntimeConfigRequest())
    except aio.AioRpcError as error:
        if error.code() == StatusCode.UNIMPLEMENTED:
            return ""
        raise TrialError(f"RuntimeConfig: {_said(error)}") from None
    return _SYSTEM_SLICE if answer.linux.cgroup_driver == cri.SYSTEMD else _ROOT_CGROUP


def _sandbox(cgroup_parent: str) -> cri.PodSandboxConfig:
    node = cri.NamespaceOption(network=cri.NODE)
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=NAME, uid=secrets.token_hex(16), namespace=NAMESPACE),
        annotations={REQUIRED_PLUGINS: f"[{NOBODY}]"},
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent,
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=node),
        ),
    )


@contextlib.asynccontextmanager
async def _running(service: _Service, config: cri.PodSandboxConfig) -> AsyncIterator[str]:
    """Run a sandbox for the duration of the context, and yield its id; removing the sandbox removes
    its containers."""
    request = cri.RunPodSandboxRequest(config=config)
    starting = asyncio.ensure_future(service.ask("RunPodSandbox", request))
    try:
        yield (await asyncio.shield(starting)).pod_sandbox_id
    finally:
        # If cancelled during the start, wait for it, as nobody else would remove the sandbox. A
        # kubelet may already have removed it as unknown.
        with contextlib.suppress(TrialError):
            await _remove(service, (await starting).pod_sandbox_id)


async def _remove(service: _Service, sandbox: str) -> None:
    with contextlib.suppress(TrialError):
        await service.ask("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    remove = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
    await service.ask("RemovePodSandbox", remove)


def _said(error: aio.AioRpcError) -> str:
    return str(error.details() or error.code().name)[:_MOST_LETTERS]
