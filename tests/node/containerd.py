"""A real containerd of one's own: its roots, sockets and configuration below one folder."""

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from images import PAUSE
from node_tools import CNI_FOLDER, CONTAINERD, CTR
from processes import Server

_SUBNET = "10.213.0.0/20"
_CONFIG = """
version = 3
imports = [{imports}]
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
address = "{folder}/containerd.sock"
[ttrpc]
address = "{folder}/containerd.sock.ttrpc"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true  # a container in a VM may not lower its score
netns_mounts_under_state_dir = true
enable_cdi = {cdi}
cdi_spec_dirs = ["{cdi_folder}"]
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.cni]

# As NVIDIA's runtime: its containers have the device nodes of all GPUs.
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{folder}/nvidia.json"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
SystemdCgroup = false
BinaryName = "runc"

[plugins."io.containerd.nri.v1.nri"]
disable = {nri_off}
socket_path = "{nri_socket}"
plugin_path = "{folder}/nri/plugins"
plugin_config_path = "{folder}/nri/conf.d"
[plugins."io.containerd.nri.v1.nri".default_validator]
enable = {validator}
"""


class Containerd(Server):
    """containerd with its CRI, NRI and a network of point-to-point links.

    Containers of the runtime handler `nvidia` have the device nodes `devices`.
    """

    def __init__(
        self,
        tools: dict[str, Path],
        folder: Path,
        nri_socket: Path | None = None,
        cdi_folder: Path | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.socket, self.nri_socket = folder / "containerd.sock", nri_socket or folder / "nri.sock"
        self.cdi_folder = cdi_folder or folder / "cdi"
        self._ctr = tools[CTR]
        for name in ("cdi", "cni", "nri/plugins", "nri/conf.d"):
            (folder / name).mkdir(parents=True)
        (folder / "cni" / "10-test.conflist").write_text(json.dumps(_network(folder)))
        self.configure()
        default = subprocess.run(
            [self._ctr, "oci", "spec"], capture_output=True, text=True, check=True
        )
        (folder / "nvidia.json").write_text(json.dumps(_with(json.loads(default.stdout), devices)))
        command: list[str | Path] = [tools[CONTAINERD], "--config", folder / "config.toml"]
        # It looks for its shim and for runc in PATH.
        path = f"PATH={tools[CONTAINERD].parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
        super().__init__(["/usr/bin/env", path, *command], folder / "containerd.log")
        self.name = CONTAINERD

    def configure(
        self, *, nri: bool = True, validator: bool = True, cdi: bool = True, imports: str = ""
    ) -> None:
        """Write its configuration, which the next start reads; with one of `imports` more."""
        (self.folder / "config.toml").write_text(
            _CONFIG.format(
                folder=self.folder,
                nri_socket=self.nri_socket,
                imports=f'"{imports}"' if imports else "",
                cdi=str(cdi).lower(),
                cdi_folder=self.cdi_folder,
                pause=PAUSE,
                cni=CNI_FOLDER,
                nri_off=str(not nri).lower(),
                validator=str(validator).lower(),
            )
        )

    def begin(self) -> None:
        """Start it; it answers when this returns."""
        self.start()
        self.wait_ready(self.ready)

    def ready(self) -> bool:
        """Tells whether its CRI is served: that comes last."""
        done = subprocess.run(
            [*self._command(), "plugins", "ls", "id==cri"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode == 0 and " ok" in done.stdout

    def ctr(self, *arguments: str | Path, timeout_s: float = 60) -> str:
        """The output of `ctr`, in the namespace of Kubernetes."""
        done = subprocess.run(
            [*self._command(), "-n", "k8s.io", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if done.returncode:
            raise RuntimeError(f"ctr {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def _command(self) -> list[str]:
        return [str(self._ctr), "--address", str(self.socket)]


class Unit:
    """Starts containerd again whenever it has ended, as systemd does. `started` counts."""

    def __init__(self, containerd: Containerd) -> None:
        self.started = 0
        self._containerd, self._over = containerd, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            if not self._containerd.running:
                self._containerd.begin()
                self.started += 1


def _with(spec: Any, devices: Sequence[str]) -> Any:
    """The runtime specification with these device nodes of this machine."""
    linux = spec["linux"]
    for path in devices:
        found = os.stat(path).st_rdev
        numbers = {"type": "c", "major": os.major(found), "minor": os.minor(found)}
        linux.setdefault("devices", []).append(
            {"path": path, **numbers, "fileMode": 0o666, "uid": 0, "gid": 0}
        )
        allowed = {**numbers, "allow": True, "access": "rwm"}
        linux["resources"].setdefault("devices", []).append(allowed)
    return spec


def _network(folder: Path) -> dict[str, object]:
    return {
        "cniVersion": "1.0.0",
        "name": "test",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,  # nobody outside is spoken to, so that no rule is needed
                "ipam": {
                    "type": "host-local",
                    "subnet": _SUBNET,
                    "routes": [{"dst": "0.0.0.0/0"}],  # to this machine, which knows the Services
                    "dataDir": f"{folder}/addresses",
                },
            }
        ],
    }
