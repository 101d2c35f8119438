"""A real kubelet of one's own, on a containerd of one's own."""

import os
from pathlib import Path

import yaml
from binaries import KUBELET
from containerd import Containerd
from control_plane import HOST, ControlPlane
from kube_api import Object
from processes import Server, free_ports

DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")  # wherever its root is


class Kubelet(Server):
    """A kubelet that authenticates with a certificate of its node, and serves on this machine."""

    def __init__(
        self,
        plane: ControlPlane,
        tools: dict[str, Path],
        containerd: Containerd,
        folder: Path,
        node: str,
        address: str = HOST,
    ) -> None:
        self.node, self.plane = node, plane
        self.root, self.logs = folder / "root", folder / "pods"
        self.root.mkdir(parents=True)
        self.pod_resources = self.root / "pod-resources" / "kubelet.sock"
        self.static_pods = folder / "static-pods"
        self.static_pods.mkdir()
        self.port, self.health_port = free_ports(2)
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(self._config(folder, containerd)))
        path = f"PATH={os.environ['PATH']}:/usr/sbin:/sbin"
        command: list[str | Path] = [
            *("/usr/bin/env", path, tools[KUBELET], "--config", config, "--v=2"),
            *("--kubeconfig", plane.kubeconfig_for(f"system:node:{node}", "system:nodes")),
            *("--root-dir", self.root, "--cert-dir", folder / "certificates"),
            *("--hostname-override", node, "--node-ip", address),
        ]
        super().__init__(command, folder / "kubelet.log")
        self.name = KUBELET

    def begin(self) -> None:
        """Start it; its node is Ready and takes pods when this returns."""
        self.start()
        self.wait_ready(self._is_ready)
        # No controller takes back the taint with which admission marks every new node.
        self.plane.api.patch("Node", self.node, {"spec": {"taints": None}})

    def _is_ready(self) -> bool:
        """Tells whether this very process has said so of its node."""
        if "Started kubelet" not in self.last_start():
            return False
        found = [n for n in self.plane.api.list("Node") if n["metadata"]["name"] == self.node]
        return bool(found) and any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in found[0]["status"].get("conditions", ())
        )

    def last_start(self) -> str:
        """The log since it was last started."""
        return self.log.read_bytes()[self._began :].decode(errors="replace")

    _began = 0

    def start(self) -> None:
        """Start it; see `begin`."""
        self._began = self.log.stat().st_size if self.log.exists() else 0
        super().start()

    def _config(self, folder: Path, containerd: Containerd) -> Object:
        pair = self.plane.authority.server("weft-test-kubelet")
        endpoint = f"unix://{containerd.socket}"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": HOST,
            "port": self.port,
            "healthzPort": self.health_port,
            "tlsCertFile": str(pair.certificate),
            "tlsPrivateKeyFile": str(pair.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(self.plane.authority.pair.certificate)},
            },
            "containerRuntimeEndpoint": endpoint,
            "imageServiceEndpoint": endpoint,
            "volumePluginDir": str(folder / "volume-plugins"),
            "staticPodPath": str(self.static_pods),
            "podLogsDir": str(self.logs),
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "1Mi"},  # a full disk is no matter of these tests
            "maxPods": 600,
            "serializeImagePulls": False,
            "resolvConf": "",
        }
