"""Makes a GPU usable in a container: by CDI names if the node has valid ones, else by device nodes.

Device nodes are passed with their numbers, so that the runtime allows them in the container's
cgroup, and again whenever systemd resets the cgroup's rules. CDI names also bring the driver's
libraries, from a specification that another program writes (nvidia-ctk). The specification may be
older than the driver or the cards: a name is used only if it brings the device nodes of exactly
that GPU.
"""

import logging
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.files.yaml_text import BrokenYamlError, load
from weft.model import BadInputError, WeftError
from weft.node.devices.reader import GpuDevice

log = logging.getLogger("weft.agent")

CDI_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CDI_KIND = "nvidia.com/gpu"

_MOST_BYTES = 8 << 20
_SUFFIXES = (".json", ".yaml")
"""File name suffixes of the CDI specifications that container runtimes read."""
_GPU_NODE = re.compile(r"/dev/nvidia\d+|/dev/nvidia-caps/nvidia-cap\d+")
_CAPABILITIES = "/dev/nvidia-caps/"


class MissingNodeError(WeftError):
    """A device node that a container needs does not exist."""


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
    """Return the device node at this path; `MissingNodeError` if there is none."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise MissingNodeError(f"device node {path}: {error.strerror}") from None
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
    kind = kinds.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise MissingNodeError(f"{path} is not a device node")
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    mode = stat.S_IMODE(status.st_mode)
    return DeviceNode(path, kind, major, minor, mode, status.st_uid, status.st_gid)


class CdiSpecs:
    """The CDI specifications on this node, each read again when its file changes.

    `dirs` are in the runtime's order: a later folder overrides names of an earlier one. Files whose
    names begin with `ignored` are skipped. `heeded` says whether the runtime applies CDI names;
    while it does not, no name is used. `problems` lists unusable files and names found so far.
    """

    def __init__(
        self,
        dirs: Sequence[Path],
        *,
        heeded: bool,
        ignored: str = "",
    ) -> None:
        self._dirs, self._ignored, self.heeded = tuple(dirs), ignored, heeded
        self.problems: list[str] = []
        self._files: dict[_File, _Specification] = {}
        self._nodes: dict[str, frozenset[str]] = {}
        self._told: set[str] = set()

    def names_of(self, devices: Iterable[GpuDevice]) -> tuple[str, ...]:
        """Return the devices' qualified CDI names, made from UUIDs or indexes; empty unless every
        device has a name."""
        if not self.heeded:
            return ()
        self._refresh()
        if not self._nodes:
            return ()
        names = [self._name_of(device) for device in devices]
        return tuple(f"{CDI_KIND}={name}" for name in names) if all(names) else ()

    def _name_of(self, device: GpuDevice) -> str:
        """Return the name that brings exactly this device; "" if there is none."""
        for name in (device.gpu.uuid, str(device.gpu.index)):
            brought = self._nodes.get(name)
            if brought is None:
                continue
            if _are_of(brought, device):
                return name
            if name not in self._told:
                self._told.add(name)
                nodes = (", ".join(sorted(each)) for each in (brought, _gpu_nodes(device.paths)))
                text = f"{CDI_KIND}={name} brings {next(nodes) or 'no device node'}"
                self._problem(f"{text}, but GPU {device.gpu.index} has {next(nodes) or 'none'}")
        return ""

    def _refresh(self) -> None:
        """Read changed files. Drop names that occur twice in one folder, as runtimes do not resolve
        them."""
        listed = [list(self._look(folder)) for folder in self._dirs]
        files = [file for folder in listed for file in folder]
        if files == list(self._files):
            return
        before, self.problems = set(self.problems), []
        self._files = {f: self._files.get(f) or _read(f) for f in files}
        self._nodes, conflicts = {}, set[str]()
        self._told.clear()
        for specification in self._files.values():
            if specification.problem:
                self._problem(specification.problem, before)
        for folder in listed:
            of_folder: dict[str, frozenset[str]] = {}
            for file in folder:
                for name, nodes in self._files[file].nodes.items():
                    if name in of_folder:
                        conflicts.add(name)
                    of_folder[name] = nodes
            self._nodes |= of_folder
        for name in sorted(conflicts):
            del self._nodes[name]
            text = f"{CDI_KIND}={name} is in two specifications of one folder"
            self._problem(f"{text}: the runtime does not resolve it", before)

    def _problem(self, text: str, known: Collection[str] = ()) -> None:
        self.problems.append(text)
        if text not in known:
            log.warning("CDI: %s", text)

    def _look(self, folder: Path) -> Iterator["_File"]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if not entry.name.endswith(_SUFFIXES):
                continue
            if self._ignored and entry.name.startswith(self._ignored):
                continue
            try:
                status = entry.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield _File(entry.path, status.st_ino, status.st_mtime_ns, status.st_size)


class _File(NamedTuple):
    """A file's identity and time of change when it was read."""

    path: str
    inode: int
    written_ns: int
    size: int


class _Specification(NamedTuple):
    """Contents of a CDI file: for each CDI device name of an NVIDIA GPU, the GPU device nodes
    that a container gets by that name; or what is wrong with the file."""

    nodes: Mapping[str, frozenset[str]] = {}
    problem: str = ""


def _read(file: _File) -> _Specification:
    try:
        with Path(file.path).open("rb") as opened:
            spec: Any = load(opened.read(_MOST_BYTES))
    except (OSError, BrokenYamlError, BadInputError) as error:
        return _Specification(problem=f"{file.path} cannot be read: {error}")
    if not isinstance(spec, dict) or spec.get("kind") != CDI_KIND:
        return _Specification()
    devices = spec.get("devices")
    listed = devices if isinstance(devices, list) else []
    named = [each for each in listed if isinstance(each, dict) and "name" in each]
    nodes_of = {str(each["name"]): _nodes_of(spec) | _nodes_of(each) for each in named}
    if len(nodes_of) < len(named):
        return _Specification(problem=f"{file.path} names a device twice: runtimes skip the file")
    return _Specification(nodes_of)


def _nodes_of(part: Mapping[str, Any]) -> frozenset[str]:
    """Return the GPU device nodes that a specification, or a device in it, brings."""
    edits = part.get("containerEdits")
    nodes = edits.get("deviceNodes") if isinstance(edits, dict) else None
    listed = nodes if isinstance(nodes, list) else []
    return _gpu_nodes(str(node.get("path")) for node in listed if isinstance(node, dict))


def _are_of(nodes: frozenset[str], device: GpuDevice) -> bool:
    """Return True if these device nodes are exactly those of the device: of its card, and of its
    MIG instance if known."""
    own = _gpu_nodes(device.paths)
    instance = _capabilities(own)
    same_card = nodes - _capabilities(nodes) == own - instance
    return same_card and (not instance or instance == _capabilities(nodes))


def _capabilities(nodes: frozenset[str]) -> frozenset[str]:
    return frozenset(path for path in nodes if path.startswith(_CAPABILITIES))


def _gpu_nodes(paths: Iterable[str]) -> frozenset[str]:
    """Return the device nodes of single GPUs and instances, without those of the driver."""
    return frozenset(path for path in paths if _GPU_NODE.fullmatch(path))
