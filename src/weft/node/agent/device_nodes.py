"""What makes a GPU reachable in a container: CDI names where the node has them, else device nodes.

Device nodes come with their numbers, so that the runtime lets the container's cgroup use them, and
says so again whenever systemd sets the cgroup's rules anew. CDI names bring the driver's libraries
besides; whoever wrote the specification on the node (nvidia-ctk) knows better than we do.
"""

import logging
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.files.yaml_text import BrokenYamlError, load
from weft.model import BadInputError, WeftError
from weft.node.devices.reader import GpuDevice

log = logging.getLogger("weft.agent")

CDI_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CDI_KIND = "nvidia.com/gpu"

_MOST_BYTES = 8 << 20
_SUFFIXES = (".json", ".yaml", ".yml")


class MissingNodeError(WeftError):
    """A device node that a container needs is not there."""


class DeviceNode(NamedTuple):
    """A device node: its path, kind (c or b), numbers, mode and owner."""

    path: str
    type: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


def device_node(path: str) -> DeviceNode:
    """The device node at this path; `MissingNodeError` where there is none."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise MissingNodeError(f"device node {path}: {error.strerror}") from None
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
    kind = kinds.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        raise MissingNodeError(f"{path} is no device node")
    major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
    mode = stat.S_IMODE(found.st_mode)
    return DeviceNode(path, kind, major, minor, mode, found.st_uid, found.st_gid)


class CdiSpecs:
    """The CDI specifications on this node, read again when a file changes."""

    def __init__(self, dirs: Sequence[Path] = CDI_DIRS) -> None:
        self._dirs = tuple(dirs)
        self._stamps: tuple[tuple[str, int, int], ...] = ()
        self._names: frozenset[str] = frozenset()

    def names_of(self, devices: Iterable[GpuDevice]) -> tuple[str, ...]:
        """The devices' qualified names, by UUID or index; none unless all of them have one."""
        self._refresh()
        if not self._names:
            return ()
        found = []
        for device in devices:
            spellings = (device.gpu.uuid, str(device.gpu.index))
            name = next((name for name in spellings if name in self._names), None)
            if name is None:
                return ()
            found.append(f"{CDI_KIND}={name}")
        return tuple(found)

    def _refresh(self) -> None:
        stamps = tuple(self._look())
        if stamps == self._stamps:
            return
        self._stamps = stamps
        self._names = frozenset(name for path, _, _ in stamps for name in _names_in(Path(path)))

    def _look(self) -> Iterable[tuple[str, int, int]]:
        for folder in self._dirs:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if entry.name.endswith(_SUFFIXES):
                    try:
                        found = entry.stat()
                    except OSError:
                        continue
                    yield entry.path, found.st_mtime_ns, found.st_size


def _names_in(path: Path) -> list[str]:
    """The names of NVIDIA's GPUs in a specification; none of a file that cannot be read."""
    try:
        with path.open("rb") as file:
            spec: Any = load(file.read(_MOST_BYTES))
    except (OSError, BrokenYamlError, BadInputError) as error:
        log.warning("CDI specification %s is skipped: %s", path, error)
        return []
    if not isinstance(spec, dict) or spec.get("kind") != CDI_KIND:
        return []
    devices = spec.get("devices")
    listed = devices if isinstance(devices, list) else []
    return [str(each["name"]) for each in listed if isinstance(each, dict) and "name" in each]
