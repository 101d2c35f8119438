"""A real control plane on this machine: etcd, kube-apiserver, and kube-scheduler where wanted."""

import base64
import itertools
import json
import shutil
import ssl
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from binaries import API_SERVER, ETCD, SCHEDULER
from certificates import Authority, Pair
from kube_api import Api, ApiError, Object
from processes import Server, StartStop, free_ports

HOST = "127.0.0.1"
SERVICE_ADDRESS = "10.0.0.1"  # of the Service `kubernetes`, by which pods know the API server
NODE_HAS = {"cpu": "64", "memory": "256Gi", "pods": "110"}
READERS = "weft-readers"
OUR_ACCOUNTS = "system:serviceaccounts:weft-system"
AUDITED_GROUPS, AUDITED_USERS = (READERS, OUR_ACCOUNTS), ("weft", "weft-agent")
"""Requests of these are in the audit log, each with its verb: `rights_used.py` reads it."""
AS_IN_CLUSTERS = ("--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction")
_CREATORS = 8
_ADMIN, _KUBELETS_CLIENT = "weft-admin", "weft-test-apiserver"
_SYSTEM = "kube-system"
_LEASES = "coordination.k8s.io/v1"
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": list(AUDITED_GROUPS)},
        {"level": "Metadata", "users": list(AUDITED_USERS)},
        {"level": "None"},
    ],
}


class ControlPlane(StartStop):
    """etcd and kube-apiserver: RBAC on, the default admission plugins but ServiceAccount.

    `as_in_clusters`: with it, the Node authorizer and NodeRestriction too; then a namespace needs a
    ServiceAccount before it can have pods.

    There are no controllers and no kubelets: nothing removes what is deleted with a grace period,
    nothing taints nodes, and service accounts get no pods' tokens unless asked for (TokenRequest).

    With `for_pods`, an address of this machine, it is so too, and pods reach the API server there:
    then kube-controller-manager has to run.
    """

    def __init__(
        self,
        binaries: dict[str, Path],
        folder: Path,
        api_server_options: Sequence[str] = (),
        *,
        as_in_clusters: bool = False,
        for_pods: str = "",
    ) -> None:
        self.binaries, self.folder, self._for_pods = binaries, folder, for_pods
        like_theirs = as_in_clusters or bool(for_pods)
        own = AS_IN_CLUSTERS if like_theirs else ("--disable-admission-plugins=ServiceAccount",)
        self._api_server_options = (*own, *api_server_options)
        folder.mkdir(parents=True, exist_ok=True)
        self._data = folder / "etcd"
        self.authority = Authority(folder / "certificates")
        self._server_pair = self.authority.server("weft-test-server", SERVICE_ADDRESS)
        self.etcd_port, self._peer_port, self.port = free_ports(3)
        self._users: dict[tuple[str, ...], Pair] = {}
        self._audit, self._audit_policy = folder / "audit.log", folder / "audit-policy.yaml"
        self._audit_policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        self.etcd = Server(self._etcd_command(), folder / "etcd.log")
        self.api_server = Server(self._api_server_command(), folder / "kube-apiserver.log")
        self.schedulers: list[Scheduler] = []
        self._numbers = itertools.count(1)
        self.kubeconfig = self.kubeconfig_for(_ADMIN, "system:masters")
        self.api = self.api_for(_ADMIN, "system:masters")

    # --- its life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Both servers, until the API server says that all of it is ready."""
        self.etcd.start()
        self.api_server.start()
        self.api_server.wait_ready(self.api.ready)
        if not self._for_pods:  # there who installs Weft writes its lease
            self.free_lease()

    def stop(self) -> None:
        """End every process, at once, and remove the data. The logs stay where they are."""
        self.api.close()
        for server in (*self.schedulers, self.api_server, self.etcd):
            server.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    def restart_apiserver(self, *, gracefully: bool = True) -> None:
        """End the API server (or kill it), and start it on the same port with the same data."""
        if gracefully:
            self.api_server.stop()
        self.api_server.kill()
        self.api_server.start()
        self.api_server.wait_ready(self.api.ready)

    def audited(self, group: str = READERS) -> list[Object]:
        """Every request of this group so far, as the API server's audit log has it."""
        lines = self._audit.read_text().splitlines() if self._audit.exists() else []
        requests = [json.loads(line) for line in lines]
        return [one for one in requests if group in one["user"].get("groups", ())]

    def recover(self) -> None:
        """Let both servers run and answer again, whatever a test has done to them."""
        for server in (self.etcd, self.api_server):
            server.resume()
            if not server.running:
                server.start()
        self.api_server.wait_ready(self.api.ready)

    def compact_etcd(self, *, restart: bool = True) -> int:
        """Forget all history; the etcd revision up to which it is gone.

        A running API server still serves old watches from its own cache. So it is started again,
        after which an old resourceVersion is 410; `restart=False` leaves it alone.
        """
        everything = {"key": _base64(b"\0"), "range_end": _base64(b"\0"), "count_only": True}
        revision = int(self._ask_etcd("range", everything)["header"]["revision"])
        self._ask_etcd("compaction", {"revision": str(revision), "physical": True})
        if restart:
            self.restart_apiserver()
        return revision

    def start_scheduler(
        self,
        config: dict[str, Any] | None = None,
        *,
        verbosity: int = 2,
        options: Sequence[str] = (),
    ) -> "Scheduler":
        """The real kube-scheduler with a KubeSchedulerConfiguration v1; ready when this returns.

        What `config` leaves out is the default, but there is no leader election. It logs each
        node's scores with `verbosity` 10. `options` are more of its command line.
        """
        name = f"kube-scheduler-{next(self._numbers)}"
        scheduler = Scheduler(self, config or {}, name, (f"--v={verbosity}", *options))
        self.schedulers.append(scheduler)
        scheduler.start()
        scheduler.wait_ready(scheduler.api.ready)
        return scheduler

    def logs(self) -> str:
        """The end of each server's log."""
        servers = (self.etcd, self.api_server, *self.schedulers)
        return "\n".join(
            f"--- {server.log}\n{server.last_lines()}" for server in servers if server.log.exists()
        )

    # --- who asks --------------------------------------------------------------------------------

    def api_for(self, user: str, *groups: str, port: int | None = None) -> Api:
        """A client that the server knows as this user, by a certificate."""
        return Api(port or self.port, self.context_for(user, *groups))

    def context_for(self, user: str, *groups: str) -> ssl.SSLContext:
        """TLS to the servers as this user."""
        context = ssl.create_default_context(cafile=str(self.authority.pair.certificate))
        context.load_cert_chain(*self._pair_of(user, *groups))
        return context

    def api_with_token(self, token: str) -> Api:
        """A client with a bearer token."""
        context = ssl.create_default_context(cafile=str(self.authority.pair.certificate))
        return Api(self.port, context, token)

    def kubeconfig_for(self, user: str, *groups: str) -> Path:
        """A kubeconfig file with everything inside, as `kubectl --kubeconfig` reads it."""
        pair = self._pair_of(user, *groups)
        authority = _base64(self.authority.pair.certificate.read_bytes())
        cluster = {"server": f"https://{HOST}:{self.port}", "certificate-authority-data": authority}
        secret = {
            "client-certificate-data": _base64(pair.certificate.read_bytes()),
            "client-key-data": _base64(pair.key.read_bytes()),
        }
        path = self.folder / f"{pair.key.stem}.kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": user, "user": secret}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                    "current-context": "test",
                }
            )
        )
        path.chmod(0o600)
        return path

    def _pair_of(self, user: str, *groups: str) -> Pair:
        if (user, *groups) not in self._users:
            self._users[user, *groups] = self.authority.user(user, *groups)
        return self._users[user, *groups]

    # --- what is in it ---------------------------------------------------------------------------

    def create_fake_node(
        self,
        name: str,
        allocatable: dict[str, str] | None = None,
        *,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        taints: list[Object] | None = None,
    ) -> Object:
        """A node that says it is Ready, with nothing behind it.

        `allocatable` comes on top of 64 CPUs, 256 GiB and 110 pods.
        """
        has = {**NODE_HAS, **(allocatable or {})}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {"kubernetes.io/hostname": name, **(labels or {})},
                    "annotations": annotations or {},
                },
                "status": {"capacity": has, "allocatable": has, "conditions": [ready]},
            }
        )
        # Admission taints every new node as not ready. No controller is there to take that back.
        return self.api.patch("Node", name, {"spec": {"taints": taints or None}})

    def create_pods(self, namespace: str, pods: list[Object]) -> list[Object]:
        """Create these, several at a time; they come back in the same order."""
        with ThreadPoolExecutor(_CREATORS) as creators:
            return list(creators.map(lambda pod: self.api.create(pod, namespace), pods))

    def create_namespace(self, name: str) -> None:
        """An empty namespace."""
        self.api.create({"kind": "Namespace", "metadata": {"name": name}})

    def clear(self, namespace: str) -> None:
        """Remove what a test leaves behind: schedulers, nodes and their events, all pods, and this
        namespace.

        The lease of a Weft that was killed is free again: nobody has to wait for it.

        Servers that it left stopped or dead are brought back first. Other objects of the namespace
        stay, and nobody looks for them: its name is not used again.
        """
        self.end_schedulers()
        self.recover()
        self.api.delete_all("Node")
        self.api.delete_all("Event", "default")
        for inside in {pod["metadata"]["namespace"] for pod in self.api.list("Pod")}:
            self.api.delete_all("Pod", inside)
        self.free_lease()
        self.remove_namespace(namespace)

    def end_schedulers(self) -> None:
        """Kill every kube-scheduler of the test."""
        while self.schedulers:
            self.schedulers.pop().kill()

    def remove_namespace(self, name: str) -> None:
        """End an empty namespace, as its controller would."""
        self.api.delete("Namespace", name)
        body = {"kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}
        self.api.request("PUT", f"/api/v1/namespaces/{name}/finalize", body)

    def free_lease(self) -> None:
        """Weft's lease is there, and nobody's: who wants it next need not wait it out."""
        for item in (
            {"kind": "Namespace", "metadata": {"name": _SYSTEM}},
            {
                "apiVersion": _LEASES,
                "kind": "Lease",
                "metadata": {"name": "weft", "namespace": _SYSTEM},
            },
        ):
            try:
                self.api.create(item)
            except ApiError as error:
                if error.code != 409:
                    raise
        self.api.patch("Lease", "weft", {"spec": {"holderIdentity": None}}, _SYSTEM, _LEASES)

    # --- how they are started --------------------------------------------------------------------

    def _etcd_command(self) -> list[str | Path]:
        client, peer = f"http://{HOST}:{self.etcd_port}", f"http://{HOST}:{self._peer_port}"
        return [
            self.binaries[ETCD],
            f"--data-dir={self._data}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        ]

    def _api_server_command(self) -> list[str | Path]:
        self.account_key = self.authority.new_key(self.folder / "service-accounts.key")
        pods = self._for_pods
        asks_kubelets = self._pair_of(_KUBELETS_CLIENT, "system:masters")
        return [
            self.binaries[API_SERVER],
            f"--etcd-servers=http://{HOST}:{self.etcd_port}",
            f"--bind-address={'0.0.0.0' if pods else HOST}",
            f"--advertise-address={pods or HOST}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self._server_pair.certificate}",
            f"--tls-private-key-file={self._server_pair.key}",
            f"--client-ca-file={self.authority.pair.certificate}",
            f"--kubelet-client-certificate={asks_kubelets.certificate}",  # for containers' logs
            f"--kubelet-client-key={asks_kubelets.key}",
            f"--service-account-issuer=https://{HOST}:{self.port}",
            f"--service-account-key-file={self.account_key}",
            f"--service-account-signing-key-file={self.account_key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",  # as clusters have it
            "--shutdown-send-retry-after=true",  # else it waits a minute for open watches
            "--v=1",
            f"--audit-policy-file={self._audit_policy}",
            f"--audit-log-path={self._audit}",
            *(() if pods else ("--endpoint-reconciler-type=none",)),
            *self._api_server_options,
        ]

    def _ask_etcd(self, verb: str, body: Object) -> Any:
        request = urllib.request.Request(
            f"http://{HOST}:{self.etcd_port}/v3/kv/{verb}", data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)


class Scheduler(Server):
    """A running kube-scheduler: `log`, `stop()`, `pause()`, `resume()`, and its own `api`."""

    def __init__(
        self, plane: ControlPlane, config: dict[str, Any], name: str, options: Sequence[str]
    ) -> None:
        (self.port,) = free_ports(1)
        self.config = plane.folder / f"{name}.yaml"
        connection = {"kubeconfig": str(plane.kubeconfig_for("system:kube-scheduler"))}
        whole = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **config,
            "clientConnection": {**connection, **config.get("clientConnection", {})},
        }
        self.config.write_text(yaml.safe_dump(whole))
        command: list[str | Path] = [
            plane.binaries[SCHEDULER],
            f"--config={self.config}",
            f"--bind-address={HOST}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={plane._server_pair.certificate}",
            f"--tls-private-key-file={plane._server_pair.key}",
            f"--client-ca-file={plane.authority.pair.certificate}",
            "--authentication-skip-lookup=true",
            f"--authorization-kubeconfig={connection['kubeconfig']}",
            *options,
        ]
        self.api = plane.api_for(_ADMIN, "system:masters", port=self.port)
        super().__init__(command, plane.folder / f"{name}.log")

    def kill(self) -> None:
        """End it at once; its client's connections too."""
        self.api.close()
        super().kill()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
