"""A migration guide, followed to the letter: the original is there, its user types the guide's
commands, and types those that go back."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from kube_api import Object, Objects
from whole_cluster import ROOT, WholeCluster

NAMESPACE = "kube-system"
_KINDS = ("Deployment", "Service", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
_IMAGE = "example.org/original"


class Original(NamedTuple):
    """An original as its README deploys it, under one name; `ports` of its Service, if any."""

    name: str
    labels: dict[str, str]
    ports: tuple[dict[str, int], ...] = ()

    def objects(self) -> list[Object]:
        """All of it, with an image that nobody has: its pods are made and never start."""
        rbac = "rbac.authorization.k8s.io"
        role = {"apiGroup": rbac, "kind": "ClusterRole", "name": self.name}
        account = {"kind": "ServiceAccount", "name": self.name, "namespace": NAMESPACE}
        rule = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]}
        pod = {
            "metadata": {"labels": self.labels},
            "spec": {
                "serviceAccountName": self.name,
                "containers": [{"name": "main", "image": _IMAGE}],
            },
        }
        deployed = {"replicas": 1, "selector": {"matchLabels": self.labels}, "template": pod}
        made = [
            self._object("v1", "ServiceAccount"),
            self._object(f"{rbac}/v1", "ClusterRole", rules=[rule]),
            self._object(f"{rbac}/v1", "ClusterRoleBinding", roleRef=role, subjects=[account]),
            self._object("apps/v1", "Deployment", spec=deployed),
        ]
        if self.ports:
            kind = "NodePort" if "nodePort" in self.ports[0] else "ClusterIP"
            served = {"type": kind, "selector": self.labels, "ports": list(self.ports)}
            made.append(self._object("v1", "Service", spec=served))
        return made

    def _object(self, version: str, kind: str, **parts: Any) -> Object:
        place = {} if kind.startswith("Cluster") else {"namespace": NAMESPACE}
        return {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": self.name, **place},
            **parts,
        }


class Guide:
    """A section of docs/howto/migrate-from-earlier-systems.md; `instead` replaces a manifest's name
    by another's."""

    def __init__(self, title: str, original: Original, instead: tuple[str, str] = ("", "")) -> None:
        page = (ROOT / "docs" / "howto" / "migrate-from-earlier-systems.md").read_text()
        text = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        self.original = original
        self.switch = list(_commands(text, "### Switch", instead))
        self.roll_back = list(_commands(text, "### Roll back", instead))

    def go(self, cluster: WholeCluster, folder: Path) -> None:
        """Deploy the original as its README says, then type what the guide says."""
        manifest = yaml.safe_dump_all(self.original.objects())
        cluster.shell("kubectl create -f -", stdin=manifest)
        self._before = self._what_is_there(cluster)
        for top in ("deploy", "examples"):
            (folder / top).symlink_to(ROOT / top)
        for command in self.switch:
            cluster.shell(f"cd {folder} && {command}")

    def go_back(self, cluster: WholeCluster, folder: Path) -> None:
        """Type what the guide says; all of the original is there again, and its pods are made."""
        for command in self.roll_back:
            cluster.shell(f"cd {folder} && {command}")
        assert self._what_is_there(cluster) == self._before
        cluster.api.wait_for(_any_of_the_original, "Pod", NAMESPACE, timeout_s=120)
        manifest = yaml.safe_dump_all(self.original.objects())
        cluster.shell("kubectl delete -f -", stdin=manifest)

    def _what_is_there(self, cluster: WholeCluster) -> dict[str, object]:
        """The original's objects, without what the API server counts and notes."""
        kinds = ",".join(_KINDS)
        shown = (
            f"kubectl -n {NAMESPACE} get {kinds} {self.original.name} --ignore-not-found -o yaml"
        )
        items = yaml.safe_load(cluster.shell(shown))["items"]
        told = ("spec", "rules", "roleRef", "subjects")
        return {item["kind"]: {key: item.get(key) for key in told} for item in items}


def _commands(text: str, section: str, instead: tuple[str, str]) -> Iterator[str]:
    """kubectl's lines of the section's first block."""
    block = re.search(rf"{section}\n.*?```console\n(.*?)```", text, re.DOTALL)
    assert block is not None, section
    for line in block[1].splitlines():
        command = line.strip().removeprefix("$ ")
        if command.startswith("kubectl "):
            yield command.replace(*instead) if instead[0] else command


def _any_of_the_original(pods: Objects) -> Objects:
    return [pod for pod in pods if pod["spec"]["containers"][0]["image"] == _IMAGE]
