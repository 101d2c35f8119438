"""Checks of a GPU node's machine. Each check gets the file system's root (or /proc), so that it can
run in a container with the host's files mounted, and in tests."""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from weft.cluster.reading.finding import DoctorFinding, advice, good, wrong
from weft.dialects.catalog import is_gpu_resource
from weft.files.reading import UNDECODABLE
from weft.node.agent.device_nodes import CDI_DIRS, CdiSpecs
from weft.node.agent.process_owner import ProcessOwner, owner_of
from weft.node.device_plugin.cdi_files import FILE_PREFIX
from weft.node.devices.reader import DeviceError, DeviceReader

NRI_SOCKET = Path("var/run/nri/nri.sock")
CONTAINERD = Path("etc/containerd/config.toml")
DEVICE_PLUGINS = Path("var/lib/kubelet/device-plugins")
POD_RESOURCES = Path("var/lib/kubelet/pod-resources/kubelet.sock")
CHECKPOINT = "kubelet_internal_checkpoint"
_NRI_PLUGIN = "io.containerd.nri.v1.nri"
_GPU_NODE = re.compile(r"nvidia[0-9]+")
_PLAYING = re.compile(r"\bweft(?:\.cli\.main)? agent (?:.* )?--devices[= ](?!nvml\b)(\S+)")
_MOST_BYTES = 1 << 24
_MOST_PROBLEMS = 3


def driver(open_reader: Callable[[], DeviceReader]) -> DoctorFinding:
    """Check that the driver answers and its GPUs have no faults."""
    check = "driver"
    try:
        reader = open_reader()
    except DeviceError as error:
        return wrong(check, str(error), "install NVIDIA's driver, and check it with nvidia-smi")
    try:
        with closing(reader):
            devices, version = reader.devices(), reader.driver_version()
    except DeviceError as error:
        return wrong(check, str(error), "check the driver with nvidia-smi and dmesg")
    cards = [device for device in devices if device.gpu.parent is None]
    faults = [f"GPU {d.gpu.index}: {d.fault}" for d in devices if d.fault]
    if not cards:
        return wrong(
            check, f"driver {version} sees no GPU", "check lspci, and dmesg for the driver"
        )
    text = f"driver {version}, {len(cards)} GPUs" + (" (simulated)" if reader.fake else "")
    if faults:
        return wrong(check, f"{text}; {'; '.join(faults)}", "reset the GPU, or replace it")
    return good(check, text)


def played_for_agent(proc: Path) -> Path | None:
    """Return the file that simulates GPUs for the agent running here; None if there is no agent, or
    it uses the driver."""
    for path in sorted(proc.glob("[0-9]*/cmdline")):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended, or may not be read
        if match := _PLAYING.search(" ".join(words)):
            absolute = match[1].startswith("/")
            return path.parent / ("root" if absolute else "cwd") / match[1].lstrip("/")
    return None


def device_nodes(root: Path, open_reader: Callable[[], DeviceReader]) -> DoctorFinding:
    """Check that /dev has the device nodes that containers need."""
    check = "device nodes"
    try:
        with closing(open_reader()) as reader:
            paths = {path for device in reader.devices() for path in device.paths}
            paths.update(reader.shared_paths())
    except DeviceError:
        return advice(check, "not known: GPUs cannot be read")
    missing = sorted(path for path in paths if not (root / path.lstrip("/")).exists())
    if missing:
        mend = "run nvidia-modprobe -u -c=0, now and at boot, or nvidia-persistenced"
        return wrong(check, f"missing: {', '.join(missing)}", mend)
    return good(check, f"{len(paths)} exist" if paths else "none are needed")


def cdi(root: Path, open_reader: Callable[[], DeviceReader]) -> DoctorFinding:
    """Check that NVIDIA's CDI specifications match the present GPUs."""
    check = "CDI"
    try:
        with closing(open_reader()) as reader:
            devices = reader.devices()
    except DeviceError:
        return advice(check, "not known: GPUs cannot be read")
    folders = [root / folder.relative_to("/") for folder in CDI_DIRS]
    specs = CdiSpecs(folders, heeded=True, ignored=FILE_PREFIX)
    named = sum(bool(specs.names_of([device])) for device in devices)
    if specs.problems:
        more = len(specs.problems) - _MOST_PROBLEMS
        text = "; ".join(specs.problems[:_MOST_PROBLEMS]) + (f"; {more} more" if more > 0 else "")
        mend = (
            "write the CDI specification again with nvidia-ctk cdi generate "
            "--output=/var/run/cdi/nvidia.yaml, and delete other CDI files of NVIDIA GPUs; until "
            "then, these GPUs are passed as device nodes, without the driver's libraries"
        )
        return advice(check, text, mend)
    if not named:
        return good(check, "no specification names these GPUs: they are passed as device nodes")
    return good(check, f"{named} of {len(devices)} GPUs and MIG instances have CDI names")


def nri_socket(root: Path) -> DoctorFinding:
    """Check that the container runtime listens for NRI plugins."""
    if (root / NRI_SOCKET).exists():
        return good("NRI", f"the container runtime listens at /{NRI_SOCKET}")
    mend = (
        f'in /{CONTAINERD} set disable = false under [plugins."{_NRI_PLUGIN}"] and restart '
        "containerd (cri-o: enable_nri = true); or run weft agent --device-plugins"
    )
    return wrong("NRI", f"there is no /{NRI_SOCKET}: the runtime has no NRI, or NRI is off", mend)


def validator(root: Path) -> DoctorFinding:
    """Check that containerd is configured to refuse containers whose required NRI plugin is
    away."""
    check = "NRI validator"
    mend = (
        f'in /{CONTAINERD} set enable = true under [plugins."{_NRI_PLUGIN}".default_validator] '
        "and restart containerd; until then a container may start without its share while the "
        "agent is away, and is evicted afterwards"
    )
    try:
        enabled = _validator(_configuration(root))
    except FileNotFoundError:
        return advice(check, f"not known: there is no /{CONTAINERD}; it is off by default", mend)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        return advice(check, f"not known: /{CONTAINERD} cannot be read: {error}", mend)
    if enabled is True:
        return good(
            check, "the default validator is enabled: no container starts without its share"
        )
    return advice(check, "the default validator is not enabled", mend)


def kubelet_sockets(root: Path) -> DoctorFinding:
    """Check that the kubelet's two sockets exist."""
    check = "kubelet"
    sockets = (DEVICE_PLUGINS / "kubelet.sock", POD_RESOURCES)
    missing = [f"/{path}" for path in sockets if not (root / path).exists()]
    if len(missing) == len(sockets):
        mend = "start the kubelet; if this is a container, mount the folders of these sockets"
        return wrong(check, f"the kubelet's sockets are missing: {', '.join(missing)}", mend)
    if missing:
        return advice(check, f"missing: {missing[0]}", "features that use it are disabled")
    return good(check, "its sockets for device plugins and pod resources exist")


def other_plugins(root: Path, own: Collection[str]) -> DoctorFinding:
    """Check for other device plugins that serve GPUs; `own` are the agent's own resources."""
    check = "GPU plugins"
    path = root / DEVICE_PLUGINS / CHECKPOINT
    try:
        registered = msgspec.json.decode(_read(path), type=_Checkpoint).data.registered
    except FileNotFoundError:
        return good(check, "no device plugin has registered")
    except (OSError, *UNDECODABLE) as error:
        return advice(check, f"not known: {path} cannot be read: {error}")
    others = sorted(
        name
        for name, devices in registered.items()
        if devices and is_gpu_resource(name) and name not in own
    )
    if others:
        mend = (
            "two plugins that hand out the same GPUs do not coordinate: separate such nodes by "
            "label, or remove that plugin's DaemonSet from nodes with Weft's agent"
        )
        return advice(check, f"another device plugin serves {', '.join(others)}", mend)
    return good(check, "no other device plugin serves GPUs")


class MachinePod(NamedTuple):
    """A pod of this machine: its name for messages, and whether it may see GPUs."""

    name: str
    may_see: bool


def without_share(proc: Path, pods: Mapping[str, MachinePod] | None) -> DoctorFinding:
    """Check for containers that see GPUs without a share; `pods` by UID, None if unknown."""
    check = "containers"
    owners, unseen = _seeing(proc)
    seen = {owner.pod_uid for owner in owners}
    if pods is None:
        text = f"{len(seen)} pods see GPUs; which of them have a share is unknown"
        return advice(check, text, "weft doctor needs a kubeconfig here, and --node-name")
    stranger = MachinePod("", may_see=False)
    strangers = sorted(
        pods.get(uid, stranger).name or uid for uid in seen if not pods.get(uid, stranger).may_see
    )
    if strangers:
        mend = (
            "they can use GPUs that Weft assigns to other pods: remove NVIDIA_VISIBLE_DEVICES=all "
            "from their images, or make nvidia's runtime not the default; with the agent's NRI "
            "plugin they see no GPU once they restart"
        )
        return wrong(check, f"pods see GPUs without a share: {', '.join(strangers[:10])}", mend)
    if unseen:
        text = f"{unseen} containers could not be checked"
        return advice(
            check, text, "run weft doctor as root, in a container with hostPID and SYS_PTRACE"
        )
    return good(check, f"{len(seen)} pods see GPUs, each with a share or exempt")


def _seeing(proc: Path) -> tuple[set[ProcessOwner], int]:
    """Return the owners of processes with a GPU's device node in their /dev, each container checked
    once; and how many containers could not be checked."""
    looked: set[ProcessOwner] = set()
    seeing: set[ProcessOwner] = set()
    unseen = 0
    for folder in sorted(proc.glob("[0-9]*")):
        owner = owner_of(proc, int(folder.name)) if folder.name.isdecimal() else None
        if owner is None or owner in looked:
            continue
        try:
            names = [entry.name for entry in (folder / "root/dev").iterdir()]
        except PermissionError:
            unseen += 1
        except OSError:
            continue  # it has ended; another process of the container may show it
        else:
            if any(map(_GPU_NODE.fullmatch, names)):
                seeing.add(owner)
        looked.add(owner)
    return seeing, unseen


def _configuration(root: Path) -> Mapping[str, Any]:
    """Read the NRI settings from containerd's file and its imports, merged."""
    whole = tomllib.loads(_read(root / CONTAINERD).decode())
    merged: dict[str, Any] = dict(_nri(whole))
    for pattern in whole.get("imports", ()):
        for path in sorted(root.glob(str(pattern).lstrip("/"))):
            merged.update(_nri(tomllib.loads(_read(path).decode())))
    return merged


def _nri(document: Mapping[str, Any]) -> Mapping[str, Any]:
    plugins = document.get("plugins")
    nri = plugins.get(_NRI_PLUGIN) if isinstance(plugins, dict) else None
    return nri if isinstance(nri, dict) else {}


def _validator(nri: Mapping[str, Any]) -> object:
    section = nri.get("default_validator")
    return section.get("enable") if isinstance(section, dict) else None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES)


class _CheckpointData(msgspec.Struct):
    registered: dict[str, list[str] | None] = msgspec.field(
        default_factory=dict, name="RegisteredDevices"
    )


class _Checkpoint(msgspec.Struct):
    """The kubelet's checkpoint of device plugins."""

    data: _CheckpointData = msgspec.field(default_factory=_CheckpointData, name="Data")
