"""The real control plane's binaries: found in KUBEBUILDER_ASSETS or the cache, else built with Go.

They are pinned as Go tool modules in tools/go.mod and go.sum. Run this file to build what is
missing; it is quick when nothing is. The rest of a cluster, which only tests/node wants, is of the
same module.

`WEFT_KUBERNETES_VERSION` chooses another Kubernetes, of which there is a module beside it, as
tools-1.37.1.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from go_tools import GoTools, NoBinariesError, Say

ETCD, API_SERVER, SCHEDULER = "etcd", "kube-apiserver", "kube-scheduler"
KUBELET = "kubelet"
CONTROLLERS, PROXY, KUBECTL = "kube-controller-manager", "kube-proxy", "kubectl"
CONTROL_PLANE = (ETCD, API_SERVER, SCHEDULER)
REST = (KUBELET, CONTROLLERS, PROXY, KUBECTL)
HOW_TO = (
    "set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kube-scheduler, or install "
    "Go and run `make cluster-tools`; see docs/contributing/tests.md"
)
_KUBERNETES = "k8s.io/kubernetes"
_ETCD = "go.etcd.io/etcd/server/v3"


HERE = Path(__file__).resolve().parent


def _module() -> Path:
    """The folder of the Go module of the Kubernetes that is chosen."""
    chosen = os.environ.get("WEFT_KUBERNETES_VERSION", "").removeprefix("v")
    if not chosen:
        return HERE / "tools"
    others = {path.name.removeprefix("tools-"): path for path in sorted(HERE.glob("tools-*"))}
    if chosen not in others:
        raise NoBinariesError(
            f"WEFT_KUBERNETES_VERSION={chosen}, and tests/cluster has a module only of "
            f"{', '.join(others)}, and without it of tests/cluster/tools: correct or unset it"
        )
    return others[chosen]


def _link_flags(versions: Mapping[str, str]) -> list[str]:
    """Linker flags with which they tell their version as released binaries do."""
    kubernetes = versions[API_SERVER]
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    told = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return [f"{package}.{key}={value}" for package in packages for key, value in told.items()]


def _tools() -> GoTools:
    return GoTools(
        folder=_module(),
        packages={
            ETCD: _ETCD,
            **{name: f"{_KUBERNETES}/cmd/{name}" for name in (API_SERVER, SCHEDULER, *REST)},
        },
        version_of={ETCD: _ETCD, **dict.fromkeys((API_SERVER, SCHEDULER, *REST), _KUBERNETES)},
        link_flags=_link_flags,
        how_to=HOW_TO,
    )


def cache() -> Path:
    """The folder of what is built."""
    return _tools().cache()


def versions() -> dict[str, str]:
    """The pinned version of each program, as v1.2.3."""
    return _tools().versions()


def find_or_build(say: Say, names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """Where each of these binaries lies, built first if need be."""
    found = find(names)
    missing = [name for name in names if name not in found]
    if missing:
        _tools().build(missing, say)
        found = find(names)
    return found


def find(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """The binaries there are. Each one in KUBEBUILDER_ASSETS goes before the one in the cache."""
    told = os.environ.get("KUBEBUILDER_ASSETS")
    if told and not (Path(told) / API_SERVER).exists():
        raise NoBinariesError(f"KUBEBUILDER_ASSETS={told} has no {API_SERVER}: correct or unset it")
    folders = [*([Path(told)] if told else []), cache()]
    return {
        name: folder / name
        for folder in reversed(folders)
        for name in names
        if os.access(folder / name, os.X_OK)
    }


def main() -> int:
    """Build what is missing; 1 with the reason where that cannot be."""

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    try:
        for path in find_or_build(say).values():
            sys.stdout.write(f"{path}\n")
    except NoBinariesError as error:
        say(f"cluster-tools: {error}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
