"""Images for containers, written here: one layer with busybox, as `docker save` would write them.

Every container of them says first what it finds inside itself (`tell`), then runs until SIGTERM.
"""

import hashlib
import io
import json
import platform
import re
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

PAUSE = "weft.test/pause:1"
BUSYBOX = "weft.test/busybox:1"
SEES_ALL_GPUS = "weft.test/sees-all-gpus:1"  # as images of CUDA do: NVIDIA_VISIBLE_DEVICES=all
RUN = "trap 'exit 0' TERM; sleep 2147483647 & wait"
TELL_AND_RUN = ("/bin/sh", "-c", f"/bin/tell; {RUN}")
TELL_AND_END = ("/bin/tell",)
# Opening tells a device without a driver (ENXIO) from one that the cgroup forbids (EPERM).
_TELL = r"""#!/bin/sh
tr '\0' '\n' < /proc/$$/environ | sed 's/^/env /'
for path in $(find /dev -type c -o -type b); do
  words=$( (exec 3< "$path") 2>&1 ) && opens=yes || opens="$words"
  case "$opens" in *"not permitted"*) opens=no ;; *) opens=yes ;; esac
  echo "device $path $(stat -c '0x%t 0x%T %a' "$path") $opens"
done
sed 's/^/mount /' /proc/self/mountinfo
echo told
"""
_APPLETS = (
    "cat chmod cp cut date dd df env false find grep head hostname id kill ls mkdir mount nc od "
    "printf ps rm sed seq sh sleep stat tail tee test touch tr true umount wc xargs"
)


def write_archive(path: Path, busybox: Path, more_names: Sequence[str] = ()) -> None:
    """All images in one file; `more_names` are further names of the plain one."""
    layer = _layer(busybox)
    images = {
        PAUSE: _config(layer, ["/bin/sleep", "2147483647"]),
        SEES_ALL_GPUS: _config(layer, list(TELL_AND_RUN), "NVIDIA_VISIBLE_DEVICES=all"),
        BUSYBOX: _config(layer, list(TELL_AND_RUN)),
    }
    manifest = []
    with tarfile.open(path, "w") as archive:
        _add(archive, "layer.tar", layer)
        for name, config in images.items():
            text = json.dumps(config).encode()
            file = f"{hashlib.sha256(text).hexdigest()}.json"
            _add(archive, file, text)
            names = [name, *(more_names if name == BUSYBOX else ())]
            manifest.append({"Config": file, "RepoTags": names, "Layers": ["layer.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def write_program(path: Path, name: str, program: Path) -> None:
    """An image of one program, which is linked statically and found by its own name."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as layer:
        _add(layer, f"bin/{program.name}", program.read_bytes(), mode=0o755)
    config = json.dumps(_config(held.getvalue(), [f"/bin/{program.name}"])).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, "layer.tar", held.getvalue())
        _add(archive, "config.json", config)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(busybox: Path) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as layer:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(info)
        _add(layer, "bin/busybox", busybox.read_bytes(), mode=0o755)
        _add(layer, "bin/tell", _TELL.encode(), mode=0o755)
        _add(layer, "bin/nvidia-smi", _TELL.encode(), mode=0o755)  # examples call it
        for applet in _APPLETS.split():
            info = tarfile.TarInfo(f"bin/{applet}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(info)
    return held.getvalue()


def _config(layer: bytes, command: list[str], *env: str) -> dict[str, object]:
    return {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Env": ["PATH=/bin", *env], "Cmd": command},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }


def _architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def names_in(manifests: Iterable[str]) -> list[str]:
    """The images that these manifests name, with their tags."""
    pattern = r"image: (docker\.io/[\w./:-]+|[\w./-]+)"  # public ones have their tags
    found = {name for text in manifests for name in re.findall(pattern, text)}
    return sorted(name if name.startswith("docker.io/") else f"{name}:latest" for name in found)


def find_busybox() -> Path:
    """Debian's busybox-static."""
    found = shutil.which("busybox")
    assert found, "no busybox: apt-get install busybox-static"
    return Path(found).resolve()
