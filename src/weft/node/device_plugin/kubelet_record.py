"""The kubelet's own record of devices: which container of which pod holds which IDs, and the answer
to Allocate with which the container is started.

The kubelet writes the record before it starts the containers concerned, replaces it as a whole, and
keeps it over restarts of itself and of the machine. The record names pods by UID and includes init
containers, which the kubelet's pod resources interface omits. Its format is internal to the kubelet
but the same since Kubernetes 1.20; if the record cannot be read, no share is delivered.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from weft.files.reading import UNDECODABLE
from weft.model import WeftError
from weft.node.device_plugin import device_plugin_pb2 as plugin

FILE = "kubelet_internal_checkpoint"


class KubeletRecordError(WeftError):
    """The kubelet's record of devices cannot be read."""


class HeldDevices(NamedTuple):
    """The devices of one resource that a container holds, and the answer to Allocate for them."""

    pod: str
    container: str
    resource: str
    ids: frozenset[str]
    answered: bytes

    @property
    def answer(self) -> plugin.ContainerAllocateResponse:
        """The answer, decoded on demand as few are needed. `KubeletRecordError` if that fails."""
        try:
            return plugin.ContainerAllocateResponse.FromString(self.answered)
        except DecodeError as error:
            text = f"the kubelet's answer to container {self.container} cannot be read: {error}"
            raise KubeletRecordError(text) from error


class _Entry(msgspec.Struct):
    PodUID: str = ""
    ContainerName: str = ""
    ResourceName: str = ""
    DeviceIDs: dict[str, list[str]] | None = None
    AllocResp: bytes = b""


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_Entry] | None = None


class _File(msgspec.Struct):
    Data: _Data


class KubeletRecord:
    """The record in the kubelet's plugin folder; read again when the file changes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._stamp: tuple[int, int, int] = (0, 0, 0)
        self._held: tuple[HeldDevices, ...] = ()

    def held(self) -> tuple[HeldDevices, ...]:
        """Return every container's devices; none before the kubelet has allocated any."""
        try:
            status = self._path.stat()
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
            if stamp != self._stamp:
                self._held = _held_in(self._path.read_bytes())
                self._stamp = stamp
        except FileNotFoundError:
            self._held, self._stamp = (), (0, 0, 0)
        except (OSError, *UNDECODABLE) as error:
            raise KubeletRecordError(f"{self._path} cannot be read: {error}") from error
        return self._held


def _held_in(text: bytes) -> tuple[HeldDevices, ...]:
    entries = msgspec.json.decode(text, type=_File).Data.PodDeviceEntries or ()
    return tuple(
        HeldDevices(
            entry.PodUID,
            entry.ContainerName,
            entry.ResourceName,
            frozenset().union(*(entry.DeviceIDs or {}).values()),
            entry.AllocResp,
        )
        for entry in entries
    )
