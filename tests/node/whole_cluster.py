"""A whole cluster on this machine: the control plane with its controllers, kube-scheduler, one real
node and kube-proxy. What is applied to it runs: Deployments get pods, Services lead to them.

It is as the GPU operator leaves a cluster: the node is labelled, and the RuntimeClass `nvidia`
gives the (played) GPUs' device nodes. Nothing is pulled: images are in the node's containerd.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import helm
import yaml
from binaries import CONTROLLERS, KUBECTL, PROXY
from control_plane import HOST, ControlPlane, Scheduler
from kube_api import Object
from processes import Server, StartStop, free_ports
from real_node import NAME, RealNode, alone_here, last_lines

ROOT = Path(__file__).resolve().parents[2]
LABELS = {"nvidia.com/gpu.present": "true"}
RUNTIME_CLASS = "nvidia"
PAGE = ROOT / "docs" / "tutorial" / "two-commands.md"
_API_ADDRESS = "10.213.16.1"  # beside the pods' subnet, on the loopback link
_CONTROLLERS = (
    *("deployment", "replicaset", "daemonset", "statefulset", "job", "disruption"),
    *("endpointslice", "serviceaccount", "namespace", "node-lifecycle", "resourceclaim"),
    *("garbage-collector", "root-ca-certificate-publisher", "pod-garbage-collector"),
)
_MOST_CONTAINERS = 4
_OURS = ("weft-system_", "kube-system_")  # folders of their pods' logs


def commands() -> list[str]:
    """The commands that the tutorial has typed before the first pod runs."""
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def as_users_install() -> str:
    """The tutorial's first command."""
    return commands()[0]


class WholeCluster(StartStop):
    """`plane`, `node` and `gpus` are as in the other tests; `shell` runs what a user would type."""

    def __init__(self, tools: dict[str, Path], folder: Path, image_names: Sequence[str]) -> None:
        self.tools, self._folder, self._image_names = tools, folder, image_names
        self._left = contextlib.ExitStack()
        self.kube_scheduler: Scheduler | None = None
        self.previous = ROOT  # sources and chart of the version before

    # --- its life --------------------------------------------------------------------------------

    def start(self) -> None:
        """All of it runs, and the node is Ready."""
        left = self._left
        # First: another cluster's end takes away the address that it has here.
        left.enter_context(alone_here())
        left.enter_context(_address_on_this_machine())
        self.plane = left.enter_context(
            ControlPlane(self.tools, self._folder, for_pods=_API_ADDRESS)
        )
        self.api = self.plane.api
        self.controllers = self._server(CONTROLLERS, self._controllers_command())
        self.controllers.start()
        self.node = RealNode(self.plane, self.tools, self._image_names, as_deployed=_API_ADDRESS)
        left.callback(self._look_back)
        left.enter_context(self.node)
        self.gpus = self.node.gpus
        self.proxy = self._server(PROXY, self._proxy_command())
        left.callback(self._clean_rules)
        self.proxy.start()
        self.use_kube_scheduler()
        self._prepare()

    def stop(self) -> None:
        """End all of it and put the machine back."""
        self._left.close()

    def use_kube_scheduler(self, config: Object | None = None) -> None:
        """The cluster's kube-scheduler anew, with this configuration."""
        self.stop_kube_scheduler()
        self.kube_scheduler = self.plane.start_scheduler(config)

    def stop_kube_scheduler(self) -> None:
        """End it, if it runs."""
        if self.kube_scheduler is not None:
            self.kube_scheduler.kill()
            self.plane.schedulers.remove(self.kube_scheduler)
            self.kube_scheduler = None

    def _look_back(self) -> None:
        assert not self.node.left_behind, self.node.left_behind

    def _clean_rules(self) -> None:
        self.proxy.kill()
        subprocess.run([self.tools[PROXY], "--cleanup"], capture_output=True, check=False)

    def _server(self, name: str, command: Sequence[str | Path]) -> Server:
        server = Server(command, self._folder / f"{name}.log")
        self._left.callback(server.kill)
        return server

    def _prepare(self) -> None:
        """Sets up what a cluster with GPUs has before Weft comes; images are never pulled."""
        self.api.patch("Node", NAME, {"metadata": {"labels": LABELS}})
        version = "node.k8s.io/v1"
        handler = {"apiVersion": version, "kind": "RuntimeClass", "handler": RUNTIME_CLASS}
        self.api.create({**handler, "metadata": {"name": RUNTIME_CLASS}})
        for item in _never_pull():
            self.api.create(item)

    def logs(self) -> str:
        """The end of each log: the servers', and Weft's pods'."""
        servers = (self.controllers, self.proxy)
        found = "\n".join(f"--- {one.log}\n{one.last_lines()}" for one in servers)
        return f"{self.plane.logs()}\n{found}\n{self.node.logs()}\n{self.pod_logs()}"

    def pod_logs(self) -> str:
        """The end of what Weft's pods have logged, and others in their namespaces."""
        pods = [
            path
            for path in sorted(self.node.kubelet.logs.rglob("*.log"))
            if any(part.startswith(_OURS) for part in path.parts)
        ]
        return "\n".join(f"--- {path}\n{last_lines(path)}" for path in pods)

    # --- what a user does ------------------------------------------------------------------------

    def shell(self, command: str, stdin: str | None = None) -> str:
        """The output of a command that a user types in a checkout; it must succeed."""
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=ROOT,
            env={**os.environ, **self._environment()},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout

    def kubectl(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """The output of kubectl."""
        words = " ".join(f"'{word}'" for word in arguments)
        return self.shell(f"kubectl {words}", stdin)

    def values(self, folder: Path, more: Object | None = None) -> Path:
        """The chart's values for this cluster: NVIDIA's runtime, and GPUs that are played."""
        played = yaml.safe_load(self.gpus.path.read_text())
        played = {key: played[key] for key in played if key not in ("apiVersion", "kind")}
        socket = str(self.node.containerd.socket)  # in the agent's container, too
        agent = {"runtimeClassName": RUNTIME_CLASS, "playedGpus": played, "criSocket": socket}
        path = folder / "values.yaml"
        path.write_text(yaml.safe_dump({"agent": agent, **(more or {})}))
        return path

    def _environment(self) -> Mapping[str, str]:
        folders = (
            ROOT / ".venv" / "bin",
            self.tools[KUBECTL].parent,
            helm.find_or_build(print).parent,
        )
        path = ":".join(map(str, (*folders, os.environ["PATH"])))
        home = {f"HELM_{kind}_HOME": str(self._folder) for kind in ("CACHE", "CONFIG", "DATA")}
        return {"PATH": path, "KUBECONFIG": str(self.plane.kubeconfig), **home}

    # --- how it is started -----------------------------------------------------------------------

    def _controllers_command(self) -> list[str | Path]:
        (port,) = free_ports(1)
        kubeconfig = self.plane.kubeconfig
        return [
            *(self.tools[CONTROLLERS], f"--kubeconfig={kubeconfig}", "--leader-elect=false"),
            *(f"--bind-address={HOST}", f"--secure-port={port}"),
            f"--cert-dir={self._folder / 'controllers'}",
            f"--service-account-private-key-file={self.plane.account_key}",
            f"--root-ca-file={self.plane.authority.pair.certificate}",
            f"--controllers={','.join(f'{name}-controller' for name in _CONTROLLERS)}",
        ]

    def _proxy_command(self) -> list[str | Path]:
        health, metrics = free_ports(2)
        path = f"PATH={os.environ['PATH']}:/usr/sbin:/sbin"
        return [
            *("/usr/bin/env", path, self.tools[PROXY], f"--kubeconfig={self.plane.kubeconfig}"),
            *("--proxy-mode=iptables", f"--hostname-override={NAME}"),
            *(
                f"--healthz-bind-address={HOST}:{health}",
                f"--metrics-bind-address={HOST}:{metrics}",
            ),
            *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0"),
            *("--conntrack-tcp-timeout-close-wait=0", "--v=2"),
        ]


@contextlib.contextmanager
def _address_on_this_machine() -> Iterator[None]:
    """An address that pods reach and no other machine has."""
    change = ("ip", "address")
    where = (f"{_API_ADDRESS}/32", "dev", "lo")
    subprocess.run([*change, "replace", *where], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*change, "del", *where], check=True, capture_output=True)


def _never_pull() -> Iterator[Object]:
    """Images of no tag are `latest`, which a kubelet pulls unless the pod says otherwise."""
    parts = (
        f"(size(object.spec.containers) > {n} ? [JSONPatch{{op: 'add', "
        f"path: '/spec/containers/{n}/imagePullPolicy', value: 'Never'}}] : [])"
        for n in range(_MOST_CONTAINERS)
    )
    version = "admissionregistration.k8s.io/v1"
    name = {"name": "images-are-loaded"}
    pods = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    yield {
        "apiVersion": version,
        "kind": "MutatingAdmissionPolicy",
        "metadata": name,
        "spec": {
            "matchConstraints": {"resourceRules": [pods]},
            "reinvocationPolicy": "Never",
            "mutations": [
                {"patchType": "JSONPatch", "jsonPatch": {"expression": " + ".join(parts)}}
            ],
        },
    }
    yield {
        "apiVersion": version,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": name,
        "spec": {"policyName": name["name"]},
    }
