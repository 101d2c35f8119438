"""Changes that a node makes to the machine it runs on, and how they are undone.

`MachineState.now()` is what may be changed: sysctls, mounts, cgroups, links, network namespaces,
addresses, firewall rules of IPv4 and IPv6, folders. `put_back` ends what still runs of a node and
makes the machine what it was. It needs nothing but the state before and the node's folder, so that
a later run can put back what an earlier one, killed, has left.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

_SYSCTLS = Path("/proc/sys")
_SYSCTL_FOLDERS = ("vm", "kernel", "net/ipv4", "net/ipv6/conf/all", "net/ipv6/conf/default")
# They move by themselves, or read differently each time.
_NEVER_STILL = {
    "random",
    "ns_last_pid",
    "pty",
    "perf_event_max_sample_rate",
    "neigh",
    "sched_domain",
}
_CGROUPS = Path("/sys/fs/cgroup")
_OF_A_KUBELET = "kubepods"
_OF_THE_MACHINE = 2  # a hierarchy, and a cgroup in it
_SANDBOX = re.compile(r"[0-9a-f]{64}")
_NAMESPACES = Path("/run/netns")
# A kubelet, containerd, or a plugin of theirs makes these, wherever their own roots are.
_FOLDERS = (
    "/etc/cni",
    "/opt/cni",
    "/opt/containerd",
    "/run/cdi",
    "/run/cni",
    "/run/containerd",
    "/run/netns",
    "/run/nri",
    "/run/weft",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/kubelet/device-plugins",
    "/var/log/containers",
    "/var/log/pods",
)
DEVICE_PREFIX = "/dev/weft-test-"  # of device nodes that tests make
_PATIENCE_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True)
class MachineState:
    """Everything outside its own folder that a node may change."""

    sysctls: dict[str, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    firewall: list[str] = field(default_factory=list)
    firewall_ipv6: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)

    @classmethod
    def now(cls) -> Self:
        """The machine's state at this moment."""
        return cls(
            sysctls=dict(_sysctls()),
            mounts=sorted(_mounts()),
            cgroups=sorted(str(path) for path in _cgroups() if _may_be_ours(path)),
            links=sorted(os.listdir("/sys/class/net")),
            namespaces=sorted(os.listdir(_NAMESPACES)) if _NAMESPACES.exists() else [],
            addresses=sorted(_addresses()),
            firewall=firewall("iptables"),
            firewall_ipv6=firewall("ip6tables"),
            folders=[folder for folder in _FOLDERS if Path(folder).exists()],
            devices=sorted(f"/dev/{name}" for name in os.listdir("/dev")),
        )

    def differences(self, later: "MachineState") -> list[str]:
        """Lists the differences in `later`, each in a line."""
        found = []
        for what, before in asdict(self).items():
            after = asdict(later)[what]
            if isinstance(before, dict):
                changed = {key for key in before | after if before.get(key) != after.get(key)}
                found += [f"{key}: {before.get(key)}, now {after.get(key)}" for key in changed]
            else:
                found += [f"{what}: {one} is gone" for one in set(before) - set(after)]
                found += [f"{what}: {one} is new" for one in set(after) - set(before)]
        return sorted(found)

    def dump(self) -> str:
        """As a text that `load` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """Reads what `dump` has written."""
        return cls(**json.loads(text))


def why_not_here() -> str:
    """Why this machine must be left alone: it is a node already. "" where it is none."""
    if any(_is_of_pods(path) for path in _cgroups()):
        return "a kubelet has pods on this machine: its cgroups would be mixed with the tests'"
    if Path("/var/lib/kubelet/device-plugins/kubelet.sock").exists():
        return "a kubelet runs on this machine: it has /var/lib/kubelet/device-plugins/kubelet.sock"
    return ""


def put_back(before: MachineState, folder: Path) -> None:
    """End what runs of the node whose files are below `folder`, and put the machine back."""
    # A containerd that is killed while the agent tries it has forgotten that sandbox.
    of_trials = [
        p for p in _cgroups() if _SANDBOX.fullmatch(p.name) and str(p) not in before.cgroups
    ]
    _end_processes(folder, of_trials)
    for mount in sorted(_mounts(), reverse=True):
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    of_pods = [*filter(_is_of_pods, _cgroups()), *of_trials]
    for path in sorted(of_pods, key=lambda path: len(path.parts), reverse=True):
        _remove_cgroup(path)
    for link in set(os.listdir("/sys/class/net")) - set(before.links):
        if link.startswith("veth"):
            subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)
    for name, value in _sysctls():
        if name in before.sysctls and before.sysctls[name] != value:
            with contextlib.suppress(OSError):
                (_SYSCTLS / name).write_text(before.sysctls[name])
    for made in set(_FOLDERS) - set(before.folders):
        shutil.rmtree(made, ignore_errors=True)
    for device in set(MachineState.now().devices) - set(before.devices):
        if device.startswith(DEVICE_PREFIX):
            Path(device).unlink()
    put_firewall_back(before.firewall, "iptables")
    put_firewall_back(before.firewall_ipv6, "ip6tables")
    shutil.rmtree(folder, ignore_errors=True)


# --- processes -----------------------------------------------------------------------------------


def _end_processes(folder: Path, more_cgroups: Sequence[Path]) -> None:
    """Containers, shims, and servers that outlived who started them; nobody is left afterwards."""
    deadline = time.monotonic() + _PATIENCE_S
    while pids := {*_in_cgroups(more_cgroups), *_started_below(folder)}:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes that will not end: {sorted(pids)}")
        time.sleep(_POLL_S)


def _in_cgroups(more: Sequence[Path]) -> Iterator[int]:
    """Processes in pods' cgroups, and in these."""
    for path in (*filter(_is_of_pods, _cgroups()), *more):
        with contextlib.suppress(OSError):
            yield from map(int, (path / "cgroup.procs").read_text().split())


def _started_below(folder: Path) -> Iterator[int]:
    """Those whose command names the node's folder; this process itself is not among them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and any(f"{folder}/".encode() in word for word in words):
                    yield int(entry.name)


# --- what there is -------------------------------------------------------------------------------


def _sysctls() -> Iterator[tuple[str, str]]:
    for top in _SYSCTL_FOLDERS:
        for path in (_SYSCTLS / top).rglob("*"):
            name = path.relative_to(_SYSCTLS)
            of_a_link = "conf" in name.parts and not {"all", "default"} & set(name.parts)
            if of_a_link or set(name.parts) & _NEVER_STILL or not path.is_file():
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError):
                yield str(name), path.read_text().strip()


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield line.split()[4].replace("\\040", " ")


def _addresses() -> Iterator[str]:
    """Addresses and the links they are on, but for those that a link has by itself."""
    done = subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        _, link, _, address, *_ = line.split()
        if not address.startswith("fe80:"):
            yield f"{address} on {link}"


def _cgroups() -> Iterator[Path]:
    for path, folders, _ in os.walk(_CGROUPS):
        folders[:] = [name for name in folders if not os.path.islink(f"{path}/{name}")]
        yield Path(path)


def _is_of_pods(path: Path) -> bool:
    return any(part.startswith(_OF_A_KUBELET) for part in path.parts)


def _may_be_ours(path: Path) -> bool:
    """Tells whether a node could have made it: what others have below their own is theirs."""
    return len(path.relative_to(_CGROUPS).parts) <= _OF_THE_MACHINE or _is_of_pods(path)


def _remove_cgroup(path: Path) -> None:
    """Removes the cgroup as soon as the last process in it is quite gone."""
    deadline = time.monotonic() + _PATIENCE_S
    while path.exists():
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def put_firewall_back(before: list[str], command: str) -> None:
    """The rules as `before`; tables that had none are emptied, as iptables cannot remove them."""
    if firewall(command) == before:
        return
    tables = _tables(command)
    emptied = [line for table in tables if table[0] not in before for line in (table[0], "COMMIT")]
    text = "\n".join([*before, *emptied, ""])
    subprocess.run([f"{command}-restore"], input=text, text=True, check=False)


def firewall(command: str) -> list[str]:
    """The input of iptables-restore (or ip6tables'), without counters, comments and tables that let
    all through.

    Such a table is there or not without any difference: reading rules may bring it about.
    """
    return [line for table in _tables(command) if not _lets_all_through(table) for line in table]


def _lets_all_through(table: list[str]) -> bool:
    return all(line.startswith(":") and line.endswith(" ACCEPT") for line in table[1:-1])


def _tables(command: str) -> list[list[str]]:
    """Each table's lines, from its `*name` to its COMMIT."""
    done = subprocess.run([f"{command}-save"], capture_output=True, text=True, check=False)
    tables: list[list[str]] = []
    for line in done.stdout.splitlines():
        if line.startswith("*"):
            tables.append([])
        if tables and not line.startswith("#"):
            tables[-1].append(line.partition(" [")[0] if line.startswith(":") else line)
    return tables
