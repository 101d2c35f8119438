"""Tools that a real node needs of this machine: root, Debian's runc, CNI plugins and busybox, and
Go to build kubelet, containerd, its shim and ctr with.

Run this file to build what is missing; it is quick when nothing is.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "cluster"))  # when run by itself

import binaries
from go_tools import GoTools, NoBinariesError, Say

CONTAINERD, SHIM, CTR = "containerd", "containerd-shim-runc-v2", "ctr"
BUILT = (CONTAINERD, SHIM, CTR)
CNI_FOLDER = Path("/usr/lib/cni")
PACKAGES = "runc containernetworking-plugins busybox-static iproute2 iptables"
_MODULE = "github.com/containerd/containerd/v2"


def _link_flags(versions: Mapping[str, str]) -> list[str]:
    return [f"{_MODULE}/version.Version={versions[CONTAINERD]}"]


_TOOLS = GoTools(
    folder=Path(__file__).resolve().parent / "tools",
    packages={name: f"{_MODULE}/cmd/{name}" for name in BUILT},
    version_of=dict.fromkeys(BUILT, _MODULE),
    link_flags=_link_flags,
    how_to="install Go and run `make node-tools`; see docs/contributing/tests.md",
    tags=("no_btrfs", "no_devmapper", "no_zfs"),
)


def find_or_build(say: Say) -> dict[str, Path]:
    """Where the rest of a cluster, containerd, its shim and ctr lie, built first if need be."""
    found = binaries.find_or_build(say, binaries.REST)
    if missing := [name for name in BUILT if name not in find()]:
        _TOOLS.build(missing, say)
    return found | find()


def find() -> dict[str, Path]:
    """Those of containerd's programs that were built."""
    folder = _TOOLS.cache()
    return {name: folder / name for name in BUILT if os.access(folder / name, os.X_OK)}


def why_not() -> str:
    """Why no node can run here, and what to install; "" where one can. Go is not looked for."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a real node runs as root on Linux only: run `make test-node` as root"
    lacking = [
        *(
            name
            for name in ("runc", "busybox", "ip", "iptables-save")
            if shutil.which(name) is None
        ),
        *(name for name in ("ptp", "host-local", "loopback") if not (CNI_FOLDER / name).exists()),
    ]
    if lacking:
        return f"no {', '.join(lacking)}: apt-get install {PACKAGES}"
    with Path(shutil.which("busybox") or "").open("rb") as busybox:
        head = busybox.read(4096)  # where a program names the loader that it needs
    if b"/ld-" in head:
        return "busybox is linked dynamically: apt-get install busybox-static"
    return ""


def main() -> int:
    """Build what is missing; 1 with the reason where that cannot be."""

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    try:
        for path in find_or_build(say).values():
            sys.stdout.write(f"{path}\n")
    except NoBinariesError as error:
        say(f"node-tools: {error}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
