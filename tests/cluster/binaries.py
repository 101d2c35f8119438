"""The real control plane's binaries: found in KUBEBUILDER_ASSETS or the cache, else built with Go.

They are pinned as Go tool modules in tools/go.mod and go.sum. Run this file to build what is
missing; it is quick when nothing is.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TOOLS = Path(__file__).resolve().parent / "tools"
ETCD, API_SERVER, SCHEDULER = "etcd", "kube-apiserver", "kube-scheduler"
PACKAGES = {
    ETCD: "go.etcd.io/etcd/server/v3",
    API_SERVER: "k8s.io/kubernetes/cmd/kube-apiserver",
    SCHEDULER: "k8s.io/kubernetes/cmd/kube-scheduler",
}
HOW_TO = (
    "set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kube-scheduler, or install "
    "Go and run `make cluster-tools`; see docs/contributing/cluster-tests.md"
)

Say = Callable[[str], None]


class NoBinariesError(Exception):
    """There are no binaries and no way to make them; the text says what to install."""


def find_or_build(say: Say) -> dict[str, Path]:
    """Where each binary lies, built first if need be."""
    found = find()
    missing = [name for name in PACKAGES if name not in found]
    if missing:
        build(missing, say)
        found = find()
    return found


def find() -> dict[str, Path]:
    """The binaries there are. Each one in KUBEBUILDER_ASSETS goes before the one in the cache."""
    told = os.environ.get("KUBEBUILDER_ASSETS")
    if told and not (Path(told) / API_SERVER).exists():
        raise NoBinariesError(f"KUBEBUILDER_ASSETS={told} has no {API_SERVER}: correct or unset it")
    folders = [*([Path(told)] if told else []), cache()]
    return {
        name: folder / name
        for folder in reversed(folders)
        for name in PACKAGES
        if os.access(folder / name, os.X_OK)
    }


def cache() -> Path:
    """The folder of what is built from the pinned modules, for this kind of machine."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pins = re.sub(r"//.*", "", (TOOLS / "go.mod").read_text()).split()
    recipe = [*pins, *sorted(versions().items()), sys.platform, platform.machine()]
    pinned = hashlib.sha256(repr(recipe).encode() + (TOOLS / "go.sum").read_bytes())
    return home / "weft" / "cluster-tools" / pinned.hexdigest()[:16] / "bin"


def versions() -> dict[str, str]:
    """The pinned versions of Kubernetes and etcd, as v1.2.3."""
    text = (TOOLS / "go.mod").read_text()
    modules = {"kubernetes": "k8s.io/kubernetes", "etcd": "go.etcd.io/etcd/server/v3"}
    found = {}
    for name, module in modules.items():
        match = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", text, re.MULTILINE)
        assert match, f"tools/go.mod requires no {module}"
        found[name] = match[1]
    return found


def build(names: list[str], say: Say) -> None:
    """Build these into the cache. Whoever comes second waits for the first and builds nothing."""
    if shutil.which("go") is None:
        raise NoBinariesError(f"no {', '.join(names)} and no Go to build with: {HOW_TO}")
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / ".lock", say):
        for name in names:
            if not (folder / name).exists():
                _build_one(name, folder / name, say)


@contextlib.contextmanager
def _alone(path: Path, say: Say) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is building: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_one(name: str, target: Path, say: Say) -> None:
    pinned = versions()
    say(
        f"building {name} ({pinned['etcd' if name == ETCD else 'kubernetes']}) into {target.parent}"
    )
    partial = target.with_name(f".{name}.{os.getpid()}")
    command = [
        *("go", "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false"),
        *("-ldflags", _link_flags(pinned["kubernetes"]), "-o", str(partial), PACKAGES[name]),
    ]
    began = time.monotonic()
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    try:
        with subprocess.Popen(
            command, cwd=TOOLS, env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            complaints = _follow(name, process, say)
        if process.returncode:
            raise NoBinariesError(
                f"go could not build {name} (exit {process.returncode}):\n"
                + "\n".join(complaints[-20:])
                + f"\nTo do without: {HOW_TO}"
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    size = target.stat().st_size / 2**20
    say(f"built {name}: {size:.0f} MiB in {time.monotonic() - began:.0f} s")


def _follow(name: str, process: "subprocess.Popen[str]", say: Say) -> list[str]:
    """Say how far it is every ten seconds; the lines that are no package's name come back."""
    began, state, over = time.monotonic(), {"packages": 0, "downloads": 0}, threading.Event()

    def tell() -> None:
        while not over.wait(10):
            took = time.monotonic() - began
            say(
                f"  {name}: {state['downloads']} modules fetched, "
                f"{state['packages']} packages compiled, {took:.0f} s"
            )

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    complaints = []
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("go: downloading "):
            state["downloads"] += 1
        elif re.fullmatch(r"[\w./~-]+\n", line):
            state["packages"] += 1
        else:
            complaints.append(line.rstrip())
    over.set()
    teller.join()
    return complaints


def _link_flags(kubernetes: str) -> str:
    """Small, and telling its version as a released binary does."""
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    told = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        ["-s", "-w", *(f"-X {p}.{key}={value}" for p in packages for key, value in told.items())]
    )


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
